// Page: the mean reward of each task (row) by step: which are never solved, always solved, or change.

import { ask, count, figure, go, h, named, note, place, plural, select } from "./dom.js";

const KINDS = [["changing", "changing"], ["never", "never solved"], ["always", "always solved"]];
const PAGE = 200, MOST_STEPS = 40;

let root, runs, state;

export async function render(page, allRuns, query) {
  root = page;
  runs = allRuns;
  const { run, split, steps } = place(runs, query);
  state = { ...query, run, split, offset: Number(query.offset ?? 0) };
  note("tasks", state);
  if (!steps.length) {
    page.replaceChildren(bar({}), h("p", { className: "empty" }, `No ${split} trajectories here. trainer.${split}_data_dir is the folder that a run writes them to.`));
    return;
  }
  draw(await ask("tasks", { run, split, kind: query.kind, offset: state.offset, limit: PAGE }));
}

export async function grown(allRuns) { await render(root, allRuns, state); }

const change = (what) => go("tasks", { ...state, offset: "", ...what });

function bar(kinds) {
  const all = Object.values(kinds).reduce((sum, n) => sum + n, 0);
  const splits = Object.entries(named(runs, state.run).splits).filter(([, found]) => found.length).map(([name]) => [name, name === "rollout" ? "training" : name]);
  return h("div", { className: "bar" },
    runs.length > 1 && select("Run", runs.map((run) => [run.name, run.name]), state.run, (run) => change({ run, split: "" })),
    splits.length > 1 && select("Of", splits, state.split, (split) => change({ split })),
    select("Tasks", [["", `all (${count(all)})`], ...KINDS.map(([kind, name]) => [kind, `${name} (${count(kinds[kind] ?? 0)})`])], state.kind ?? "", (kind) => change({ kind })));
}

function draw({ total, rows, kinds }) {
  const steps = [...new Set(rows.flatMap((row) => Object.keys(row.means)))].map(Number).sort((a, b) => a - b).slice(-MOST_STEPS);
  const turn = (offset, label) => h("button", { disabled: offset < 0 || offset >= total, onclick: () => change({ offset }) }, label);
  root.replaceChildren(bar(kinds), h("div", { className: "settings tasks" },
    h("table", {},
      h("thead", {}, h("tr", {}, h("th", {}, "task"), steps.map((step) => h("th", {}, String(step))))),
      h("tbody", {}, rows.map((row) => h("tr", {}, h("td", {}, opened(row.uid)), steps.map((step) => cell(row, step)))))),
    h("p", {}, plural(total, "task"), " ", turn(state.offset - PAGE, "before"), turn(state.offset + PAGE, "next"))));
}

function opened(uid) {
  const { run, split } = state;
  return h("a", { href: "#", title: "its conversations", onclick: (event) => { event.preventDefault(); go("conversations", { run, split, step: "all", uid }); } }, uid);
}

function cell({ uid, means }, step) {
  const mean = means[step], { run, split } = state;
  if (mean === undefined) return h("td", {});
  const shown = h("td", { className: "mean", title: `step ${step}`, onclick: () => go("conversations", { run, split, step, uid }) }, figure(mean));
  shown.style.setProperty("--share", `${Math.max(0, Math.min(1, mean)) * 60}%`);
  return shown;
}
