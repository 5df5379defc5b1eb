// The meter in the header and the panel behind it: what the blocks of the KV cache do right now.

import * as api from "./api.js";

const byId = (id) => document.getElementById(id);
const count = (number) => number.toLocaleString("en");
const [toggle, panel, text] = ["blocks", "pool", "blocks-text"].map(byId);

const MOST_CELLS = 240; // a large pool shows several blocks in one cell
const FAST_MS = 500; // while something is watched
const SLOW_MS = 2000;

let watcher = { isBusy: () => false, onLost: () => {} };
let timer = 0;

/** Keep the meter up to date from now on; `onLost` is called when the server is no longer ready. */
export function watchPool(given) {
  watcher = given;
  refresh();
}

/** Read the numbers now, and again after a while. */
export async function refresh() {
  clearTimeout(timer);
  if (!document.hidden) await show();
  timer = setTimeout(refresh, watcher.isBusy() || !panel.hidden ? FAST_MS : SLOW_MS);
}

export function togglePool(open = panel.hidden) {
  if (open && toggle.hidden) return; // nothing is known yet
  panel.hidden = !open;
  toggle.ariaExpanded = String(open);
  if (open) refresh();
}

export function isPoolOpen() {
  return !panel.hidden;
}

toggle.addEventListener("click", () => togglePool());
byId("close-pool").addEventListener("click", () => { togglePool(false); toggle.focus(); });

async function show() {
  try {
    draw(await api.stats());
    toggle.hidden = false;
  } catch {
    toggle.hidden = true;
    togglePool(false);
    if ((await api.readiness()).status !== "ready") watcher.onLost();
  }
}

function draw(stats) {
  const gpu = blocks(stats, "gpu");
  text.textContent = `${count(gpu.total - gpu.used)} of ${count(gpu.total)} blocks free`;
  byId("meter-used").style.flexGrow = gpu.used / gpu.total;
  byId("meter-cached").style.flexGrow = gpu.cached / gpu.total;
  byId("meter-free").style.flexGrow = gpu.free / gpu.total;
  if (panel.hidden) return;
  for (const kind of ["used", "cached", "free"]) byId(`pool-${kind}`).textContent = count(gpu[kind]);
  drawCells(byId("cells"), gpu, "Blocks");
  const swap = blocks(stats, "cpu");
  byId("swap").hidden = byId("swapped").hidden = !swap.total;
  if (swap.total) {
    byId("pool-swapped").textContent = `${count(swap.used)} of ${count(swap.total)}`;
    drawCells(byId("swap-cells"), swap, "Swap space");
  }
  byId("pool-facts").textContent = facts(stats);
}

/** Return how many blocks are what; together they are all. Cached ones may be taken at any time. */
function blocks(stats, where) {
  const [total, used, cached] = ["total", "used", "cached"].map((kind) => stats[`num_${kind}_${where}_blocks`]);
  return { total, used, cached, free: total - used - cached };
}

function drawCells(box, pool, name) {
  const number = Math.min(pool.total, MOST_CELLS);
  while (box.childElementCount > number) box.lastChild.remove();
  while (box.childElementCount < number) box.append(document.createElement("i"));
  const cells = (blocks) => (blocks ? Math.max(1, Math.round((blocks / pool.total) * number)) : 0);
  const used = cells(pool.used);
  const cached = used + cells(pool.cached);
  [...box.children].forEach((cell, place) => {
    cell.className = place < used ? "used" : place < cached ? "cached" : "free";
  });
  box.ariaLabel = `${name}: ${count(pool.used)} used, ${count(pool.cached)} cached, ${count(pool.free)} free`;
}

function facts(stats) {
  const parts = [
    `${count(stats.block_size)} tokens in a block`,
    `${count(stats.num_requests_running)} running`,
    `${count(stats.num_requests_waiting)} waiting`,
  ];
  if (stats.num_total_cpu_blocks) parts.push(`${count(stats.num_requests_swapped)} swapped out`);
  const queries = stats.prefix_cache_queries;
  if (queries) parts.push(`${Math.round((100 * stats.prefix_cache_hits) / queries)} % of prompt tokens reused`);
  if (stats.num_preemptions) parts.push(`${count(stats.num_preemptions)} preemptions`);
  return parts.join(" · ");
}
