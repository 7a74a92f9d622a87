// Page: the life of every trajectory of a step on one clock. Stragglers are what sticks out on the right.

import { ask, canvas, colour, facts, figure, go, h, hideTip, named, note, percent, place, plural, runColour, seconds, select, showTip, stepper } from "./dom.js";
import { ticks } from "./chart.js";

const SORTS = [["end", "last to end first"], ["start", "by start"], ["line", "by row"], ["reward", "by reward"]];
const COLOURS = [["kind", "by activity"], ["age", "by age of the weights"]];
const LEFT = 150, RIGHT = 16, CROWD = 84, AXIS = 22;

let root, runs, state, answer, lives, order, scroller, strip, whole, scale;

export async function render(page, allRuns, query) {
  root = page;
  runs = allRuns;
  const { run, split, steps } = place(runs, query);
  const step = steps.includes(Number(query.step)) ? Number(query.step) : steps.at(-1);
  state = { ...query, run, split, step, sort: query.sort ?? "end", colour: query.colour ?? "kind" };
  if (!steps.length) {
    page.replaceChildren(bar(steps), h("p", { className: "empty" }, `No ${split} trajectories here. trainer.${split}_data_dir is the folder that a run writes them to.`));
    return;
  }
  note("timeline", state);
  answer = await ask("timeline", state);
  lives = answer.rows.map((row) => ({ ...row, start: at(row, 1, Math.min), end: at(row, 2, Math.max) }));
  whole = Math.max(1, ...lives.map((life) => life.end));
  const rows = h("div", { className: "lives" });
  page.replaceChildren(bar(steps), summary(), ahead(), h("div", { className: "crowd" }), rows);
  arrange(rows);
}

export function grown(allRuns) {
  runs = allRuns;
  root.querySelector(".bar")?.replaceWith(bar(named(runs, state.run).splits[state.split]));
}

export function key(name) {
  const steps = named(runs, state.run).splits[state.split];
  const next = steps[steps.indexOf(state.step) + { "[": -1, "]": 1 }[name]];
  if (next === undefined) return false;
  go("timeline", { ...state, step: next });
  return true;
}

const at = (row, offset, best) => row.spans.filter((_, i) => i % 3 === offset).reduce((a, b) => best(a, b));

function bar(steps) {
  const splits = Object.entries(named(runs, state.run).splits).filter(([, found]) => found.length).map(([name]) => [name, name === "rollout" ? "training" : name]);
  const change = (what) => go("timeline", { ...state, ...what });
  return h("div", { className: "bar" },
    runs.length > 1 && select("Run", runs.map((run) => [run.name, run.name]), state.run, (run) => change({ run, step: undefined, split: undefined })),
    splits.length > 1 && select("Of", splits, state.split, (split) => change({ split, step: undefined })),
    steps.length > 0 && stepper("Step", steps, state.step, (step) => change({ step })),
    select("Order", SORTS, state.sort, (sort) => change({ sort })),
    isAhead() && select("Colour", COLOURS, state.colour, (colour) => change({ colour })),
    h("span", { className: "grow" }),
    h("span", { className: "legend" }, byAge() ? ages().map(([age]) => h("label", {}, swatch(age), updates(age)))
      : [...kinds().map((kind) => h("label", {}, h("i", { className: `key ${kind}` }), kind)), h("label", {}, h("i", { className: "key gap" }), "neither")]));
}

const kinds = () => (answer ? answer.kinds.filter((_, k) => answer.rows.some((row) => row.spans.some((value, i) => i % 3 === 0 && value === k))) : []);

// ---- where rollouts continued while the policy trained ----

const isAhead = () => answer?.figures["staleness/mean"] !== undefined;
const byAge = () => isAhead() && state.colour === "age";
const updates = (age) => (age ? plural(age, "update") : "present weights");

// [updates since the tokens were drawn, their share], the present ones first.
const ages = () => Object.entries(answer.figures).filter(([name]) => name.startsWith("staleness/share_"))
  .map(([name, share]) => [Number(name.split("_").at(-1)), share]).sort(([a], [b]) => a - b);

function swatch(age) {
  const key = h("i", { className: "key" });
  key.style.background = runColour(age);
  return key;
}

function ahead() {
  if (!isAhead()) return "";
  const of = (name) => answer.figures[name];
  const bars = ages().map(([age, share]) => {
    const bar = h("i", { title: `${updates(age)}: ${percent(share)} of the tokens` });
    bar.style.height = `${Math.max(1, share * 23)}px`;
    bar.style.background = runColour(age);
    return bar;
  });
  return h("div", { className: "numbers ahead" },
    box("staleness in updates", figure(of("staleness/mean")), `oldest ${of("staleness/max")}`),
    h("div", { className: "number" }, h("b", { className: "ages" }, bars), h("span", {}, "tokens by age"), h("small", {}, ages().map(([age, share]) => `${age}: ${percent(share)}`).join(", "))),
    box("of several versions", percent(of("staleness/mixed")), "of the tokens"),
    of("perf/queue_groups") !== undefined && box("groups in the queue", figure(of("perf/queue_groups")), `${figure(of("perf/running_groups"))} under way`),
    of("perf/trainer_wait_share") !== undefined && box("trainer waits", percent(of("perf/trainer_wait_share")), "of the step"),
    of("perf/engine_idle_share") !== undefined && box("engine idle", percent(of("perf/engine_idle_share")), "of the step"),
    of("perf/interruptions") !== undefined && box("interruptions", figure(of("perf/interruptions")), "requests"));
}

