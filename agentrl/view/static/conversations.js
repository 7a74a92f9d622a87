// Page: the trajectories of a step (or of all), filtered, and one or two of them read in full.

import { ask, count, figure, h, named, note, place, plural, recall, remember, seconds, select, signed, stepper } from "./dom.js";
import { Conversation, MODES } from "./conversation.js";
import { save as saveFile } from "./export.js";

const PAGE = 200;
const SORTS = [
  ["", "as sampled"], ["-reward", "reward, best first"], ["reward", "reward, worst first"], ["-advantage", "advantage, highest first"], ["advantage", "advantage, lowest first"], ["-seconds", "slowest first"],
  ["-tokens", "longest first"], ["-turns", "most turns"], ["-calls", "most calls"], ["-failed", "most failed calls"],
];
const FILTERS = ["uid", "text", "reward_min", "reward_max", "turns_min", "turns_max", "outcome", "finish", "sort", "group"];

let root, runs, state, list, rows, total, panes;
let reading = 0;

export async function render(page, allRuns, query) {
  root = page;
  runs = allRuns;
  const { run, split, steps } = place(runs, query);
  state = { ...query, run, split, step: query.step ?? String(steps.at(-1) ?? ""), mode: MODES.includes(query.mode) ? query.mode : recall("mode", MODES[0]) };
  if (!steps.length) {
    page.replaceChildren(bar([]), h("p", { className: "empty" },
      `No ${split} trajectories here. trainer.${split}_data_dir is the folder that a run writes them to.`));
    return;
  }
  list = h("div", { className: "rows", tabIndex: 0, role: "listbox", "aria-label": "Trajectories" });
  list.addEventListener("scroll", more);
  const side = h("aside", {}, filters(), h("div", { className: "sum", id: "sum" }), list);
  panes = h("section", { className: "panes" });
  page.replaceChildren(bar(steps), h("div", { className: "split" }, side, panes));
  await load();
  const first = state.line !== undefined ? await placed() : 0;
  if (rows.length) await open(Math.max(0, first));
}

// A step was added: it can be chosen, and what is read stays.
export function grown(allRuns) {
  runs = allRuns;
  root.querySelector(".bar")?.replaceWith(bar(named(runs, state.run).splits[state.split]));
}

export function key(name) {
  const at = rows?.findIndex(isOpen) ?? -1;
  const steps = named(runs, state.run).splits[state.split];
  const by = steps.indexOf(Number(state.step)) + { "[": -1, "]": 1 }[name];
  if (name === "j") open(Math.min(at + 1, rows.length - 1));
  else if (name === "k") open(Math.max(at - 1, 0));
  else if (name === "c") compare();
  else if (name === "s") share();
  else if (name === "m") recolour(MODES[(MODES.indexOf(state.mode) + 1) % MODES.length]);
  else if (name === "[" || name === "]") { if (steps[by] !== undefined) change({ step: String(steps[by]), line: undefined, at: undefined }); }
  else if (name === "Escape") { if (state.other !== undefined) compare(); }
  else return false;
  return true;
}

const isOpen = (row) => row.line === Number(state.line) && row.step === Number(state.at ?? state.step);
const where = () => ({ run: state.run, split: state.split });

function save() { note("conversations", state); }

function change(what) {
  Object.assign(state, what);
  save();
  return render(root, runs, state);
}

// ---- what is looked at ----

function bar(steps) {
  const splits = Object.entries(named(runs, state.run).splits).filter(([, found]) => found.length).map(([name]) => [name, name === "rollout" ? "training" : name]);
  const fresh = { step: undefined, line: undefined, at: undefined, other: undefined };
  const every = h("input", { type: "checkbox", checked: state.step === "all", disabled: steps.length < 2,
    onchange: () => change({ step: every.checked ? "all" : String(steps.at(-1)), line: undefined, at: undefined }) });
  return h("div", { className: "bar" },
    runs.length > 1 && select("Run", runs.map((run) => [run.name, run.name]), state.run, (run) => change({ ...fresh, run })),
    splits.length > 1 && select("Of", splits, state.split, (split) => change({ ...fresh, split })),
    steps.length > 0 && state.step !== "all" && stepper("Step", steps, Number(state.step), (step) => change({ step: String(step), line: undefined, at: undefined })),
    steps.length > 1 && h("label", { className: "field" }, every, h("span", {}, "all steps")),
    h("span", { className: "grow" }),
    h("span", { className: "modes", role: "group", "aria-label": "Show as" }, MODES.map((mode) =>
      h("button", { className: mode === state.mode ? "on" : "", data: { mode }, onclick: () => recolour(mode) }, mode))),
    h("button", { className: state.other === undefined ? "" : "on", onclick: compare, title: "A second one beside it (c)" }, "Side by side"),
    h("button", { onclick: share, title: "Write this conversation to a file that any browser shows (s)" }, "Save"));
}

