// Copies a text and says so on the button.

export async function copyText(text, button) {
  const label = button.textContent;
  button.textContent = (await copied(text)) ? "Copied" : "Not allowed";
  setTimeout(() => { button.textContent = label; }, 1500);
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copiedFromField(text);
  }
}

/** Without https browsers have no clipboard object, but they copy what is selected. */
function copiedFromField(text) {
  const before = document.activeElement;
  const field = document.createElement("textarea");
  field.value = text;
  field.className = "off-screen";
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  before?.focus();
  return done;
}