// [turn, version, tokens] of a trajectory's tokens.
const drawn = (life) => life.versions.flatMap((turn, i) => (i % 3 ? [] : [[turn, life.versions[i + 1], life.versions[i + 2]]]));

function versions(life) {
  const found = drawn(life).map(([, version]) => version);
  if (!found.length) return "none";
  const [low, high] = [Math.min(...found), Math.max(...found)];
  return low === high ? `version ${low}` : `versions ${low} to ${high}`;
}

// A generation as long as its tokens of each version, in proportion; each turn is one.
function byWeights(life, generation) {
  const own = drawn(life).filter(([turn]) => turn === generation);
  const whole = own.reduce((sum, [, , tokens]) => sum + tokens, 0);
  return own.map(([, version, tokens]) => [runColour(Math.max(0, state.step - 1 - version)), tokens / whole]);
}

// ---- in numbers ----

const box = (name, value, what) => h("div", { className: "number" }, h("b", {}, value), h("span", {}, name), what && h("small", {}, what));

function summary() {
  const ends = lives.map((life) => life.end).sort((a, b) => a - b);
  const took = lives.map((life) => life.end - life.start).sort((a, b) => a - b);
  const quantile = (sorted, q) => sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))] / 1000;
  const sums = answer.kinds.map((kind, k) => [kind, lives.reduce((sum, life) => sum + spent(life, k), 0)]);
  const lived = took.reduce((a, b) => a + b, 0) || 1;
  const tail = quantile(ends, 1) - quantile(ends, 0.9);
  return h("div", { className: "numbers" },
    box("first to last", seconds(whole / 1000), plural(lives.length, "conversation")),
    box("median duration", seconds(quantile(took, 0.5)), `slowest ${seconds(quantile(took, 1))}`),
    box("waiting for the last tenth", seconds(tail), `${percent(tail / (whole / 1000))} of the step`),
    ...sums.filter(([, sum]) => sum).map(([kind, sum]) => box(kind, percent(sum / lived), "of their time")),
    answer.untimed > 0 && box("not timed", String(answer.untimed)));
}

function spent(life, kind) {
  let sum = 0;
  for (let i = 0; i < life.spans.length; i += 3) if (life.spans[i] === kind) sum += life.spans[i + 2] - life.spans[i + 1];
  return sum;
}

// ---- drawn ----

function arrange(rows) {
  const by = { end: (a, b) => b.end - a.end, start: (a, b) => a.start - b.start, line: (a, b) => a.line - b.line,
    reward: (a, b) => (b.reward ?? -Infinity) - (a.reward ?? -Infinity) };
  order = [...lives].sort(by[state.sort] ?? by.end);
  scroller = rows;
  const width = scroller.clientWidth - 2;
  const height = Math.max(7, Math.min(22, Math.floor((scroller.clientHeight - AXIS) / order.length)));
  scale = { width, height, x: (ms) => LEFT + ms / whole * (width - LEFT - RIGHT) };
  const view = scroller.clientHeight - 4;
  const [element, pen] = canvas(width, view);
  strip = { pen, view };
  element.className = "strip";
  const spacer = h("div", {});
  spacer.style.height = `${Math.max(0, order.length * height + AXIS - view)}px`;
  scroller.append(element, spacer);
  scroller.onscroll = () => { hideTip(); draw(); };
  element.onmousemove = hover;
  element.onmouseleave = hideTip;
  element.onclick = (event) => { const life = under(event); if (life) go("conversations", { run: state.run, split: state.split, step: state.step, line: life.line, at: state.step }); };
  crowd(width);
  draw();
}

