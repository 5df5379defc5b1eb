// A little Markdown, made into DOM nodes. No HTML is ever parsed, so text cannot become markup.
// Knows: fenced code, headings, lists, quotes, tables, rules, paragraphs; `code`, **bold**, *italic*, links.

import { copyText } from "./clipboard.js";

const INLINE =
  /`([^`\n]+)`|\*\*([^*\n]+(?:\*[^*\n]+)*)\*\*|\*([^*\s][^*\n]*)\*|\[([^\]\n]+)\]\((https?:\/\/[^\s)]+)\)|(https?:\/\/[^\s<>"')\]]+[^\s<>"')\].,;:!?])/g;

/** Return nodes for a text, whole or still growing. */
export function render(text) {
  const fragment = document.createDocumentFragment();
  const lines = text.split("\n");
  let at = 0;
  while (at < lines.length) at = block(lines, at, fragment);
  return fragment;
}

function block(lines, at, parent) {
  const line = lines[at];
  if (!line.trim()) return at + 1;
  const fence = /^\s*(```+|~~~+)\s*([\w+#.-]*)/.exec(line);
  if (fence) return code(lines, at, fence, parent);
  const heading = /^(#{1,6})\s+(.*)$/.exec(line);
  if (heading) {
    const level = Math.min(4, heading[1].length + 1);
    parent.append(element(`h${level}`, inline(heading[2])));
    return at + 1;
  }
  if (/^\s*>/.test(line)) return quote(lines, at, parent);
  if (isTable(lines, at)) return table(lines, at, parent);
  if (/^\s*([-*_])(\s*\1){2,}\s*$/.test(line)) {
    parent.append(document.createElement("hr"));
    return at + 1;
  }
  if (itemOf(line)) return list(lines, at, parent);
  return paragraph(lines, at, parent);
}

function code(lines, at, [, mark, language], parent) {
  const body = [];
  let next = at + 1;
  while (next < lines.length && !lines[next].trim().startsWith(mark)) body.push(lines[next++]);
  const text = body.join("\n");
  const copy = element("button", [document.createTextNode("Copy")]);
  copy.type = "button";
  copy.className = "quiet";
  copy.addEventListener("click", () => copyText(text, copy));
  const head = element("div", [element("span", [document.createTextNode(language || "text")]), copy]);
  head.className = "code-head";
  const pre = element("pre", [element("code", [document.createTextNode(text)])]);
  pre.tabIndex = 0; // so that the keyboard can scroll it
  const frame = element("div", [head, pre]);
  frame.className = "code";
  parent.append(frame);
  return next + 1;
}

function table(lines, at, parent) {
  const head = cellsOf(lines[at]);
  const aligned = cellsOf(lines[at + 1]).map((cell) => (/^:?-+:$/.test(cell) ? (cell[0] === ":" ? "center" : "right") : ""));
  const row = (cells, name) => element("tr", head.map((_, place) => {
    const cell = element(name, inline(cells[place] ?? ""));
    if (aligned[place]) cell.className = aligned[place];
    return cell;
  }));
  const body = [];
  let next = at + 2;
  while (next < lines.length && lines[next].includes("|") && lines[next].trim()) body.push(row(cellsOf(lines[next++]), "td"));
  const frame = element("div", [element("table", [element("thead", [row(head, "th")]), element("tbody", body)])]);
  frame.className = "table";
  frame.tabIndex = 0; // so that the keyboard can scroll it
  parent.append(frame);
  return next;
}

function isTable(lines, at) {
  return lines[at].includes("|") && /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/.test(lines[at + 1] ?? "") && lines[at + 1].includes("|");
}

function cellsOf(line) {
  return line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
}

function quote(lines, at, parent) {
  const inner = [];
  while (at < lines.length && /^\s*>/.test(lines[at])) inner.push(lines[at++].replace(/^\s*>\s?/, ""));
  parent.append(element("blockquote", [render(inner.join("\n"))]));
  return at;
}

function itemOf(line) {
  return /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/.exec(line);
}

function list(lines, at, parent) {
  const [, indent, mark] = itemOf(lines[at]);
  const isNumbered = /\d/.test(mark);
  const node = document.createElement(isNumbered ? "ol" : "ul");
  if (isNumbered) node.start = parseInt(mark, 10);
  while (at < lines.length) {
    const item = itemOf(lines[at]);
    if (!item || item[1].length < indent.length) break;
    if (item[1].length > indent.length && node.lastChild) {
      at = list(lines, at, node.lastChild);
      continue;
    }
    if (/\d/.test(item[2]) !== isNumbered) break;
    const parts = [item[3]];
    at += 1;
    while (at < lines.length && /^\s+\S/.test(lines[at]) && !itemOf(lines[at])) parts.push(lines[at++].trim());
    node.append(element("li", inline(parts.join(" "))));
    while (at + 1 < lines.length && !lines[at].trim() && itemOf(lines[at + 1])) at += 1;
  }
  parent.append(node);
  return at;
}

function paragraph(lines, at, parent) {
  const parts = [];
  while (at < lines.length && lines[at].trim() && (parts.length === 0 || !startsBlock(lines[at]))) parts.push(lines[at++]);
  const node = document.createElement("p");
  parts.forEach((part, index) => {
    if (index) node.append(document.createElement("br"));
    node.append(...inline(part));
  });
  parent.append(node);
  return at;
}

function startsBlock(line) {
  return /^\s*(```|~~~|>|#{1,6}\s)/.test(line) || itemOf(line);
}

function inline(text) {
  const nodes = [];
  let last = 0;
  for (const match of text.matchAll(INLINE)) {
    nodes.push(document.createTextNode(text.slice(last, match.index)), inlineNode(match));
    last = match.index + match[0].length;
  }
  nodes.push(document.createTextNode(text.slice(last)));
  return nodes;
}

function inlineNode([, codeText, bold, italic, label, address, bare]) {
  if (codeText !== undefined) return element("code", [document.createTextNode(codeText)]);
  if (bold !== undefined) return element("strong", inline(bold));
  if (italic !== undefined) return element("em", inline(italic));
  const link = element("a", [document.createTextNode(label ?? bare)]);
  link.href = address ?? bare;
  link.rel = "noopener noreferrer";
  link.target = "_blank";
  return link;
}

function element(name, children) {
  const node = document.createElement(name);
  node.append(...children);
  return node;
}
