// One chart: several runs' lines over steps, on a canvas.

import { canvas, colour, figure, runColour } from "./dom.js";

const FEW = 8; // points that are a line of their own, not noise
const LEFT = 46, RIGHT = 10, TOP = 8, BOTTOM = 20;

// Exponential moving average without a bias towards the first value.
export function smooth(values, weight) {
  if (!weight || values.length < FEW) return values;
  let mean = 0, mass = 0;
  return values.map((value) => {
    mean = mean * weight + value * (1 - weight);
    mass = mass * weight + (1 - weight);
    return mean / mass;
  });
}

export function ticks(low, high, about, units = [1, 2, 2.5, 5, 10]) {
  const span = high - low || Math.abs(high) || 1;
  const rough = span / about;
  const power = 10 ** Math.floor(Math.log10(rough));
  const unit = units.find((m) => m * power >= rough) * power;
  const found = [];
  for (let at = Math.ceil(low / unit) * unit; at <= high + unit * 1e-6; at += unit) {
    found.push(Math.abs(at) < unit * 1e-6 ? 0 : at);
  }
  return found;
}

// The vertical axis: a line that does not change is drawn between 0 and twice its value, and zeros between 0 and 1.
export function range(low, high, log) {
  const size = Math.max(Math.abs(low), Math.abs(high));
  if (high - low > size * 1e-6) {
    const pad = (high - low) * 0.06;
    return [!log && low >= 0 ? Math.max(0, low - pad) : low - pad, high + pad];
  }
  if (log) return [low - 1, high + 1];
  if (size === 0) return [0, 1];
  return low > 0 ? [0, 2 * high] : [2 * low, 0];
}

function logTicks(low, high) {
  const found = [];
  for (let power = Math.floor(low); power <= Math.ceil(high); power++) if (power >= low - 1e-9 && power <= high + 1e-9) found.push(power);
  return found.length > 1 ? found : [low, high];
}

export class Chart {
  // lines: [{run, steps, values, xs}]; xs: where each step is on the horizontal axis, whose figures `label` writes
  constructor(width, height, lines, { weight = 0, log = false } = {}, label = (x) => x.toLocaleString("en")) {
    [this.element, this.pen] = canvas(width, height);
    Object.assign(this, { width, height, log, label });
    this.lines = lines.map((line) => ({ ...line, xs: line.xs ?? line.steps, smoothed: smooth(line.values, weight) })).filter((line) => line.steps.length);
    this.faint = weight > 0;
    this.scale();
    this.draw(null);
  }

  scale() {
    const ends = this.lines.flatMap((line) => [line.xs[0], line.xs.at(-1)]);
    [this.x0, this.x1] = [Math.min(...ends), Math.max(...ends)];
    if (this.x0 === this.x1) [this.x0, this.x1] = [Math.max(0, this.x0 - 1), this.x1 + 1];
    let low = Infinity, high = -Infinity;
    for (const line of this.lines) for (const value of this.faint ? line.smoothed.concat(line.values) : line.values) {
      const y = this.up(value);
      if (Number.isFinite(y)) { low = Math.min(low, y); high = Math.max(high, y); }
    }
    [this.y0, this.y1] = Number.isFinite(low) ? range(low, high, this.log) : [0, 1];
  }

  up(value) { return this.log ? (value > 0 ? Math.log10(value) : NaN) : value; }
  x(place) { return LEFT + (place - this.x0) / (this.x1 - this.x0) * (this.width - LEFT - RIGHT); }
  y(value) { return TOP + (this.y1 - this.up(value)) / (this.y1 - this.y0) * (this.height - TOP - BOTTOM); }
  at(px) { return this.x0 + (px - LEFT) / (this.width - LEFT - RIGHT) * (this.x1 - this.x0); }

  draw(place) {
    const { pen } = this;
    pen.clearRect(0, 0, this.width, this.height);
    this.grid();
    for (const line of this.lines) {
      if (this.faint) this.path(line, line.values, 0.22);
      this.path(line, line.smoothed, 1);
    }
    if (!this.lines.some((line) => line.smoothed.some((value) => Number.isFinite(this.y(value))))) this.say(this.log ? "no value above 0" : "no value");
    if (place !== null && place >= this.x0 && place <= this.x1) this.cross(place);
  }

  say(text) {
    this.pen.fillStyle = colour("soft");
    this.pen.textAlign = "center";
    this.pen.fillText(text, (LEFT + this.width - RIGHT) / 2, this.height / 2);
  }

  grid() {
    const { pen } = this;
    pen.strokeStyle = colour("line");
    pen.fillStyle = colour("soft");
    pen.lineWidth = 1;
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (const tick of this.log ? logTicks(this.y0, this.y1) : ticks(this.y0, this.y1, 4)) {
      const value = this.log ? 10 ** tick : tick;
      const y = Math.round(this.y(value)) + 0.5;
      pen.beginPath(); pen.moveTo(LEFT, y); pen.lineTo(this.width - RIGHT, y); pen.stroke();
      pen.fillText(figure(value), LEFT - 6, y);
    }
    pen.textAlign = "center";
    pen.textBaseline = "alphabetic";
    for (const tick of ticks(this.x0, this.x1, Math.max(1, Math.min(this.width / 60, this.x1 - this.x0)), [1, 2, 5, 10])) {
      if (Number.isInteger(tick)) pen.fillText(this.label(tick), this.x(tick), this.height - 5);
    }
  }

  path(line, values, alpha) {
    const { pen } = this;
    pen.globalAlpha = alpha;
    pen.strokeStyle = pen.fillStyle = runColour(line.run);
    pen.lineWidth = alpha === 1 ? 1.7 : 1;
    pen.lineJoin = "round";
    pen.beginPath();
    let drawing = false;
    values.forEach((value, i) => {
      const y = this.y(value);
      if (!Number.isFinite(y)) { drawing = false; return; }
      if (drawing) pen.lineTo(this.x(line.xs[i]), y);
      else pen.moveTo(this.x(line.xs[i]), y);
      drawing = true;
    });
    pen.stroke();
    if (values.length <= 30 && alpha === 1) values.forEach((value, i) => this.dot(this.x(line.xs[i]), this.y(value), 2));
    pen.globalAlpha = 1;
  }

  dot(x, y, radius) {
    this.pen.beginPath(); this.pen.arc(x, y, radius, 0, 7); this.pen.fill();
  }

  cross(place) {
    const { pen } = this;
    const x = Math.round(this.x(place)) + 0.5;
    pen.strokeStyle = colour("soft");
    pen.lineWidth = 1;
    pen.beginPath(); pen.moveTo(x, TOP); pen.lineTo(x, this.height - BOTTOM); pen.stroke();
    for (const { line, at } of this.near(place)) {
      pen.fillStyle = runColour(line.run);
      this.dot(this.x(line.xs[at]), this.y(line.smoothed[at]), 3.2);
    }
  }

  // Each line's point nearest to a place on the axis.
  near(place) {
    return this.lines.map((line) => {
      let low = 0, high = line.xs.length - 1;
      while (high - low > 1) {
        const middle = (low + high) >> 1;
        if (line.xs[middle] < place) low = middle; else high = middle;
      }
      return { line, at: place - line.xs[low] <= line.xs[high] - place ? low : high };
    });
  }
}
