// One conversation, token by token: who wrote it, what is trained on, how likely it was, what advantage it got.

import { bubbles } from "./chat.js";
import { count, facts, figure, h, hideTip, plural, seconds, showTip, signed } from "./dom.js";

export const MODES = ["chat", "probability", "advantage", "teacher", "trained"];
const WHO = { prompt: "prompt", model: "model", tool: "tool", user: "user", template: "template" };
const LONG = 900; // characters of a text that the model did not write, before it is folded
const MANY = 4000; // tokens drawn at once

export class Conversation {
  // whole: nothing is folded
  constructor(record, mode, head, { whole = false } = {}) {
    this.record = record;
    this.whole = whole;
    this.top = Math.max(1e-9, ...record.samples.flatMap((sample) => (sample.columns.advantages ?? []).map(Math.abs)));
    this.mixed = new Set(record.samples.flatMap((sample) => sample.segments).filter((one) => one.mask).map((one) => one.version)).size > 1;
    this.body = h("div", { className: "stream" });
    this.element = h("article", { className: "conversation", tabIndex: -1 }, this.header(head), this.body, this.footer());
    this.element.addEventListener("recolour", (event) => this.paint(event.detail));
    this.body.addEventListener("mousemove", (event) => this.hover(event));
    this.body.addEventListener("mouseleave", hideTip);
    this.paint(mode);
  }

  // ---- above ----

  header(head) {
    const { record } = this;
    const tokens = record.samples.reduce((sum, sample) => sum + sample.columns.ids.length, 0);
    const trained = record.samples.reduce((sum, sample) => sum + sample.columns.mask.filter(Boolean).length, 0);
    const extra = Object.entries(record.reward_extra ?? {}).filter(([, value]) => typeof value !== "object");
    return h("header", {},
      h("div", { className: "line" }, h("h2", { title: record.key }, record.uid, h("small", {}, ` sample ${record.sample}`)), h("span", { className: "grow" }), head),
      h("div", { className: "facts" },
        h("span", {}, "reward ", h("b", {}, record.reward === null ? "none" : figure(record.reward))),
        extra.map(([name, value]) => h("span", {}, `${name} `, h("b", {}, typeof value === "number" ? figure(value) : String(value)))),
        record.interaction_score !== null && h("span", {}, "interaction ", h("b", {}, figure(record.interaction_score))),
        Object.entries(record.tool_rewards ?? {}).map(([name, value]) => h("span", {}, `${name} `, h("b", {}, figure(value)))),
        h("span", { className: `outcome ${record.outcome}` }, record.outcome.replace("_", " ")),
        h("span", {}, "ended by ", h("b", {}, record.finish)),
        h("span", {}, plural(record.turns, "turn")),
        h("span", {}, `${count(trained)} of ${count(tokens)} tokens trained`)),
      record.error && h("p", { className: "error" }, record.error),
      record.extra?.template_mismatch && h("p", { className: "warning" }, `Template: ${record.extra.template_mismatch}`),
      this.pictures(),
      this.life(),
      h("p", { className: "legend" }));
  }

  // Small pictures of what the model saw, in order.
  pictures() {
    const parts = this.record.messages.flatMap((message) => Array.isArray(message.content) ? message.content : []);
    const seen = parts.map((part) => part[part.type]).filter((value) => typeof value === "string" && value.startsWith("data:image/"));
    return seen.length > 0 && h("p", { className: "pictures" }, seen.map((src, i) => h("img", { src, alt: `picture ${i + 1}` })));
  }

