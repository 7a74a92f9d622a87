// The frame: which page is shown, the keys, light and dark.

import { $, address, ask, badge, go, h, hideTip, link, progress, recall, remember, runColour, toGo } from "./dom.js";
import * as table from "./runs.js";
import * as curves from "./curves.js";
import * as conversations from "./conversations.js";
import * as timeline from "./timeline.js";
import * as tasks from "./tasks.js";
import * as settings from "./settings.js";

const PAGES = { runs: table, curves, conversations, timeline, tasks, settings };
const NAMES = { runs: "Runs", curves: "Curves", conversations: "Conversations", timeline: "Timeline", tasks: "Tasks", settings: "Settings" };
const REFRESH = 5000;

const KEYS = [
  ["1 2 3 4 5 6", "runs, curves, conversations, timeline, tasks, settings"],
  ["[ ]", "step before, step after"],
  ["j k", "next, previous conversation"],
  ["c", "a second conversation beside the first"],
  ["s", "save the conversation as a file"],
  ["m", "as a chat, or tokens by probability, advantage, teacher or what is trained"],
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

// Every page gets the selection of the last one.
function turnTo(page) {
  const { runs: only, run, split, step } = address().query;
  go(page, { runs: only, run, split, step });
}

function tabs() {
  $("tabs").replaceChildren(...Object.entries(NAMES).map(([page, name]) =>
    h("a", { href: link(page, {}), data: { page }, onclick: (event) => { event.preventDefault(); turnTo(page); } }, name)));
}

// One run with its state, or how many there are and how many of them run.
function title() {
  for (const run of runs) runColour(run.name); // colours in the order of the runs
  const running = runs.filter((run) => run.state === "running").length;
  const single = runs.length === 1 ? runs[0] : null;
  $("title").replaceChildren(...(single ? [single.name, " ", single.state ? badge(single) : "", " ", h("small", {}, [single.last_step !== null && progress(single), toGo(single)].filter(Boolean).join(" · "))]
    : [`${runs.length} runs`, running ? h("small", {}, ` ${running} running`) : ""]));
  $("title").title = runs.map((run) => run.path).slice(0, 30).join("\n");
  document.title = `${single ? single.name : "runs"} · agentrl`;
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
  if (page) turnTo(page);
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
  if (JSON.stringify(runs) === before) return;
  title();
  queue = queue.then(() => shown?.grown?.(runs)).catch(() => {});
  await queue;
}

async function start() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  paint(recall("theme", dark ? "dark" : "light"));
  runs = (await ask("runs")).runs;
  title();
  tabs();
  $("theme").onclick = swapTheme;
  $("keys").onclick = help;
  $("help").onclick = () => $("help").close();
  addEventListener("hashchange", show);
  addEventListener("keydown", onKey);
  addEventListener("scroll", hideTip, true);
  let resizing;
  addEventListener("resize", () => { clearTimeout(resizing); resizing = setTimeout(show, 150); });
  const first = runs.length > 1 ? "runs" : runs[0]?.metrics.length === 0 && runs[0].splits.rollout.length ? "conversations" : "curves";
  if (!location.hash) go(first, {});
  else await show();
  setInterval(() => follow().catch(() => {}), REFRESH);
}

start().catch((error) => $("page").replaceChildren(h("p", { className: "empty" }, error.message)));
