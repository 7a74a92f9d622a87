// Small tools that every page uses: elements, numbers as text, questions to the server, the address.
// Text of a run is always set as text, never as markup: models write what they like.

export function h(tag, props = {}, ...kids) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "data") Object.assign(element.dataset, value);
    else if (name in element && name !== "list") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...kids.flat().filter((kid) => kid !== null && kid !== undefined && kid !== false));
  return element;
}

export const $ = (id) => document.getElementById(id);

// ---- numbers ----

export function figure(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size < 5e-4 || size >= 1e7) return value.toExponential(1).replace("e+", "e");
  if (size < 0.1) return value.toFixed(4).replace(/0+$/, "");
  if (size < 10) return value.toFixed(3).replace(/\.?0+$/, "");
  if (size < 1000) return value.toFixed(1).replace(/\.0$/, "");
  return Math.round(value).toLocaleString("en");
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.0995) return `${(value * 1000).toFixed(value < 0.00995 ? 1 : 0)} ms`;
  if (value < 60) return `${value.toFixed(value < 10 ? 2 : 1)} s`;
  if (value >= 5400) return `${(value / 3600).toFixed(1)} h`;
  const minutes = Math.floor(value / 60);
  return `${minutes}:${String(Math.round(value % 60)).padStart(2, "0")} min`;
}

// About so long: 40 s, 12 min, 3.4 h.
export function duration(value) {
  if (value < 90) return `${Math.round(value)} s`;
  return value < 5400 ? `${Math.round(value / 60)} min` : `${(value / 3600).toFixed(1)} h`;
}

// The value of a setting: 1e-6, not 0.000001.
export function written(value) {
  if (value === undefined) return "–";
  if (typeof value === "number" && value && Math.abs(value) < 1e-3) return value.toExponential();
  return typeof value === "string" ? value : JSON.stringify(value);
}

// 12,345,678 as 12.3M, for axes.
export const short = (value) => new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(value);

export const count = (value) => (value === null || value === undefined ? "–" : value.toLocaleString("en"));
export const plural = (n, word) => `${count(n)} ${n === 1 ? word : word.replace(/y$/, "ie") + "s"}`;
export const percent = (share) => `${(share * 100).toFixed(share < 0.0995 ? 1 : 0)}%`;
export const signed = (value) => (value > 0 ? "+" : "") + figure(value);

// ---- server ----

export async function ask(question, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const response = await fetch(`api/${question}?${new URLSearchParams(given)}`);
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

// ---- the address: #page?name=value, so that every view can be bookmarked and gone back to ----

export function address() {
  const [page, query = ""] = location.hash.slice(1).split("?");
  return { page: page || "curves", query: Object.fromEntries(new URLSearchParams(query)) };
}

export function link(page, query) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const text = new URLSearchParams(given).toString().replaceAll("%2F", "/");
  return `#${page}${text ? `?${text}` : ""}`;
}

export const go = (page, query) => { location.hash = link(page, query); };

// Changes what the address says without a new entry to go back to, and without a redraw.
export const note = (page, query) => history.replaceState(null, "", link(page, query));

// ---- memory of this browser: taste only, nothing of a run ----

export const recall = (name, fallback) => localStorage.getItem(`agentrl.${name}`) ?? fallback;
export const remember = (name, value) => localStorage.setItem(`agentrl.${name}`, value);

// ---- tooltip ----

const tip = $("tip");

export function showTip(event, ...content) {
  tip.replaceChildren(...content.filter(Boolean));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const right = event.clientX + 14 + box.width > innerWidth;
  const below = event.clientY + 18 + box.height > innerHeight;
  tip.style.left = `${Math.max(4, right ? event.clientX - box.width - 10 : event.clientX + 14)}px`;
  tip.style.top = `${Math.max(4, below ? event.clientY - box.height - 10 : event.clientY + 18)}px`;
}

export const hideTip = () => { tip.hidden = true; };

// Shows a metric's sentence while it is pointed at. `meanings`: metric -> [sentence, when it is a problem].
export function explain(element, metric, meanings) {
  element.addEventListener("mousemove", (event) => {
    const [sentence, problem] = meanings[metric] ?? ["A metric of this run."];
    showTip(event, h("b", {}, metric), h("div", {}, plain(sentence)), problem && h("div", { className: "problem" }, `A problem: ${plain(problem)}`));
  });
  element.addEventListener("mouseleave", hideTip);
  return element;
}