  // Its life as one bar.
  life() {
    const { spans } = this.record;
    if (!spans.length) return null;
    const start = Math.min(...spans.map((span) => span.start));
    const whole = Math.max(...spans.map((span) => span.end)) - start || 1e-9;
    const bar = h("div", { className: "life", title: "" }, spans.map((span) => {
      const piece = h("i", { className: `span ${span.kind}`, onmousemove: (event) => showTip(event, h("b", {}, span.kind),
        facts([["took", seconds(span.end - span.start)], ["from", seconds(span.start - start)]])), onmouseleave: hideTip });
      piece.style.left = `${(span.start - start) / whole * 100}%`;
      piece.style.width = `max(1px, ${(span.end - span.start) / whole * 100}%)`;
      return piece;
    }));
    const sums = {};
    for (const span of spans) sums[span.kind] = (sums[span.kind] ?? 0) + span.end - span.start;
    return h("div", { className: "lifeline" }, bar, h("small", {}, seconds(whole), " ",
      Object.entries(sums).map(([kind, sum]) => h("span", {}, h("i", { className: `key ${kind}` }), `${kind} ${seconds(sum)}`))));
  }

  // ---- the tokens ----

  sample(sample, i) {
    const { samples } = this.record;
    const box = h("section", { data: { sample: i } }, samples.length > 1 && h("h3", {}, `Sample ${i + 1} of ${samples.length}: ${why(this.record, i)}`));
    const calls = i === samples.length - 1 || this.record.sides ? this.record.tool_calls : [];
    const lastOf = new Map(sample.segments.map((segment, at) => [`${segment.source} ${segment.turn}`, at]));
    let at = 0;
    sample.segments.forEach((segment, number) => {
      box.append(this.segment(sample, segment, at));
      at += segment.n;
      if (segment.source === "model" && lastOf.get(`model ${segment.turn}`) === number) {
        box.append(...calls.filter((call) => call.turn === segment.turn).map((call) => this.call(call)));
      }
    });
    return box;
  }

  // Below a chat: what each of several samples is made of.
  ledgers() {
    const { samples } = this.record;
    if (samples.length < 2) return [];
    return samples.map((sample, i) => h("details", { className: "ledger" },
      h("summary", {}, `Sample ${i + 1} of ${samples.length}: ${why(this.record, i)}, ${plural(sample.columns.ids.length, "token")}`),
      sample.segments.map((segment) => h("div", { className: `segment ${segment.source}` },
        h("span", { className: "who" }, segment.source === "model" ? `model ${segment.turn + 1}` : WHO[segment.source]), h("div", { className: "text" }, segment.text)))));
  }

  segment(sample, segment, start) {
    const model = segment.source === "model";
    const label = h("span", { className: "who" }, model ? `model ${segment.turn + 1}` : WHO[segment.source]);
    if (model && this.mixed) label.append(h("small", { title: "the weights that drew these tokens" }, `weights ${segment.version}`));
    const text = h("div", { className: "text" });
    const pieces = sample.texts?.slice(start, start + segment.n) ?? [segment.text];
    const box = h("div", { className: `segment ${segment.source}` }, label, text);
    const fold = !model && !this.whole && segment.text.length > LONG;
    this.fill(text, pieces, start, fold ? reach(pieces, LONG * 0.6) : this.whole ? Infinity : MANY, Boolean(sample.texts));
    const reward = model && this.record.turn_rewards.filter((one) => one.turn === segment.turn);
    if (reward?.length) label.append(h("small", { className: reward.some((one) => one.value > 0) ? "up" : "" }, reward.map((one) => `${signed(one.value)} ${one.source}`).join(" ")));
    return box;
  }

  fill(text, pieces, start, limit, single) {
    const shown = pieces.slice(0, limit);
    text.append(...shown.map((piece, i) => {
      const token = h("span", single ? { data: { t: start + i } } : {}, visible(piece));
      if (single && this.mode) this.colour(token);
      return token;
    }));
    const rest = pieces.length - shown.length;
    if (rest <= 0) return;
    const button = h("button", { className: "more", onclick: () => { button.remove(); this.fill(text, pieces.slice(limit), start + limit, MANY, single); } }, `… ${plural(rest, "token")} more`);
    text.append(button);
  }