function draw() {
  const { pen, view } = strip;
  const { width, height, x } = scale;
  const colours = answer.kinds.map((kind) => colour(`kind-${kind}`));
  const first = Math.floor(scroller.scrollTop / height);
  pen.clearRect(0, 0, width, view);
  axis(pen, view);
  pen.textBaseline = "middle";
  for (let i = first; i < order.length && (i - first) * height < view - AXIS; i++) {
    const life = order[i];
    const y = AXIS + i * height - scroller.scrollTop;
    if (y < AXIS - height) continue;
    const thick = Math.max(3, height - 3);
    pen.fillStyle = colour("gap");
    pen.fillRect(x(life.start), y + height / 2 - 0.5, Math.max(1, x(life.end) - x(life.start)), 1);
    let generation = 0;
    for (let s = 0; s < life.spans.length; s += 3) {
      let from = x(life.spans[s + 1]);
      const wide = Math.max(1, x(life.spans[s + 2]) - from);
      const weights = byAge() && answer.kinds[life.spans[s]] === "generate" ? byWeights(life, generation++) : [];
      for (const [fill, share] of weights.length ? weights : [[byAge() ? colour("gap") : colours[life.spans[s]], 1]]) {
        pen.fillStyle = fill;
        pen.fillRect(from, y + 1, wide * share, thick);
        from += wide * share;
      }
    }
    if (life.outcome === "infra_error") { pen.fillStyle = colour("bad"); pen.fillRect(x(life.end) + 2, y + 1, 3, thick); }
    if (height >= 11 || i % Math.ceil(12 / height) === 0) label(pen, life, y + height / 2);
  }
  pen.clearRect(0, 0, width, AXIS);
  axis(pen, AXIS);
}

function label(pen, life, y) {
  pen.fillStyle = colour("soft");
  pen.textAlign = "right";
  const name = `${life.uid.split("/").at(-1)} · ${life.sample}`;
  pen.fillText(name.length > 22 ? `…${name.slice(-21)}` : name, LEFT - 10, y);
}

function axis(pen, height) {
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  for (const tick of ticks(0, whole / 1000, Math.max(3, scale.width / 130))) {
    const x = Math.round(scale.x(tick * 1000)) + 0.5;
    pen.strokeStyle = colour("line");
    pen.beginPath(); pen.moveTo(x, AXIS - 4); pen.lineTo(x, height); pen.stroke();
    pen.fillStyle = colour("soft");
    pen.fillText(`${figure(tick)} s`, x, AXIS / 2);
  }
}

// How many are at what, over time.
function crowd(width) {
  const buckets = Math.max(60, Math.floor((width - LEFT - RIGHT) / 2));
  const counts = answer.kinds.map(() => new Float64Array(buckets));
  for (const life of lives) for (let s = 0; s < life.spans.length; s += 3) {
    const from = life.spans[s + 1] / whole * buckets, to = Math.max(from + 1e-6, life.spans[s + 2] / whole * buckets);
    for (let b = Math.floor(from); b < Math.min(buckets, Math.ceil(to)); b++) {
      counts[life.spans[s]][b] += Math.min(b + 1, to) - Math.max(b, from);
    }
  }
  const most = Math.max(1, ...Array.from({ length: buckets }, (_, b) => counts.reduce((sum, one) => sum + one[b], 0)));
  const [element, pen] = canvas(width, CROWD);
  const base = new Float64Array(buckets);
  const y = (value) => CROWD - 6 - value / most * (CROWD - 18);
  answer.kinds.forEach((kind, k) => {
    pen.fillStyle = colour(`kind-${kind}`);
    for (let b = 0; b < buckets; b++) {
      const x = scale.x(b / buckets * whole), wide = scale.x((b + 1) / buckets * whole) - x;
      pen.fillRect(x, y(base[b] + counts[k][b]), wide + 0.3, y(base[b]) - y(base[b] + counts[k][b]));
      base[b] += counts[k][b];
    }
  });
  pen.fillStyle = colour("soft");
  pen.textAlign = "right";
  pen.fillText("running at once", LEFT - 10, CROWD / 2 + 4);
  pen.fillText(figure(Math.round(most)), LEFT - 10, 16);
  root.querySelector(".crowd").replaceChildren(element);
}

// ---- pointed at ----

function under(event) {
  const row = Math.floor((event.offsetY - AXIS + scroller.scrollTop) / scale.height);
  return event.offsetY < AXIS ? undefined : order[row];
}

function hover(event) {
  const life = under(event);
  if (!life) { hideTip(); return; }
  const ms = (event.offsetX - LEFT) / (scale.width - LEFT - RIGHT) * whole;
  let doing = ms < life.start ? "not begun" : ms > life.end ? "done" : "neither";
  for (let s = 0; s < life.spans.length; s += 3) {
    if (ms >= life.spans[s + 1] && ms <= life.spans[s + 2]) doing = `${answer.kinds[life.spans[s]]}, ${seconds((life.spans[s + 2] - life.spans[s + 1]) / 1000)}`;
  }
  showTip(event, h("b", {}, life.key), facts([
    [`at ${seconds(ms / 1000)}`, doing],
    ["began", seconds(life.start / 1000)],
    ["took", seconds((life.end - life.start) / 1000)],
    ["reward", figure(life.reward)],
    ["ended by", `${life.finish}${life.outcome === "ok" ? "" : `, ${life.outcome}`}`],
    ["turns, calls", `${life.turns}, ${life.calls}`],
    isAhead() && ["weights", `${versions(life)}, trained at ${state.step - 1}`],
  ]));
}
