// Page: every metric as a small chart, runs laid over one another.

import { ask, badge, chosen, dot, explain, figure, go, h, hideTip, joined, note, plural, recall, remember, seconds, select, short, showTip } from "./dom.js";
import { Chart } from "./chart.js";

const HIGHLIGHTS = [
  "rollout/reward_mean", "rollout/success", "val/success", "val/reward_mean", "rollout/turns_mean", "tools/calls",
  "tools/model_error", "rollout/response_tokens_mean", "rollout/zero_variance_groups", "actor/entropy",
  "actor/ppo_kl", "actor/kl_loss", "actor/grad_norm", "rollout_gap/mean", "time/step",
];
const HEIGHT = 150;
// What the horizontal axis counts, and how its figures are written.
const AXES = { step: (x) => x.toLocaleString("en"), tokens: short, time: seconds };
const OPEN = new Set(["Highlights"]);
const MOST_RUNS = 16; // in one chart, unless they were chosen
const MOST_NAMES = 12; // in the legend

let page, all, runs, view, seen, charts, meanings;

export async function render(root, allRuns, query) {
  page = root;
  all = allRuns;
  view = {
    query,
    weight: Number(query.smooth ?? recall("smooth", 0)),
    log: query.log === "1",
    axis: AXES[query.axis] ? query.axis : "step",
    find: query.find ?? "",
  };
  choose();
  meanings = await ask("meanings");
  const body = h("div", { className: "curves" });
  page.replaceChildren(h("div", { className: "bar" }, legend(), h("span", { className: "grow" }), ...controls()), body);
  draw(body);
}

// New points are drawn into the charts there are; new runs or metrics need new ones.
export async function grown(allRuns) {
  const before = JSON.stringify([all.map((run) => run.name), names()]);
  all = allRuns;
  choose();
  if (JSON.stringify([all.map((run) => run.name), names()]) === before) {
    await Promise.all([...charts.keys()].map((name) => fill(page.querySelector(`figure[data-metric="${CSS.escape(name)}"]`))));
    return;
  }
  meanings = await ask("meanings");
  page.querySelector(".legend")?.replaceWith(legend());
  draw(page.querySelector(".curves"));
}

function choose() {
  const found = chosen(all, view.query);
  runs = view.query.runs ? found : found.slice(0, MOST_RUNS);
}

const names = () => [...new Set(runs.flatMap((run) => run.metrics))].sort();

export function key(name) {
  if (name !== "l") return false;
  page.querySelector("#log").click();
  return true;
}

function save() {
  const { runs: only, run, split, step } = view.query;
  note("curves", { runs: only, run, split, step, smooth: view.weight || "", log: view.log ? 1 : "", axis: view.axis === "step" ? "" : view.axis, find: view.find });
}

function redraw() { save(); draw(page.querySelector(".curves")); }

// The runs, to choose from; of many only the shown ones: the table has all.
function legend() {
  if (all.length === 1) return h("div", { className: "legend" });
  const offered = all.length > MOST_NAMES ? runs.slice(0, MOST_NAMES) : all;
  const left = all.length - offered.length;
  return h("div", { className: "legend" }, offered.map((run) => {
    const box = h("input", { type: "checkbox", checked: runs.includes(run), onchange: () => {
      const kept = all.filter((one) => (one === run ? box.checked : runs.includes(one)));
      if (!kept.length) { box.checked = true; return; }
      view.query = { ...view.query, runs: kept.length === all.length ? "" : joined(kept.map((one) => one.name)) };
      choose();
      page.querySelector(".legend").replaceWith(legend());
      redraw();
    } });
    return h("label", { title: run.path }, box, dot(run.name), run.name, run.state && run.state !== "finished" && badge(run));
  }), left > 0 && h("a", { href: "#runs" }, `${plural(left, "run")} more`));
}

function controls() {
  const shown = h("output", {}, view.weight ? view.weight.toFixed(2) : "off");
  const slider = h("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: view.weight, oninput: () => {
    view.weight = Number(slider.value);
    shown.textContent = view.weight ? view.weight.toFixed(2) : "off";
    remember("smooth", view.weight);
    redraw();
  } });
  const log = h("input", { type: "checkbox", id: "log", checked: view.log, onchange: () => { view.log = log.checked; redraw(); } });
  const find = h("input", { type: "search", placeholder: "Find a metric", value: view.find, oninput: () => { view.find = find.value; redraw(); } });
  return [
    select("Over", Object.keys(AXES).map((axis) => [axis, axis]), view.axis, (axis) => { view.axis = axis; redraw(); }),
    h("label", { className: "field" }, h("span", {}, "Smoothing"), slider, shown),
    h("label", { className: "field" }, log, h("span", {}, "Log axis")),
    find,
  ];
}