function filters() {
  const field = (name, kind, hint) => h("input", { type: kind, placeholder: hint, value: state[name] ?? "", step: "any", "aria-label": hint,
    onchange: (event) => refilter({ [name]: event.target.value }) });
  const picks = (name, hint, values) => select(hint, [["", `any ${hint}`], ...values.map((value) => [value, value])], state[name] ?? "", (value) => refilter({ [name]: value }));
  const known = { outcome: ["ok", "model_error", "infra_error"], finish: ["stop", "terminated", "length", "max_turns", "max_errors", "timeout", "error"] };
  const used = FILTERS.filter((name) => state[name] && name !== "sort" && name !== "group").length;
  return h("details", { className: "fold", open: innerWidth > 900 }, h("summary", {}, used ? `Filters (${used})` : "Filters"), h("form", { className: "filters", onsubmit: (event) => event.preventDefault() },
    field("text", "search", "Text in the conversation"),
    field("uid", "search", "Task (the row's uid)"),
    h("div", { className: "pair" }, h("span", {}, "Reward"), field("reward_min", "number", "from"), field("reward_max", "number", "to")),
    h("div", { className: "pair" }, h("span", {}, "Turns"), field("turns_min", "number", "from"), field("turns_max", "number", "to")),
    h("div", { className: "two" }, picks("outcome", "outcome", known.outcome), picks("finish", "ending", known.finish)),
    select("Order", SORTS, state.sort ?? "", (sort) => refilter({ sort })),
    byPrompt()));
}

function byPrompt() {
  const box = h("input", { type: "checkbox", id: "group", checked: Boolean(state.group), onchange: () => refilter({ group: box.checked ? 1 : undefined }) });
  return h("label", { className: "field tick" }, box, h("span", {}, "Group by prompt"));
}

async function refilter(what) {
  Object.assign(state, what);
  save();
  await load();
}

async function fetchRows(offset) {
  const query = Object.fromEntries(FILTERS.map((name) => [name, state[name]]));
  return ask("trajectories", { ...where(), ...query, step: state.step === "all" ? "" : state.step, offset, limit: PAGE });
}

async function load() {
  const sum = root.querySelector("#sum"); // another page may be shown when the answer comes
  const answer = await fetchRows(0);
  [rows, total] = [answer.rows, answer.total];
  list.replaceChildren(...items(0));
  list.scrollTop = 0;
  sum.replaceChildren(plural(total, "trajectory"),
    answer.reward === null ? "" : h("span", {}, "mean reward ", h("b", {}, figure(answer.reward))));
  if (!total) list.replaceChildren(h("p", { className: "empty" }, "None fits these filters."));
}

// Pages come as they are scrolled to.
let loading = false;
async function more() {
  if (loading || rows.length >= total || list.scrollTop + list.clientHeight < list.scrollHeight - 600) return;
  loading = true;
  const answer = await fetchRows(rows.length);
  const before = rows.length;
  rows = rows.concat(answer.rows);
  list.append(...items(before));
  loading = false;
}

// Rows from a number on, each prompt's below a line of its own where rows are grouped.
function items(from) {
  return rows.slice(from).flatMap((row, i) => {
    const first = row.group && row.uid !== rows[from + i - 1]?.uid;
    return first ? [head(row), item(row)] : [item(row)];
  });
}

function head(row) {
  return h("div", { className: "group", title: row.uid }, h("span", {}, shortUid(row.uid)),
    h("small", {}, `${plural(row.group.rows, "answer")} · mean `, row.group.reward === null ? "–" : figure(row.group.reward)));
}

