// A line over time in SVG: an area, a few grid lines, and the value under the pointer or chosen by the arrow keys.

import { h, replace, svg } from "./dom.js";
import { compact, DAY_S, number, period, tick } from "./format.js";

const HEIGHT = 200;
const TOP = 12;
const BOTTOM = 24;
const RIGHT = 8;
const DIGIT_PX = 7;
const TICK_PX = 90;
const TOP_FACTORS = [1, 1.2, 1.6, 2, 2.4, 3, 4, 5, 6, 8, 10];

/** `update({points, stepS, name, isUtcDay})` draws it: points are [{at, value}], `name` is the metric. */
export function lineChart({ height = HEIGHT } = {}) {
  const chart = new Chart(height);
  chart.element.update = (data) => {
    chart.data = data;
    chart.draw();
  };
  return chart.element;
}

class Chart {
  constructor(height) {
    this.height = height;
    this.element = h("div", { class: "chart", tabindex: "0" });
    this.tip = h("div", { class: "tip", role: "status", hidden: true });
    this.chosen = null; // the index of the point whose value is shown; new data does not change it
    this.redrawWhenResized();
    this.listen();
  }

  redrawWhenResized() {
    let width = 0;
    new ResizeObserver(([entry]) => {
      if (Math.abs(entry.contentRect.width - width) < 1) return;
      width = entry.contentRect.width;
      this.draw();
    }).observe(this.element);
  }

  listen() {
    this.element.onpointermove = (event) => this.choose(this.indexUnder(event));
    this.element.onpointerdown = this.element.onpointermove;
    // A finger that was lifted leaves the value on screen to be read.
    this.element.onpointerleave = (event) => event.pointerType !== "touch" && this.choose(null);
    this.element.onblur = () => this.choose(null);
    this.element.onkeydown = (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step || !this.data) return;
      this.choose((this.chosen ?? this.data.points.length) + step);
      event.preventDefault();
    };
  }

  draw() {
    this.width = this.element.clientWidth;
    if (!this.width || !this.data?.points.length) return;
    const { points, name } = this.data;
    const { width, height } = this;
    this.max = roundUp(Math.max(...points.map((point) => point.value)));
    this.left = 8 + DIGIT_PX * compact(this.max).length;
    const line = points.map((point, index) => `${this.x(index).toFixed(1)} ${this.y(point.value).toFixed(1)}`).join(
      "L",
    );
    const floor = height - BOTTOM;
    this.marker = svg(
      "g",
      { class: "marker", hidden: true },
      svg("line", { y1: TOP, y2: floor }),
      svg("circle", { r: 4 }),
    );
    this.picture = svg(
      "svg",
      { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": summary(points, name) },
      [0, 0.5, 1].map((share) => this.gridLine(this.max * share)),
      this.ticks(),
      svg("path", { class: "area", d: `M${this.x(0)} ${floor}L${line}L${this.x(points.length - 1)} ${floor}Z` }),
      svg("path", { class: "line", d: `M${line}` }),
      this.marker,
    );
    replace(this.element, this.picture, this.tip);
    this.choose(this.chosen);
  }

  x(index) {
    const { points } = this.data;
    return this.left + (points.length === 1 ? 0 : (index * (this.width - this.left - RIGHT)) / (points.length - 1));
  }

  y(value) {
    return TOP + (1 - value / this.max) * (this.height - TOP - BOTTOM);
  }

  indexUnder(event) {
    if (!this.picture) return null;
    const inside = event.clientX - this.picture.getBoundingClientRect().left - this.left;
    return Math.round((inside / Math.max(1, this.width - this.left - RIGHT)) * (this.data.points.length - 1));
  }

  /** Shows the value of one point; null shows none. */
  choose(index) {
    if (!this.picture) return;
    this.tip.hidden = index === null;
    this.marker.toggleAttribute("hidden", index === null);
    this.chosen = index;
    if (index === null) return;
    const { points, stepS, name, isUtcDay } = this.data;
    this.chosen = Math.max(0, Math.min(points.length - 1, index));
    const point = points[this.chosen];
    const x = this.x(this.chosen);
    this.marker.setAttribute("transform", `translate(${x} 0)`);
    this.marker.lastChild.setAttribute("cy", this.y(point.value));
    const when = period(point.at, stepS, isUtcDay);
    replace(this.tip, h("strong", {}, `${number(point.value)} ${name}`), h("span", {}, when));
    const tipWidth = this.tip.offsetWidth;
    this.tip.style.left = `${Math.max(4, Math.min(this.width - tipWidth - 4, x - tipWidth / 2))}px`;
  }

  gridLine(value) {
    const y = this.y(value);
    return [
      svg("line", { class: "grid", x1: this.left, x2: this.width - RIGHT, y1: y, y2: y }),
      svg("text", { class: "axis", x: this.left - 6, y: y + 4, "text-anchor": "end" }, compact(value)),
    ];
  }

  ticks() {
    const { points, stepS, isUtcDay } = this.data;
    const maxTicks = Math.max(2, Math.min(7, Math.floor(this.width / TICK_PX)));
    const candidates = tickIndexes(points, stepS);
    const every = Math.max(1, Math.ceil(candidates.length / maxTicks));
    const y = this.height - 6;
    return candidates
      .filter((_, place) => place % every === Math.floor(every / 2))
      .map((index) => {
        const text = tick(points[index].at, stepS * points.length, isUtcDay);
        const anchor = index === points.length - 1 ? "end" : "middle"; // the last would not fit
        return svg("text", { class: "axis", x: this.x(index), y, "text-anchor": anchor }, text);
      });
  }
}

/** The points that may have a label: over several days the first of each day, else every one. */
function tickIndexes(points, stepS) {
  const indexes = points.map((_, index) => index);
  if (stepS >= DAY_S || stepS * points.length <= 2 * DAY_S) return indexes;
  const days = points.map((point) => new Date(point.at).toDateString());
  return indexes.filter((index) => index > 0 && days[index] !== days[index - 1]);
}

/** A round number at or above the largest value; half of it, at the middle grid line, is round too. */
function roundUp(largest) {
  if (largest <= 4) return Math.max(2, 2 * Math.ceil(largest / 2));
  const magnitude = 10 ** Math.floor(Math.log10(largest));
  return TOP_FACTORS.map((factor) => factor * magnitude).find((value) => value >= largest);
}

function summary(points, name) {
  const values = points.map((point) => point.value);
  const total = values.reduce((sum, value) => sum + value, 0);
  const max = Math.max(...values);
  return `${name} over time: ${number(total)} in all, at most ${number(max)}. Use the arrow keys to read each value.`;
}