// Sections of metrics: what matters first, then by the first part of the name.
function sections() {
  const known = names();
  const wanted = view.find.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = known.filter((name) => wanted.every((word) => name.toLowerCase().includes(word)));
  if (wanted.length) return [["Found", fits.sort()]];
  const found = [["Highlights", HIGHLIGHTS.filter((name) => known.includes(name))]];
  for (const group of [...new Set(fits.map((name) => name.split("/")[0]))].sort()) {
    found.push([group, fits.filter((name) => name.split("/")[0] === group).sort()]);
  }
  return found.filter(([, metrics]) => metrics.length);
}

function draw(body) {
  charts = new Map();
  seen?.disconnect();
  seen = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) { seen.unobserve(entry.target); fill(entry.target); }
  }, { rootMargin: "300px" });
  const found = sections();
  if (!found.length) {
    const why = view.find ? "No metric is called that." : "No metrics yet: the run has no metrics.jsonl.";
    body.replaceChildren(h("p", { className: "empty" }, why));
    return;
  }
  const kept = body.scrollTop;
  body.replaceChildren(...found.map(([name, metrics]) => section(name, metrics)));
  body.scrollTop = kept;
}

function section(name, metrics) {
  const grid = h("div", { className: "grid" });
  const open = OPEN.has(name) || name === "Found";
  const box = h("details", { open }, h("summary", {}, h("h2", {}, name), h("small", {}, metrics.length)), grid);
  const unfold = () => {
    if (!box.open || grid.children.length) return;
    grid.append(...metrics.map((metric) => h("figure", { data: { metric } },
      h("figcaption", {}, explain(h("span", {}, metric.startsWith(`${name}/`) ? metric.slice(name.length + 1) : metric), metric, meanings), h("small", {})),
      h("div", { className: "plot" }))));
    for (const figure of grid.children) seen.observe(figure);
  };
  box.addEventListener("toggle", () => { if (box.open) OPEN.add(name); else OPEN.delete(name); unfold(); });
  unfold();
  return box;
}

async function fill(box) {
  const name = box.dataset.metric;
  const shown = runs.filter((run) => run.metrics.includes(name)).map((run) => run.name);
  const answer = await ask("metrics", { runs: joined(shown), names: name, axis: view.axis === "step" ? "" : view.axis });
  const lines = shown.map((run) => { const [steps, values, xs] = answer[run]?.[name] ?? [[], []]; return { run, steps, values, xs }; });
  const plot = box.querySelector(".plot");
  const chart = new Chart(plot.clientWidth || 300, HEIGHT, lines, view, AXES[view.axis]);
  plot.replaceChildren(chart.element);
  const last = lines.filter((line) => line.values.length).map((line) => figure(line.values.at(-1)));
  box.querySelector("figcaption small").textContent = last.length === 1 ? last[0] : "";
  charts.set(name, chart);
  chart.element.addEventListener("mousemove", (event) => hover(chart, event));
  chart.element.addEventListener("mouseleave", () => { hideTip(); for (const other of charts.values()) other.draw(null); });
  chart.element.addEventListener("click", (event) => openStep(name, chart, event));
}

function hover(chart, event) {
  const pointed = chart.at(event.offsetX);
  const near = chart.near(pointed);
  if (!near.length) return;
  const away = ({ line, at }) => Math.abs(line.xs[at] - pointed);
  const { line: closest, at: point } = near.reduce((best, one) => (away(one) < away(best) ? one : best));
  for (const other of charts.values()) other.draw(closest.xs[point]);
  const where = view.axis === "step" ? "" : ` · ${AXES[view.axis](closest.xs[point])}`;
  showTip(event, h("b", {}, `step ${closest.steps[point]}${where}`), h("dl", {}, near.flatMap(({ line, at }) => {
    const raw = figure(line.values[at]), even = figure(line.smoothed[at]);
    return [h("dt", {}, dot(line.run), runs.length > 1 ? line.run : ""), h("dd", {}, raw === even ? raw : `${even} (${raw})`)];
  })));
}

// A point leads to the conversations it is the mean of.
function openStep(name, chart, event) {
  const { line, at } = chart.near(chart.at(event.offsetX))[0] ?? {};
  if (!line) return;
  const split = name.startsWith("val/") ? "validation" : "rollout";
  if (runs.find((run) => run.name === line.run)?.splits[split].includes(line.steps[at])) go("conversations", { run: line.run, split, step: line.steps[at] });
}
