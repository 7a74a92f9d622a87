// The frame: which page is shown, the keys, light and dark.

import { $, address, ask, go, h, link, recall, remember, hideTip } from "./dom.js";
import * as curves from "./curves.js";
import * as conversations from "./conversations.js";
import * as timeline from "./timeline.js";
import * as settings from "./settings.js";

const PAGES = { curves, conversations, timeline, settings };
const NAMES = { curves: "Curves", conversations: "Conversations", timeline: "Timeline", settings: "Settings" };
const REFRESH = 5000;

const KEYS = [
  ["1 2 3 4", "curves, conversations, timeline, settings"],
  ["[ ]", "step before, step after"],
  ["j k", "next, previous conversation"],
  ["c", "a second conversation beside the first"],
  ["s", "save the conversation as a file"],
  ["m", "colour tokens by probability, advantage or what is trained"],
  ["/", "search"],
  ["t", "light or dark"],
  ["Esc", "close, or leave a field"],
];

let runs = [];
let shown = null;

// One after the other: a page that is still loading must not draw over the next.
let queue = Promise.resolve();
const show = () => { queue = queue.then(draw); return queue; };

async function draw() {
  hideTip();
  const { page, query } = address();
  const name = PAGES[page] ? page : "curves";
  document.body.dataset.page = name;
  for (const tab of $("tabs").children) tab.toggleAttribute("aria-current", tab.dataset.page === name);
  try {
    shown = PAGES[name];
    await shown.render($("page"), runs, query);
  } catch (error) {
    $("page").replaceChildren(h("p", { className: "empty" }, error.message));
  }
  document.body.dataset.ready = "yes";
}

function tabs() {
  const current = address().query;
  const kept = { run: current.run, split: current.split, step: current.step };
  $("tabs").replaceChildren(...Object.entries(NAMES).map(([page, name]) =>
    h("a", { href: link(page, page === "curves" || page === "settings" ? {} : kept), data: { page } }, name)));
}

function paint(theme) {
  document.documentElement.dataset.theme = theme;
  $("theme").textContent = theme === "dark" ? "☾" : "☀";
}

function swapTheme() {
  const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  remember("theme", next);
  paint(next);
  show();
}

function help() {
  const rows = KEYS.map(([keys, what]) => h("tr", {},
    h("td", {}, keys.split(" ").map((key) => h("kbd", {}, key))), h("td", {}, what)));
  $("help").replaceChildren(h("h2", {}, "Keys"), h("table", {}, rows));
  $("help").showModal();
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) && !/^(range|checkbox)$/.test(event.target.type);
  if (event.key === "Escape") { document.activeElement?.blur(); shown?.key?.("Escape"); return; }
  if (typing || $("help").open) return;
  const page = Object.keys(PAGES)[Number(event.key) - 1];
  if (page) location.hash = [...$("tabs").children].find((tab) => tab.dataset.page === page).getAttribute("href");
  else if (event.key === "t") swapTheme();
  else if (event.key === "?") help();
  else if (event.key === "/") document.querySelector("input[type=search]")?.focus();
  else if (!shown?.key?.(event.key)) return;
  event.preventDefault();
}

// A run may still write while the page is open.
async function follow() {
  if (document.hidden) return;
  const before = JSON.stringify(runs);
  runs.splice(0, runs.length, ...(await ask("runs")).runs);
  if (JSON.stringify(runs) !== before) shown?.grown?.(runs);
}

async function start() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  paint(recall("theme", dark ? "dark" : "light"));
  runs = (await ask("runs")).runs;
  const names = runs.map((run) => run.name);
  $("title").textContent = names.length === 1 ? names[0] : `${names.length} runs`;
  $("title").title = runs.map((run) => run.path).join("\n");
  document.title = `${names.length === 1 ? names[0] : "runs"} · agentrl`;
  tabs();
  $("theme").onclick = swapTheme;
  $("keys").onclick = help;
  $("help").onclick = () => $("help").close();
  addEventListener("hashchange", () => { tabs(); show(); });
  addEventListener("keydown", onKey);
  addEventListener("scroll", hideTip, true);
  let resizing;
  addEventListener("resize", () => { clearTimeout(resizing); resizing = setTimeout(show, 150); });
  const hasCurves = runs.some((run) => run.metrics.length);
  if (!location.hash && !hasCurves) go("conversations", {});
  else await show();
  setInterval(() => follow().catch(() => {}), REFRESH);
}

start().catch((error) => $("page").replaceChildren(h("p", { className: "empty" }, error.message)));
