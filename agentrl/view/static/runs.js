// Page: a table of the runs: how far each is, its newest values, and the settings in which they differ.

import { ask, badge, dot, duration, explain, figure, go, h, hideTip, joined, note, plural, progress, select, written } from "./dom.js";

const METRICS = ["val/success", "val/reward_mean", "rollout/success", "rollout/reward_mean", "val/loss", "train/loss", "time/step"];
const MOST_SETTINGS = 12;

const AT_ONCE = 8;

let root, runs, view, meanings, settings = {}, differing = [];

export async function render(page, allRuns, query) {
  root = page;
  runs = allRuns;
  view = { folder: query.folder ?? "", find: query.find ?? "", sort: query.sort ?? "", metric: query.metric ?? "", query,
    picked: new Set((query.runs ?? "").split("//").filter(Boolean)) };
  await load();
}

export async function grown(allRuns) { runs = allRuns; await load(); }

async function load() {
  const metrics = [...new Set([...METRICS, view.metric])].filter(Boolean).join(",");
  let given;
  [{ runs: given }, meanings] = await Promise.all([ask("runs", { last: metrics }), ask("meanings")]);
  runs = given;
  const names = visible().map((run) => run.name);
  if (names.length > AT_ONCE) draw(); // reading settings takes a while the first time
  for (let i = 0; names.length > AT_ONCE && i < names.length; i += AT_ONCE) await ask("settings", { runs: joined(names.slice(i, i + AT_ONCE)) });
  ({ runs: settings, differing } = names.length ? await ask("settings", { runs: joined(names) }) : { runs: {}, differing: [] });
  draw();
}

const folderOf = (run) => run.name.split("/").slice(0, -1).join("/");

function visible() {
  const words = view.find.toLowerCase().split(/\s+/).filter(Boolean);
  return runs.filter((run) => (!view.folder || folderOf(run) === view.folder) && words.every((word) => run.name.toLowerCase().includes(word)));
}

// A column: [name, heading, value of a run, how a cell is drawn].
function columns(shown) {
  const metrics = [...new Set([...METRICS, view.metric])].filter((name) => name && shown.some((run) => run.last[name] !== undefined));
  const state = (run) => h("span", {}, badge(run), run.error && h("small", { className: "why", title: run.error }, run.error));
  return [
    ["run", "run", (run) => run.name, (run) => h("a", { href: "#", title: `${run.path}\nits curves`, onclick: (event) => { event.preventDefault(); go("curves", { runs: run.name }); } }, run.name)],
    ["state", "state", (run) => run.state ?? "", state],
    ["step", "step", (run) => run.last_step ?? -1, steps],
    ...(shown.every((run) => run.eta === null) ? [] : [["to go", "to go", (run) => run.eta ?? Infinity, (run) => (run.eta === null ? "" : duration(run.eta))]]),
    ...metrics.map((name) => [name, explain(h("span", {}, name), name, meanings), (run) => run.last[name] ?? -Infinity, (run) => figure(run.last[name]), "number"]),
    ...differing.slice(0, MOST_SETTINGS).map((key) => [`=${key}`, h("span", { title: key }, lastPart(key)), (run) => settings[run.name]?.[key], (run) => written(settings[run.name]?.[key]), "setting"]),
  ];
}

const lastPart = (key) => (differing.filter((one) => one.split(".").at(-1) === key.split(".").at(-1)).length > 1 ? key : key.split(".").at(-1));

function steps(run) {
  const bar = h("i", { className: "done" });
  bar.style.width = `${run.total_steps ? Math.min(100, (run.last_step ?? 0) / run.total_steps * 100) : 0}%`;
  return h("span", { className: "steps", title: progress(run) }, `${run.last_step ?? 0}${run.total_steps ? ` / ${run.total_steps}` : ""}`,
    run.total_steps && h("i", { className: "all" }, bar));
}

function sorted(shown, given) {
  const column = given.find(([name]) => name === view.sort.replace(/^-/, ""));
  if (!column) return shown;
  const by = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a ?? "").localeCompare(String(b ?? ""), "en", { numeric: true }));
  const order = [...shown].sort((a, b) => by(column[2](a), column[2](b)));
  return view.sort.startsWith("-") ? order.reverse() : order;
}

function save() {
  const { folder, find, sort, metric } = view;
  note("runs", { ...view.query, runs: joined(view.picked), folder, find, sort, metric });
}

function draw() {
  if (document.body.dataset.page !== "runs") return; // another page was opened meanwhile
  hideTip();
  save();
  const shown = visible();
  const given = columns(shown);
  const head = ([name, heading, , , kind]) => h("th", { className: kind ?? "", onclick: () => { view.sort = view.sort === name ? `-${name}` : name; draw(); },
    "aria-sort": view.sort === name ? "ascending" : view.sort === `-${name}` ? "descending" : "none" }, heading);
  const table = h("table", {},
    h("thead", {}, h("tr", {}, h("th", {}, tickAll(shown)), given.map(head))),
    h("tbody", {}, sorted(shown, given).map((run) => h("tr", { className: view.picked.has(run.name) ? "on" : "" },
      h("td", {}, h("label", { className: "pick" }, tick(run), dot(run.name))), given.map(([, , , cell, kind]) => h("td", { className: kind ?? "" }, cell(run)))))));
  const more = differing.length - MOST_SETTINGS;
  const body = h("div", { className: "runs" }, shown.length ? table : h("p", { className: "empty" }, "No run is called that."),
    more > 0 && h("p", {}, h("small", {}, `and ${plural(more, "setting")} more that differ: see Settings`)));
  const focused = document.activeElement?.type === "search" && root.contains(document.activeElement);
  if (focused) root.querySelector(".runs").replaceWith(body);
  else root.replaceChildren(bar(), body);
}

function tick(run) {
  const box = h("input", { type: "checkbox", checked: view.picked.has(run.name), "aria-label": `choose ${run.name}`, onchange: () => {
    if (box.checked) view.picked.add(run.name); else view.picked.delete(run.name);
    draw();
  } });
  return box;
}

function tickAll(shown) {
  const box = h("input", { type: "checkbox", checked: shown.length > 0 && shown.every((run) => view.picked.has(run.name)), "aria-label": "choose all", onchange: () => {
    view.picked = new Set(box.checked ? shown.map((run) => run.name) : []);
    draw();
  } });
  return box;
}

function bar() {
  const folders = [...new Set(runs.map(folderOf))].filter((folder) => folder && runs.filter((run) => folderOf(run) === folder).length > 1);
  const find = h("input", { type: "search", placeholder: "Find a run", value: view.find, oninput: () => { view.find = find.value; load(); } });
  const metrics = [...new Set(runs.flatMap((run) => run.metrics))].sort();
  const picked = [...view.picked].filter((name) => runs.some((run) => run.name === name));
  const compare = (page) => () => go(page, { runs: joined(picked) });
  return h("div", { className: "bar" },
    folders.length > 0 && select("Folder", [["", "all"], ...folders.map((folder) => [folder, folder])], view.folder, (folder) => { view.folder = folder; load(); }),
    select("Metric", [["", "add one"], ...metrics.map((name) => [name, name])], view.metric, (metric) => { view.metric = metric; load(); }),
    h("span", { className: "grow" }),
    picked.length > 0 ? h("span", {}, plural(picked.length, "run")) : h("small", {}, "tick runs to compare them"),
    h("button", { disabled: !picked.length, onclick: compare("curves") }, "Curves"),
    h("button", { disabled: picked.length < 2, onclick: compare("settings") }, "Settings"),
    find);
}