// The sentences are Markdown: without marks and addresses.
const plain = (text) => text.replace(/\[([^\]]*)\]\([^)]*\)/g, "$1").replaceAll("`", "");

export const facts = (pairs) =>
  h("dl", {}, pairs.filter(Boolean).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));

// ---- colours of the theme, for canvas ----

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

export const RUN_COLOURS = 8;
const assigned = new Map();

// A number is a colour; a run keeps the one that it got first.
export function runColour(key) {
  if (typeof key !== "number" && !assigned.has(key)) assigned.set(key, assigned.size);
  const at = assigned.get(key) ?? key;
  // Further ones: hues that are far apart.
  return at < RUN_COLOURS ? colour(`run${at}`) : `hsl(${Math.round(at * 137.5) % 360} 45% ${document.documentElement.dataset.theme === "dark" ? 65 : 42}%)`;
}

export function dot(key) {
  const element = h("i", { className: "dot" });
  element.style.background = runColour(key);
  return element;
}

// ---- runs: an address names them, so that it leads to the same ones after others were found ----

const BETWEEN = "//"; // no name has it

export const joined = (names) => [...names].join(BETWEEN);

// The runs that the address chooses; all where it chooses none.
export function chosen(runs, query) {
  const names = new Set((query.runs ?? "").split(BETWEEN));
  const found = runs.filter((run) => names.has(run.name));
  return found.length ? found : runs;
}

export function named(runs, name) {
  const found = name === undefined ? runs[0] : runs.find((run) => run.name === name);
  if (!found) throw new Error(`Run ${name} is not here.`);
  return found;
}

const ABOUT = {
  running: "it takes steps now", finished: "all steps are done", stopped: "it was asked to stop, or left before its last step",
  failed: "an error ended it", killed: "its process is gone, and did not say why",
};

export function badge(run) {
  if (!run.state) return h("span", {}, "–");
  return h("span", { className: `badge state ${run.state}`, title: [ABOUT[run.state], run.error].filter(Boolean).join("\n") }, run.state);
}

export const progress = (run) =>
  (run.last_step === null ? "before step 1" : `step ${count(run.last_step)}`) + (run.total_steps ? ` of ${count(run.total_steps)}` : "");

export const toGo = (run) => (run.eta === null ? "" : `${duration(run.eta)} to go`);

export function canvas(width, height) {
  const scale = devicePixelRatio || 1;
  const element = h("canvas", { width: Math.round(width * scale), height: Math.round(height * scale) });
  element.style.width = `${width}px`;
  element.style.height = `${height}px`;
  const pen = element.getContext("2d");
  pen.scale(scale, scale);
  pen.font = "11px ui-sans-serif, system-ui, sans-serif";
  return [element, pen];
}

export function select(label, options, chosen, onchange) {
  const box = h("select", { onchange: () => onchange(box.value), "aria-label": label });
  box.append(...options.map(([value, text]) => h("option", { value, selected: String(value) === String(chosen) }, text)));
  return h("label", { className: "field" }, h("span", {}, label), box);
}

// The run and the trajectories that an address names, and the steps there are of them.
export function place(runs, query) {
  const { name, splits } = named(runs, query.run);
  const split = query.split ?? (splits.rollout.length || !splits.validation.length ? "rollout" : "validation");
  return { run: name, split, steps: splits[split] ?? [] };
}

// A step with its neighbours to the left and right.
export function stepper(label, steps, chosen, onchange) {
  const at = steps.indexOf(chosen);
  const move = (by) => () => { if (steps[at + by] !== undefined) onchange(steps[at + by]); };
  return h("span", { className: "stepper" },
    h("button", { onclick: move(-1), disabled: at <= 0, title: "Step before", "aria-label": `${label} before` }, "‹"),
    select(label, steps.map((step) => [step, step]), chosen, (value) => onchange(Number(value))),
    h("button", { onclick: move(1), disabled: at >= steps.length - 1, title: "Next step", "aria-label": `${label} after` }, "›"));
}