  call(call) {
    const slow = h("span", { className: "time" }, seconds(call.seconds));
    const given = !call.arguments || typeof call.arguments === "string" ? call.arguments : JSON.stringify(call.arguments);
    return h("details", { className: `call ${call.outcome}` },
      h("summary", {}, h("b", {}, call.name), h("code", {}, given ?? ""), h("span", { className: "grow" }),
        call.reward ? h("span", {}, signed(call.reward)) : null, slow, h("span", { className: `badge ${call.outcome}` }, call.outcome.replace("_", " "))),
      h("pre", {}, call.response || "(no text)"));
  }

  // ---- below ----

  footer() {
    const { record } = this;
    const fold = (name, value) => h("details", {}, h("summary", {}, name), h("pre", {}, typeof value === "string" ? value : JSON.stringify(value, null, 2)));
    const { program, task } = record.extra ?? {};
    return h("footer", {},
      program?.exit_code !== undefined && fold(`Output of ${program.name}, which ${program.exit_code === null ? "was stopped" : `ended with code ${program.exit_code}`} after ${seconds(program.seconds)}`, program.output || "(nothing)"),
      task?.output !== undefined && fold(`Output of the verification, which took ${seconds(task.seconds.verify)}`, task.output || "(nothing)"),
      record.ground_truth !== null && record.ground_truth !== undefined && fold("Ground truth", record.ground_truth),
      fold("Messages", record.messages),
      Object.keys(record.extra ?? {}).length > 0 && fold("Extra", record.extra));
  }

  // ---- colour and hover ----

  paint(mode) {
    if (this.mode === undefined || (mode === "chat") !== (this.mode === "chat")) {
      this.mode = undefined; // tokens get their colours when they are on the page
      const { samples } = this.record;
      this.body.replaceChildren(...(mode === "chat" ? [bubbles(this.record, this.whole), ...this.ledgers()] : samples.map((sample, i) => this.sample(sample, i))));
    }
    this.mode = mode;
    this.element.dataset.mode = mode;
    for (const token of this.body.querySelectorAll("[data-t]")) this.colour(token);
    this.element.querySelector(".legend").replaceChildren(...legend(mode, this.top, this.record));
  }

  colour(token) {
    const columns = this.columns(token), i = Number(token.dataset.t);
    const trained = columns.mask[i] === 1;
    token.className = trained ? "trained" : "";
    token.style.background = "";
    if (!trained || this.mode === "trained") return;
    if (this.mode === "probability") {
      const doubt = 1 - Math.exp(columns.logprobs[i]);
      if (doubt > 0.02) token.style.background = `rgb(var(--doubt) / ${(0.06 + doubt * 0.6).toFixed(3)})`;
    } else if (this.mode === "teacher") {
      const gap = apart(columns, i);
      if (Math.abs(gap) > 0.05) token.style.background = `rgb(var(--${gap > 0 ? "loss" : "gain"}) / ${(0.06 + Math.min(Math.abs(gap) / PARTED, 1) * 0.5).toFixed(3)})`;
    } else if (columns.advantages) {
      const value = columns.advantages[i];
      if (value) token.style.background = `rgb(var(--${value > 0 ? "gain" : "loss"}) / ${(0.08 + Math.abs(value) / this.top * 0.42).toFixed(3)})`;
    }
  }

  columns(token) {
    return this.record.samples[Number(token.closest("[data-sample]").dataset.sample)].columns;
  }

  hover(event) {
    const token = event.target.closest("[data-t]");
    if (!token) { hideTip(); return; }
    showTip(event, h("b", { className: "piece" }, shownAs(token.textContent)), facts(this.known(token)));
  }

