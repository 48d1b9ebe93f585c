// A calm line over time, in SVG: an area, a few lines to read it by, and the value under the pointer or the arrow keys.

import { h, replace, s } from "./dom.js";
import { compact, number, span, tick } from "./format.js";

const HEIGHT = 200;
const TOP = 12;
const BOTTOM = 24;

/** `update({points, stepS, name, isUtcDay})` draws it: points are [{at, value}], `name` is of what, such as "views". */
export function lineChart({ height = HEIGHT } = {}) {
  const chart = new Chart(height);
  chart.holder.update = (data) => {
    chart.data = data;
    chart.draw();
    return chart.holder;
  };
  return chart.holder;
}

class Chart {
  constructor(height) {
    this.height = height;
    this.holder = h("div", { class: "chart", tabindex: "0" });
    this.tip = h("div", { class: "tip", role: "status", hidden: true });
    this.at = null; // the point that is looked at, which stays so when new numbers come
    let width = 0;
    new ResizeObserver(([entry]) => {
      if (Math.abs(entry.contentRect.width - width) < 1) return;
      width = entry.contentRect.width;
      this.draw();
    }).observe(this.holder);
    this.holder.onpointermove = (event) => this.show(this.under(event));
    this.holder.onpointerdown = this.holder.onpointermove;
    this.holder.onpointerleave = (event) => event.pointerType !== "touch" && this.show(null); // a finger that was lifted still reads
    this.holder.onblur = () => this.show(null);
    this.holder.onkeydown = (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step || !this.data) return;
      this.show((this.at ?? this.data.points.length) + step);
      event.preventDefault();
    };
  }

  draw() {
    this.width = this.holder.clientWidth;
    if (!this.width || !this.data?.points.length) return;
    const { points, stepS, name, isUtcDay } = this.data;
    const { width, height } = this;
    this.top = niceTop(Math.max(...points.map((point) => point.value)));
    this.left = 8 + 7 * compact(this.top).length;
    const x = (place) => this.x(place);
    const line = points.map((point, place) => `${x(place).toFixed(1)} ${this.y(point.value).toFixed(1)}`).join("L");
    const floor = height - BOTTOM;
    this.marker = s("g", { class: "marker", hidden: true }, s("line", { y1: TOP, y2: floor }), s("circle", { r: 4 }));
    this.picture = s(
      "svg",
      { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": summary(points, name) },
      [0, 0.5, 1].map((share) => grid(this.top * share, { left: this.left, width, y: (value) => this.y(value) })),
      ticks(points, stepS, { x, width, height, isUtcDay }),
      s("path", { class: "area", d: `M${x(0)} ${floor}L${line}L${x(points.length - 1)} ${floor}Z` }),
      s("path", { class: "line", d: `M${line}` }),
      this.marker,
    );
    replace(this.holder, this.picture, this.tip);
    this.show(this.at);
  }

  x(place) {
    const { points } = this.data;
    return this.left + (points.length === 1 ? 0 : (place * (this.width - this.left - 8)) / (points.length - 1));
  }

  y(value) {
    return TOP + (1 - value / this.top) * (this.height - TOP - BOTTOM);
  }

  under(event) {
    if (!this.data || !this.picture) return null;
    const inside = event.clientX - this.picture.getBoundingClientRect().left - this.left;
    return Math.round((inside / Math.max(1, this.width - this.left - 8)) * (this.data.points.length - 1));
  }

  /** The value of one point; null: of none. */
  show(place) {
    if (!this.picture) return;
    this.tip.hidden = place === null;
    this.marker.toggleAttribute("hidden", place === null);
    this.at = place;
    if (place === null) return;
    const { points, stepS, name, isUtcDay } = this.data;
    this.at = Math.max(0, Math.min(points.length - 1, place));
    const point = points[this.at];
    const x = this.x(this.at);
    this.marker.setAttribute("transform", `translate(${x} 0)`);
    this.marker.lastChild.setAttribute("cy", this.y(point.value));
    replace(this.tip, h("strong", {}, `${number(point.value)} ${name}`), h("span", {}, span(point.at, stepS, isUtcDay)));
    this.tip.style.left = `${Math.max(4, Math.min(this.width - this.tip.offsetWidth - 4, x - this.tip.offsetWidth / 2))}px`;
  }
}

function grid(value, { left, width, y }) {
  const at = y(value);
  return [
    s("line", { class: "grid", x1: left, x2: width - 8, y1: at, y2: at }),
    s("text", { class: "axis", x: left - 6, y: at + 4, "text-anchor": "end" }, compact(value)),
  ];
}

function ticks(points, stepS, { x, width, height, isUtcDay }) {
  const fit = Math.max(2, Math.min(7, Math.floor(width / 90)));
  // Over some days, where a day begins; else at equal distances.
  const isDays = stepS < 86400 && stepS * points.length > 2 * 86400;
  const dayOf = (point) => new Date(point.at).toDateString();
  const begins = points.map((_, place) => place).filter((place) => !isDays || (place > 0 && dayOf(points[place]) !== dayOf(points[place - 1])));
  const every = Math.max(1, Math.ceil(begins.length / fit));
  return begins
    .filter((_, place) => place % every === Math.floor(every / 2))
    .map((place) =>
      s("text", { class: "axis", x: x(place), y: height - 6, "text-anchor": "middle" }, tick(points[place].at, stepS * points.length, isUtcDay)));
}

/** A round number at or above the largest, which halves well too. */
function niceTop(largest) {
  if (largest <= 4) return Math.max(2, 2 * Math.ceil(largest / 2));
  const size = 10 ** Math.floor(Math.log10(largest));
  return [1, 1.2, 1.6, 2, 2.4, 3, 4, 5, 6, 8, 10].map((factor) => factor * size).find((value) => value >= largest);
}

function summary(points, name) {
  const values = points.map((point) => point.value);
  return `${name} over time: ${number(values.reduce((a, b) => a + b, 0))} in all, at most ${number(Math.max(...values))}. Arrow keys read it.`;
}
