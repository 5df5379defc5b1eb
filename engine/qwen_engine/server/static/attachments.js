// Pictures and videos of the message being written: picked, pasted or dropped, checked against what
// the server takes before anything is sent, shown small, and sent as data URLs.

const byId = (id) => document.getElementById(id);
const [row, note, picker, attach, input] = ["attached", "attach-note", "picker", "attach", "input"].map(byId);
const FIELDS = { image: "image_url", video: "video_url" };
const NOUNS = { image: ["picture", "pictures"], video: ["video", "videos"] };
const TYPES = picker.accept.split(",");

let limits = null; // of one conversation; null: the model reads text only
let attached = []; // parts of the message, as the API takes them, with their names
let conversation = () => []; // the messages so far, which are sent again with each new one
let changed = () => {};

export function setUpAttachments(options) {
  ({ conversation, changed } = options);
  attach.addEventListener("click", () => picker.click());
  picker.addEventListener("change", () => {
    const files = [...picker.files];
    picker.value = "";
    add(files);
  });
  input.addEventListener("paste", (event) => {
    const { files, types } = event.clipboardData;
    if (!files.length || types.includes("text/plain")) return; // a table, with its picture
    event.preventDefault();
    add([...files]);
  });
  document.addEventListener("dragover", (event) => {
    if (!event.dataTransfer.types.includes("Files")) return;
    event.preventDefault();
    document.body.classList.add("dropping");
  });
  document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) endDrop(); });
  document.addEventListener("drop", (event) => {
    endDrop();
    if (!event.dataTransfer.files.length) return;
    event.preventDefault();
    add([...event.dataTransfer.files]);
  });
}

/** Say what the chosen model takes; null: text only. */
export function setLimits(found) {
  limits = found ?? null;
  attach.hidden = !limits;
  if (limits) attach.title = `Add up to ${most("image")} and ${most("video")}, ${size(room())} in all`;
}

export function hasAttachments() {
  return attached.length > 0;
}

/** Some files are still being read. */
export function isReading() {
  return attached.some(({ part }) => !part[part.type].url);
}

/** Say what can be added, for those who see no tooltip. */
export function invitation() {
  return limits ? ` Pictures and short videos can be added, ${size(room())} in all.` : "";
}

/** Return the content of a message with what is attached, which is so no more. */
export function takeContent(text) {
  if (!attached.length) return text;
  const parts = attached.map(({ part }) => part);
  clearAttachments();
  return text ? [...parts, { type: "text", text }] : parts;
}

export function clearAttachments() {
  attached = [];
  say("");
  draw();
}

/** Return the nodes that show a message's content. */
export function shown(content) {
  if (typeof content === "string") return [content];
  const media = content.filter((part) => part.type !== "text");
  const strip = document.createElement("div");
  strip.className = "media";
  strip.append(...media.map((part) => thumbnail(part, "")));
  return [strip, ...content.filter((part) => part.type === "text").map((part) => part.text)];
}

async function add(files) {
  say("");
  for (const file of files) {
    const why = refusal(file);
    if (why) {
      say(why);
      continue;
    }
    const kind = kindOf(file), field = FIELDS[kind];
    const entry = { name: file.name, part: { type: field, [field]: { url: "" } }, bytes: file.size };
    attached.push(entry); // counted before it is read, so that two cannot take one place
    changed();
    try {
      entry.part[field].url = await read(file);
    } catch {
      attached = attached.filter((each) => each !== entry);
      say(`${file.name} cannot be read.`);
    }
    draw();
  }
}

/** Say why a file cannot be sent; empty if it can. */
function refusal(file) {
  if (!limits) return "This model reads text only.";
  if (file.type === "image/svg+xml") return `${file.name} is a drawing (SVG); save it as PNG.`;
  if (!TYPES.includes(file.type)) return `${file.name} is neither a picture nor a video that can be read.`;
  const kind = kindOf(file);
  if (count(kind) >= limits[kind]) return `${file.name} is too many: one conversation takes ${most(kind)}.`;
  const left = room() - used();
  if (file.size > left) return `${file.name} is too large, ${size(file.size)}: ${size(Math.max(0, left))} of ${size(room())} are left in this conversation.`;
  return "";
}

function kindOf(file) {
  return file.type.startsWith("video/") ? "video" : "image";
}

/** All parts that the next request would carry. */
function parts() {
  const earlier = conversation().flatMap(({ content }) => (typeof content === "string" ? [] : content));
  return [...earlier, ...attached.map(({ part }) => part)];
}

function count(kind) {
  return parts().filter(({ type }) => type === FIELDS[kind]).length;
}

/** Bytes of files that one request may carry: base64 makes four of three, and there is text too. */
function room() {
  return Math.floor(0.74 * limits.max_request_bytes);
}

function used() {
  const sent = parts().reduce((sum, part) => sum + (part[part.type]?.url?.length ?? 0), 0);
  const unread = attached.filter(({ part }) => !part[part.type].url);
  return 0.75 * sent + unread.reduce((sum, { bytes }) => sum + bytes, 0);
}

function read(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

function draw() {
  const ready = attached.filter(({ part }) => part[part.type].url);
  row.replaceChildren(...ready.map(item));
  row.hidden = !ready.length;
  changed();
}

function item(entry) {
  const node = document.createElement("div");
  const remove = document.createElement("button");
  node.className = "thumb";
  remove.type = "button";
  remove.textContent = "×";
  remove.ariaLabel = remove.title = `Remove ${entry.name}`;
  remove.addEventListener("click", () => {
    attached = attached.filter((each) => each !== entry);
    say("");
    draw();
    input.focus();
  });
  node.append(thumbnail(entry.part, entry.name), remove);
  return node;
}

function thumbnail(part, name) {
  const isVideo = part.type === FIELDS.video;
  const node = document.createElement(isVideo ? "video" : "img");
  node.src = part[part.type].url;
  if (isVideo) node.controls = !name; // small ones are only looked at
  if (isVideo) node.muted = true;
  else node.alt = name || "Picture";
  node.title = name;
  return node;
}

function say(words) {
  note.textContent = words;
  note.hidden = !words;
}

function endDrop() {
  document.body.classList.remove("dropping");
}

function most(kind) {
  const [one, many] = NOUNS[kind];
  return limits[kind] === 1 ? `1 ${one}` : `${limits[kind]} ${many}`;
}

function size(bytes) {
  return bytes < 1e5 ? `${Math.ceil(bytes / 1e3)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}