  // What there is to know of a token: [name, value] or false.
  known(token) {
    const columns = this.columns(token), i = Number(token.dataset.t);
    const trained = columns.mask[i] === 1;
    const logprob = columns.logprobs[i];
    return [
      ["token", `${columns.ids[i]}, place ${i}`],
      trained && ["probability", `${(Math.exp(logprob) * 100).toFixed(logprob > -0.001 ? 2 : 1)}%`],
      trained && ["log-prob", figure(logprob)],
      ...(trained ? ofTeacher(columns, i) : []),
      trained && ["advantage", columns.advantages ? signed(columns.advantages[i]) : "not recorded"],
      ["trained", trained ? "yes" : "no: not the model's"],
    ];
  }

  // The same as titles, for a page without script.
  nameTokens() {
    for (const token of this.body.querySelectorAll("[data-t]")) {
      token.title = this.known(token).filter(Boolean).map(([name, value]) => `${name} ${value}`).join("\n");
    }
  }
}

// Where student and teacher part: log p(student) - log p(teacher) of a token; 0 where no teacher has scored it.
const PARTED = 3;
const apart = (columns, i) => {
  const theirs = columns.teacher_logprobs?.[i] ?? null;
  return theirs === null ? 0 : columns.logprobs[i] - theirs;
};

// What the teacher says of a token: [name, value].
const ofTeacher = (columns, i) => {
  const theirs = columns.teacher_logprobs?.[i] ?? null;
  if (theirs === null) return [];
  const choice = columns.teacher_choices?.[i];
  const other = choice !== undefined && choice !== columns.ids[i] && columns.teacher_texts?.[choice];
  return [
    ["teacher", `${(Math.exp(theirs) * 100).toFixed(1)}%, log-prob ${figure(theirs)}`],
    ["apart by", signed(apart(columns, i))],
    choice !== undefined && ["teacher's choice", other ? shownAs(other) : "this token"],
  ];
};

// Why a sample is one of several.
const why = (record, i) => {
  if (record.sides) return `side ${record.sides[i]}, final reward ${record.side_rewards[record.sides[i]]}`;
  if (!record.extra?.gateway) return "the template rewrote history";
  const shared = record.extra.gateway.shared?.[i];
  return shared ? `its first ${shared} tokens are another sample's` : "a history of its own";
};

// Tokens until a number of characters is reached.
function reach(pieces, limit) {
  let sum = 0;
  const at = pieces.findIndex((piece) => (sum += piece.length) > limit);
  return at < 1 ? 1 : at;
}

const visible = (text) => text.replace(/\r/g, "␍").replace(/\n/g, "↵\n").replace(/\t/g, "⇥\t");
const shownAs = (text) => text.replace(/\n/g, "").replace(/ /g, "␣") || "part of a character";

function legend(mode, top, record) {
  if (mode === "chat") return [];
  if (record.samples.some((sample) => !sample.texts)) return ["An older dump: it tells turns apart, not tokens."];
  const swatch = (name, alpha) => { const box = h("i", { className: "swatch" }); box.style.background = `rgb(var(--${name}) / ${alpha})`; return box; };
  if (mode === "trained") return [h("span", { className: "trained" }, "underlined: the model's own tokens, trained on"), "the rest is read only"];
  if (mode === "probability") return [[0.12, "90% likely"], [0.36, "50%"], [0.63, "5%; no shade: certain"]].map(([alpha, text]) => h("span", {}, swatch("doubt", alpha), text));
  if (mode === "teacher") {
    if (!record.samples.some((sample) => sample.columns.teacher_logprobs)) return ["No teacher's server has scored this conversation."];
    return [h("span", {}, swatch("loss", 0.4), "likelier than for the teacher: made less likely"), h("span", {}, swatch("gain", 0.4), "likelier for the teacher")];
  }
  if (!record.samples.some((sample) => sample.columns.advantages)) return ["This dump has no advantages: validation, a sample that was not trained on, or an older version."];
  if (top <= 1e-9) return ["All advantages are 0: its group has equal rewards, so nothing is learned from it."];
  return [h("span", {}, swatch("gain", 0.4), `advantage above 0, up to ${figure(top)}: made likelier`), h("span", {}, swatch("loss", 0.4), "below 0: made less likely")];
}