function item(row) {
  const reward = h("span", { className: "reward" }, row.reward === null ? "–" : figure(row.reward));
  reward.dataset.sign = row.reward === null ? "none" : row.reward > 0 ? "up" : row.reward < 0 ? "down" : "zero";
  return h("div", { className: "row", role: "option", onclick: () => open(rows.indexOf(row)), title: row.key },
    reward,
    h("span", { className: "name" }, shortUid(row.uid), h("small", {}, ` · ${row.sample}`)),
    row.outcome === "ok" ? row.finish !== "stop" && h("span", { className: "badge" }, row.finish.replace("_", " "))
      : h("span", { className: `badge ${row.outcome}` }, row.outcome.replace("_", " ")),
    h("span", { className: "sub" }, h("span", {}, `${state.step === "all" ? `step ${row.step} · ` : ""}${plural(row.turns, "turn")} · ${row.failed ? `${row.calls - row.failed}/` : ""}${plural(row.calls, "call")} · ${count(row.tokens)} tok · ${seconds(row.seconds)}`),
      row.advantage === null ? "" : h("span", { className: "advantage", data: { sign: Math.sign(row.advantage) }, title: "mean advantage of its trained tokens" }, `adv ${signed(row.advantage)}`)));
}

// A uid is file:line; the folder says nothing here.
const shortUid = (uid) => uid.split("/").at(-1);

// ---- what is read ----

async function placed() {
  const at = rows.findIndex(isOpen);
  if (at >= 0) return at;
  rows.unshift((await ask("trajectories", { ...where(), step: state.at ?? state.step, line: state.line })).rows[0]);
  if (!rows[0]) throw new Error(`Step ${state.at ?? state.step} has no conversation ${state.line}.`);
  list.prepend(item(rows[0]));
  return 0;
}

async function open(i) {
  const row = rows[i];
  if (!row) return;
  const shown = list.querySelectorAll(".row");
  shown.forEach((element, at) => {
    element.classList.toggle("on", at === i);
    element.setAttribute("aria-selected", at === i);
  });
  shown[i]?.scrollIntoView({ block: "nearest" });
  Object.assign(state, { line: row.line, at: row.step });
  save();
  await read();
  if (i > rows.length - 20) more();
}

async function read() {
  const ticket = ++reading;
  const record = await ask("trajectory", { ...where(), step: state.at, line: state.line });
  const shown = [new Conversation(record, state.mode, `step ${record.step}`)];
  if (state.other !== undefined) shown.push(await second(record));
  if (ticket !== reading) return; // the person went on
  panes.replaceChildren(...shown.map((one) => one.element));
  panes.classList.toggle("double", shown.length > 1);
}

// The same row at another step, where that step has it.
async function second(record) {
  const run = state.otherRun ?? state.run;
  const steps = named(runs, run).splits[state.split];
  const step = steps.includes(Number(state.other)) ? Number(state.other) : steps.at(-1);
  const place = { run, split: state.split, step };
  const row = await ask("match", { ...place, uid: record.uid, sample: record.sample });
  const line = state.otherUid === `${record.uid}` ? Number(state.otherLine) : row.line;
  const other = await ask("trajectory", { ...place, line });
  const turn = (by) => () => { Object.assign(state, { otherUid: record.uid, otherLine: Math.min(Math.max(line + by, 0), other.lines - 1) }); save(); read(); };
  const pick = (what) => { Object.assign(state, { otherUid: undefined, otherLine: undefined }, what); save(); read(); };
  const head = h("span", { className: "picks" },
    runs.length > 1 && select("Run", runs.map((one) => [one.name, one.name]), run, (otherRun) => pick({ otherRun })),
    stepper("Step", steps, step, (chosen) => pick({ other: chosen })),
    h("span", { className: "stepper" }, h("button", { onclick: turn(-1), title: "Conversation before" }, "↑"), h("button", { onclick: turn(1), title: "Next conversation" }, "↓")),
    h("small", {}, row.same ? "the same row" : "another row: this step did not have it"));
  return new Conversation(other, state.mode, head);
}

function compare() {
  const steps = named(runs, state.run).splits[state.split];
  const away = steps.length > 1 && Number(state.at ?? state.step) === steps.at(-1) ? steps[0] : steps.at(-1);
  state.other = state.other === undefined ? away : undefined;
  save();
  root.querySelector(".bar").replaceWith(bar(steps));
  return read();
}

// What is read, as a file that needs nothing else.
async function share() {
  const record = await ask("trajectory", { ...where(), step: state.at, line: state.line });
  await saveFile(record, state.mode, `${named(runs, state.run).name} · step ${record.step}`);
}

function recolour(mode) {
  state.mode = mode;
  remember("mode", mode);
  save();
  for (const button of root.querySelectorAll(".modes button")) button.classList.toggle("on", button.dataset.mode === mode);
  for (const pane of panes.children) pane.dispatchEvent(new CustomEvent("recolour", { detail: mode }));
}
