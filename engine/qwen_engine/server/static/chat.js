// The page: a conversation, its composer, and what the header says of the server.

import * as api from "./api.js";
import { clearAttachments, hasAttachments, invitation, isReading, setLimits, setUpAttachments, shown, takeContent } from "./attachments.js";
import { copyText } from "./clipboard.js";
import { render } from "./markdown.js";
import { isPoolOpen, refresh, togglePool, watchPool } from "./pool.js";
import { apiKey, askForKey, sampling, setUpSettings, systemPrompt } from "./settings.js";

const byId = (id) => document.getElementById(id);
const [log, thread, welcome, welcomeText, load, input, send, stop, model] =
  ["log", "thread", "welcome", "welcome-text", "load", "input", "send", "stop", "model"].map(byId);

let messages = []; // as the API takes them, without the system prompt
let running = null; // AbortController of the answer being written
let isReady = false;
let writeAgain = null; // the last answer once more

setUpSettings(connect);
setUpAttachments({ conversation: () => messages, changed: update });
connect();

byId("form").addEventListener("submit", (event) => { event.preventDefault(); submit(); });
stop.addEventListener("click", () => running?.abort());
byId("new-chat").addEventListener("click", newChat);
input.addEventListener("input", fit);
input.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  submit();
});
document.addEventListener("keydown", (event) => {
  if (byId("settings").open) return;
  if (event.key === "Escape" && running) running.abort();
  else if (event.key === "Escape" && isPoolOpen()) togglePool(false);
  const action = event.altKey && { KeyN: newChat, KeyB: togglePool, KeyR: () => writeAgain?.() }[event.code];
  if (action) { event.preventDefault(); action(); }
});

// The server

async function connect() {
  const state = await api.readiness();
  if (state.status !== "ready") {
    showLoading(state);
    setTimeout(connect, 1000);
    return;
  }
  load.hidden = true;
  try {
    showModels(await api.models(apiKey()));
    isReady = true;
    welcomeText.textContent = "Ask anything. The answer is written here, on this server." + invitation();
    watchPool({ isBusy: () => running !== null, onLost: connect });
  } catch (error) {
    welcomeText.textContent = error.message;
    if (error.status === 401) askForKey();
  }
  update();
}

const STAGES = {
  starting: "The server is starting.",
  downloading: "The model is being downloaded",
  loading: "The model is being loaded",
  stopping: "The server is stopping.",
  dead: "The engine has stopped working.",
  unreachable: "The server cannot be reached. Trying again…",
};

function showLoading(state) {
  isReady = false;
  const share = state.bytes_total ? state.bytes_done / state.bytes_total : 0;
  const percent = state.bytes_total ? `: ${Math.floor(100 * share)} %` : "";
  welcomeText.textContent = (STAGES[state.status] ?? state.status) + percent;
  load.hidden = !state.bytes_total;
  load.value = share;
  update();
}

function showModels(found) {
  const chosen = model.value;
  model.replaceChildren(...found.map(({ id }) => new Option(id.split("/").pop(), id)));
  if (found.some(({ id }) => id === chosen)) model.value = chosen;
  model.disabled = found.length < 2;
  model.title = model.value;
  document.title = `${model.selectedOptions[0].text} – chat`;
  setLimits(found[0].media);
  byId("facts").textContent = `${found[0].max_model_len.toLocaleString("en")} tokens fit into one conversation.`;
}

// The conversation

function newChat() {
  running?.abort();
  messages = [];
  writeAgain = null;
  clearAttachments();
  thread.replaceChildren(welcome);
  input.focus();
}

async function submit() {
  if (send.disabled || running) return;
  const content = takeContent(input.value.trim());
  input.value = "";
  fit();
  await ask(content);
}

async function ask(content) {
  const before = messages.length;
  thread.querySelector(".actions")?.remove(); // only the last answer can be written again
  writeAgain = null;
  welcome.remove();
  const turn = addTurn("user");
  turn.text.append(...shown(content));
  const answer = addTurn("assistant");
  answer.text.append(waiting());
  scroll(true);
  running = new AbortController();
  update();
  const again = () => {
    if (running) return;
    messages.length = before;
    turn.node.remove();
    answer.node.remove();
    ask(content);
  };
  try {
    await write(answer, [...messages, { role: "user", content }]);
  } catch (error) {
    if (answer.written) remember(content, answer.written);
    showFailure(answer, error, again);
  } finally {
    running = null;
    update();
    refresh();
    if (thread.contains(answer.node)) offer(answer, again);
    if (matchMedia("(pointer: fine)").matches) input.focus(); // on a phone it would open the keyboard
  }
}

function remember(question, answer) {
  messages.push({ role: "user", content: question }, { role: "assistant", content: answer });
}

