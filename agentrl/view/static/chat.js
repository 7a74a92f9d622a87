// A conversation as a chat: its messages in order, calls below the message that made them, results where they came back.

import { figure, h, plural, seconds, signed } from "./dom.js";

const LONG = 4000; // characters of a message, before it is folded
const THOUGHT = /<think(?:ing)?>([\s\S]*?)(?:<\/think(?:ing)?>|$)/g;
const CALL = /<tool_call>[\s\S]*?(?:<\/tool_call>|$)/g;

// whole: nothing is folded
export function bubbles(record, whole = false) {
  const given = record.prompt.length;
  const advantages = byTurn(record);
  const waiting = [...record.tool_calls];
  let turn = -1;
  const rows = record.messages.flatMap((message, i) => {
    if (message.role !== "assistant" || i < given) return [other(message, i < given, message.role === "tool" ? taken(waiting, turn, message) : null, whole)];
    const late = unanswered(waiting, turn, whole); // answers that no message holds
    turn += 1;
    return [...late, said(record, message, turn, advantages.get(turn), whole)];
  });
  return h("div", { className: "chat" }, rows, unanswered(waiting, Infinity, whole),
    h("p", { className: "end" }, "reward ", h("b", {}, record.reward === null ? "none" : figure(record.reward)), ` · ended by ${record.finish}`));
}

// Turn -> mean advantage of its trained tokens.
function byTurn(record) {
  const sums = new Map();
  for (const { segments, columns } of record.samples) {
    let at = 0;
    for (const { turn, n, mask } of segments) {
      if (mask && columns.advantages) {
        const [sum, tokens] = sums.get(turn) ?? [0, 0];
        sums.set(turn, [sum + columns.advantages.slice(at, at + n).reduce((a, b) => a + b, 0), tokens + n]);
      }
      at += n;
    }
  }
  return new Map([...sums].map(([turn, [sum, tokens]]) => [turn, sum / tokens]));
}

// The call that a tool message answers: the next one of the turn, by name where the message has one.
function taken(waiting, turn, message) {
  const fits = (call) => call.turn <= turn && (!message.name || call.name === message.name);
  const at = Math.max(waiting.findIndex(fits), waiting.some(fits) ? 0 : waiting.findIndex((call) => call.turn <= turn));
  return at < 0 ? null : waiting.splice(at, 1)[0];
}

function unanswered(waiting, turn, whole) {
  const rows = [];
  while (waiting.length && waiting[0].turn <= turn) {
    const call = waiting.shift();
    rows.push(row("tool", [h("b", {}, call.name), ...facts(call)], [h("code", { className: "call-text" }, written(call.arguments)), text(call.response || "(no text)", whole)]));
  }
  return rows;
}

const facts = (call) => [h("span", { className: `badge ${call.outcome}` }, call.outcome.replace("_", " ")), h("small", {}, seconds(call.seconds)),
  call.reward ? h("small", { className: call.reward > 0 ? "up" : "" }, `reward ${signed(call.reward)}`) : null];

function other(message, given, call, whole) {
  const name = message.role === "tool" ? h("b", {}, call?.name ?? message.name ?? "tool") : h("b", {}, message.role);
  const code = message.role === "assistant";
  return row(message.role, [name, given ? h("small", {}, "prompt") : null, ...(call ? facts(call) : [])], parts(message.content, whole, code));
}

function said(record, message, turn, advantage, whole) {
  const rewards = record.turn_rewards.filter((one) => one.turn === turn);
  const about = [h("b", {}, `turn ${turn + 1}`),
    rewards.map((one) => h("small", { className: one.value > 0 ? "up" : "" }, `reward ${signed(one.value)} (${one.source})`)),
    advantage !== undefined && h("small", { className: "advantage", data: { sign: Math.sign(advantage) } }, `advantage ${signed(advantage)}`)];
  const thought = message.reasoning_content ?? message.reasoning;
  const calls = (message.tool_calls ?? []).map((call) => h("div", { className: "made" }, h("b", {}, call.function?.name ?? call.name), h("code", { className: "call-text" }, written(call.function?.arguments ?? call.arguments))));
  const body = [thought && thinking(thought, whole), ...parts(message.content, whole, true), ...calls];
  return row("assistant", about.flat(), body.some(Boolean) ? body : [h("small", {}, "(nothing)")]);
}

const row = (role, about, body) => h("div", { className: `message ${role}` }, h("div", { className: "about" }, about), h("div", { className: "bubble" }, body));

// A content is a text, or a list of texts and media; only the model's own has thoughts and calls written out.
function parts(content, whole, model) {
  const list = Array.isArray(content) ? content : [{ type: "text", text: content ?? "" }];
  return list.flatMap((part) => {
    const value = typeof part === "string" ? part : part?.text ?? part?.[part?.type];
    if (typeof value === "string" && value.startsWith("data:image/")) return [h("img", { src: value, alt: "picture" })];
    if (typeof value === "string") return model ? thoughts(value, whole) : [text(value, whole)];
    return [text(JSON.stringify(part), whole)];
  }).filter(Boolean);
}

// Thoughts are folded, calls written out as text are set as code.
function thoughts(value, whole) {
  const found = [];
  let at = 0;
  const marks = [...value.matchAll(THOUGHT), ...value.matchAll(CALL)].sort((a, b) => a.index - b.index);
  for (const mark of marks) {
    if (mark.index < at) continue;
    found.push(text(value.slice(at, mark.index), whole), mark[1] === undefined ? h("code", { className: "call-text" }, mark[0]) : thinking(mark[1], whole));
    at = mark.index + mark[0].length;
  }
  return [...found, text(value.slice(at), whole)].filter(Boolean);
}

const thinking = (value, whole) => h("details", { className: "thought", open: whole }, h("summary", {}, `thought, ${plural(value.trim().split(/\s+/).length, "word")}`), text(value, true));

function text(value, whole) {
  if (!value.trim()) return null;
  const box = h("div", { className: "said" }, whole ? value : value.slice(0, LONG));
  if (whole || value.length <= LONG) return box;
  const button = h("button", { className: "more", onclick: () => box.replaceChildren(value) }, `… ${plural(value.length - LONG, "character")} more`);
  box.append(button);
  return box;
}

const written = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, value && Object.keys(value).length > 1 ? 1 : 0) ?? "");
