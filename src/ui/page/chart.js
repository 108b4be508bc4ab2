/** The burst: how many pods were pending, running, succeeded and failed, as areas on each other. */
import { age, clockTime, count } from "./format.js";
import { h, SHAPES } from "./dom.js";
import { PHASES } from "./state.js";

const MIN_SPAN_MS = 60_000;
/** Room for the figures of the axes, in pixels. */
const MARGIN = { top: 10, right: 8, bottom: 22, left: 44 };
/** From the ground up. */
const LAYERS = ["Succeeded", "Failed", "Running", "Pending"];

export class Chart {
  #canvas = h("canvas", { role: "img" });
  #style = getComputedStyle(document.documentElement);
  #patterns = new Map();

  constructor(place) {
    place.append(this.#canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#patterns.clear());
  }

  draw(points, now) {
    const canvas = this.#canvas;
    const { width, height } = canvas.getBoundingClientRect();
    if (width === 0) return;
    const scale = devicePixelRatio;
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
      this.#patterns.clear();
    }
    const context = canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    const last = points.at(-1);
    const end = Math.max(now, last?.[0] ?? now);
    const begin = Math.min(points[0]?.[0] ?? end, end - MIN_SPAN_MS);
    const most = Math.max(4, ...points.map(([, ...counts]) => counts.reduce((sum, each) => sum + each, 0)));
    const top = niceTop(most);
    const x = (at) => MARGIN.left + ((at - begin) / (end - begin)) * (width - MARGIN.left - MARGIN.right);
    const y = (value) => height - MARGIN.bottom - (value / top) * (height - MARGIN.top - MARGIN.bottom);
    this.#axes(context, { x, y, top, begin, end, width });
    if (last !== undefined) this.#areas(context, { x, y, points: [...points, [end, ...last.slice(1)]] });
    canvas.setAttribute("aria-label", describe(points, end - begin));
  }

  #color(name) {
    return this.#style.getPropertyValue(name).trim();
  }

  #axes(context, { x, y, top, begin, end, width }) {
    context.font = `11px ${this.#color("--font")}`;
    context.fillStyle = this.#color("--muted");
    context.strokeStyle = this.#color("--line");
    context.lineWidth = 1;
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const value of [0, top / 2, top]) {
      context.beginPath();
      context.moveTo(MARGIN.left, Math.round(y(value)) + 0.5);
      context.lineTo(width - MARGIN.right, Math.round(y(value)) + 0.5);
      context.stroke();
      context.fillText(value.toLocaleString("en"), MARGIN.left - 8, y(value));
    }
    context.textBaseline = "top";
    const step =
      [10, 30, 60, 120, 300, 600].map((s) => s * 1000).find((ms) => (end - begin) / ms <= width / 90) ?? 900_000;
    for (let back = 0; back < end - begin; back += step) {
      const at = x(end - back);
      if (at < MARGIN.left + 16) break;
      context.textAlign = back === 0 ? "right" : "center";
      context.fillText(back === 0 ? "now" : `−${age(back)}`, back === 0 ? width - MARGIN.right : at, y(0) + 7);
    }
  }

  #areas(context, { x, y, points }) {
    const base = points.map(() => 0);
    for (const phase of LAYERS) {
      const column = PHASES.indexOf(phase) + 1;
      const upper = points.map((point, index) => base[index] + point[column]);
      if (points.some((point) => point[column] > 0)) {
        context.beginPath();
        // Steps: nothing is known of the time between two points but that it was as at the first.
        for (const [index, [at]] of points.entries()) {
          if (index === 0) context.moveTo(x(at), y(upper[0]));
          else {
            context.lineTo(x(at), y(upper[index - 1]));
            context.lineTo(x(at), y(upper[index]));
          }
        }
        for (let index = points.length - 1; index >= 0; index--) {
          if (index < points.length - 1) context.lineTo(x(points[index + 1][0]), y(base[index]));
          context.lineTo(x(points[index][0]), y(base[index]));
        }
        context.closePath();
        context.fillStyle = this.#fill(context, phase);
        context.fill();
        this.#edge(context, { x, y, points, upper, phase, column });
      }
      for (const [index, value] of upper.entries()) base[index] = value;
    }
  }

  /** The upper edge, where there is anything under it. */
  #edge(context, { x, y, points, upper, phase, column }) {
    context.strokeStyle = this.#color(`--${phase.toLowerCase()}`);
    context.lineWidth = 1.25;
    context.beginPath();
    for (let index = 0; index < points.length - 1; index++) {
      if (points[index][column] === 0) continue;
      if (index === 0 || points[index - 1][column] === 0) context.moveTo(x(points[index][0]), y(upper[index]));
      else context.lineTo(x(points[index][0]), y(upper[index]));
      context.lineTo(x(points[index + 1][0]), y(upper[index]));
    }
    context.stroke();
  }

  /** Each phase has a texture of its own, for those who do not see its colour. */
  #fill(context, phase) {
    const known = this.#patterns.get(phase);
    if (known !== undefined) return known;
    const tile = document.createElement("canvas");
    const scale = devicePixelRatio;
    tile.width = 8 * scale;
    tile.height = 8 * scale;
    const pen = tile.getContext("2d");
    pen.scale(scale, scale);
    pen.fillStyle = this.#color(`--${phase.toLowerCase()}`);
    pen.strokeStyle = pen.fillStyle;
    pen.globalAlpha = phase === "Running" ? 0.75 : 0.22;
    pen.fillRect(0, 0, 8, 8);
    pen.globalAlpha = 0.65;
    pen.beginPath();
    if (phase === "Pending") {
      for (const shift of [-8, 0, 8]) {
        pen.moveTo(shift, 8);
        pen.lineTo(shift + 8, 0);
      }
    } else if (phase === "Failed") {
      for (const [from, to] of [
        [0, 8],
        [8, 0],
      ]) {
        pen.moveTo(from, 0);
        pen.lineTo(to, 8);
      }
    } else if (phase === "Succeeded") pen.arc(4, 4, 0.8, 0, 7);
    pen.stroke();
    const pattern = context.createPattern(tile, "repeat");
    pattern.setTransform(new DOMMatrix().scale(1 / scale));
    this.#patterns.set(phase, pattern);
    return pattern;
  }
}

/** The next round number whose half is whole, for the middle line. */
function niceTop(most) {
  for (let unit = 1; ; unit *= 10)
    for (const each of [4, 6, 8, 10, 12, 16, 20, 30]) if (each * unit >= most) return each * unit;
}

function describe(points, spanMs) {
  const last = points.at(-1);
  if (last === undefined) return "No machines yet";
  const peak = Math.max(...points.map((point) => point[2]));
  const at = points.find((point) => point[2] === peak)[0];
  const now = PHASES.map((phase, index) => `${last[index + 1]} ${phase.toLowerCase()}`).join(", ");
  return `The last ${age(spanMs)}: now ${now}; at most ${count(peak, "machine")} ran at once, first at ${clockTime(at)}`;
}

/** The figures beside the curve, which are its legend too. */
export function drawTotals(place, phases) {
  if (place.childElementCount === 0)
    place.append(
      ...PHASES.map((phase) =>
        h(
          "div",
          { class: "total", "data-phase": phase },
          h("strong", {}, "0"),
          h("span", {}, h("span", { class: "mark", "data-phase": phase, "aria-hidden": "true" }, SHAPES[phase]), phase),
        ),
      ),
    );
  for (const element of place.children) {
    const figure = phases[element.dataset.phase].toLocaleString("en");
    if (element.firstChild.textContent !== figure) element.firstChild.textContent = figure;
  }
}