async function write(answer, conversation) {
  const system = systemPrompt();
  const all = system ? [{ role: "system", content: system }, ...conversation] : conversation;
  const body = { model: model.value, messages: all, ...sampling() };
  const began = performance.now();
  let first = 0, last = 0, usage = null, finish = null;
  for await (const event of api.chat(body, { key: apiKey(), signal: running.signal })) {
    const choice = event.choices[0];
    usage = event.usage ?? usage;
    finish = choice?.finish_reason ?? finish;
    const { content, reasoning_content: thought } = choice?.delta ?? {};
    if (!content && !thought) continue;
    last = performance.now();
    first ||= last;
    if (thought) think(answer, thought);
    if (content) {
      answer.written += content;
      draw(answer);
    }
  }
  draw(answer);
  remember(conversation.at(-1).content, answer.written);
  answer.note(facts({ usage, finish, began, first, last }));
}

function facts({ usage, finish, began, first, last }) {
  const tokens = usage?.completion_tokens ?? 0;
  const parts = [`${tokens.toLocaleString("en")} ${tokens === 1 ? "token" : "tokens"}`];
  // What came in one piece says nothing about the rate.
  if (tokens > 1 && last - first > 20) parts.push(`${(1000 * (tokens - 1) / (last - first)).toFixed(1)} tokens/s`);
  if (first) parts.push(`first after ${((first - began) / 1000).toFixed(2)} s`);
  const cached = usage?.prompt_tokens_details?.cached_tokens;
  if (cached) parts.push(`${cached.toLocaleString("en")} of ${usage.prompt_tokens.toLocaleString("en")} prompt tokens reused`);
  if (finish === "length") parts.push("cut off at the longest answer");
  return parts.join(" · ");
}

/** Put under an answer what can be done with it. */
function offer(answer, again) {
  writeAgain = again;
  if (!answer.written) return;
  const copy = button("Copy", () => copyText(answer.written, copy));
  const row = document.createElement("div");
  row.className = "actions";
  row.append(copy, button("Write again", again));
  for (const each of row.children) each.className = "quiet";
  const follow = isAtEnd();
  answer.node.append(row);
  scroll(follow);
}

function showFailure(answer, error, again) {
  answer.text.querySelector(".waiting")?.remove();
  if (error.name === "AbortError") {
    answer.note("Stopped");
    return;
  }
  const box = document.createElement("div");
  box.className = "failure";
  box.role = "alert";
  box.append(error.message, document.createElement("br"), button("Try again", again));
  if (error.status === 401) box.append(button("Enter API key", askForKey));
  const follow = isAtEnd();
  answer.node.append(box);
  if (error.status === 401) askForKey();
  scroll(follow);
}

// Pieces of the page

function addTurn(role) {
  const node = document.createElement("article");
  node.className = `turn ${role}`;
  node.ariaLabel = role === "user" ? "You" : "Answer";
  const text = document.createElement("div");
  text.className = "text";
  node.append(text);
  thread.append(node);
  return { node, text, written: "", isDrawn: true, note: (words) => note(node, words) };
}

/** Show thinking apart from the answer, folded: whoever wants to read it can. */
function think(answer, words) {
  const follow = isAtEnd();
  if (!answer.thinking) {
    answer.thinking = document.createElement("details");
    answer.thinking.className = "thinking";
    const title = document.createElement("summary");
    title.textContent = "Thinking";
    answer.thinking.append(title, document.createElement("div"));
    answer.text.before(answer.thinking);
  }
  answer.thinking.lastChild.append(words);
  scroll(follow);
}

/** Draw an answer's text once per frame, however many tokens came in it. */
function draw(answer) {
  if (!answer.isDrawn) return;
  answer.isDrawn = false;
  requestAnimationFrame(() => {
    answer.isDrawn = true;
    const follow = isAtEnd();
    answer.text.replaceChildren(render(answer.written));
    scroll(follow);
  });
}

function note(node, words) {
  const line = document.createElement("p");
  line.className = "facts";
  line.textContent = words;
  const follow = isAtEnd();
  node.append(line);
  scroll(follow);
}

function waiting() {
  const dots = document.createElement("span");
  dots.className = "waiting";
  dots.ariaLabel = "Waiting for the answer";
  dots.append(...[0, 1, 2].map(() => document.createElement("i")));
  return dots;
}

function button(label, onClick) {
  const node = document.createElement("button");
  node.type = "button";
  node.textContent = label;
  node.addEventListener("click", onClick);
  return node;
}

function update() {
  send.hidden = running !== null;
  stop.hidden = running === null;
  send.disabled = !isReady || isReading() || !(input.value.trim() || hasAttachments());
}

function fit() {
  input.style.height = "auto";
  input.style.height = `${input.scrollHeight}px`;
  update();
}

function isAtEnd() {
  return log.scrollHeight - log.scrollTop - log.clientHeight < 80;
}

function scroll(follow) {
  if (follow) log.scrollTop = log.scrollHeight;
}
