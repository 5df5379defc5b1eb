// The settings dialog. Values stay in this browser; the API key only as long as its tab.

const KEPT = { system: localStorage, temperature: localStorage, "max-tokens": localStorage, thinking: localStorage, "api-key": sessionStorage };

const byId = (id) => document.getElementById(id);

export function setUpSettings(onChange) {
  const dialog = byId("settings");
  for (const [id, store] of Object.entries(KEPT)) {
    byId(id).value = read(store, id);
    byId(id).addEventListener("change", () => write(store, id, byId(id).value));
  }
  byId("open-settings").addEventListener("click", () => dialog.showModal());
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  dialog.addEventListener("close", onChange);
}

/** Open the dialog at the key, because the server asked for one. */
export function askForKey() {
  if (!byId("settings").open) byId("settings").showModal();
  byId("api-key").focus();
}

export function apiKey() {
  return byId("api-key").value.trim();
}

export function systemPrompt() {
  return byId("system").value.trim();
}

/** The fields of a request that the user has set; the others are the server's to choose. */
export function sampling() {
  const chosen = {};
  const temperature = byId("temperature").valueAsNumber;
  const maxTokens = byId("max-tokens").valueAsNumber;
  if (!Number.isNaN(temperature)) chosen.temperature = temperature;
  if (!Number.isNaN(maxTokens)) chosen.max_tokens = maxTokens;
  const thinking = byId("thinking").value;
  if (thinking) chosen.chat_template_kwargs = { enable_thinking: thinking === "on" };
  return chosen;
}

// Storage can be forbidden; then settings last as long as the page.
function read(store, id) {
  try {
    return store.getItem(`chat.${id}`) ?? "";
  } catch {
    return "";
  }
}

function write(store, id, value) {
  try {
    store.setItem(`chat.${id}`, value);
  } catch {
    // Nothing to do: see read().
  }
}
