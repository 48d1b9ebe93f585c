// A calm line over time, in SVG: an area, a few lines to read it by, and the value under the pointer or the arrow keys.

import { h, replace, s } from "./dom.js";
import { compact, number, span, tick } from "./format.js";

const HEIGHT = 200;
const TOP = 12;
const BOTTOM = 24;

/** `points`: [{at, value}], each of `stepS` seconds; `name`: of what, such as "views". */
export function lineChart({ points, stepS, name, height = HEIGHT }) {
  const holder = h("div", { class: "chart" });
  const draw = () => drawInto(holder, { points, stepS, name, height });
  let width = 0;
  new ResizeObserver(([entry]) => {
    if (Math.abs(entry.contentRect.width - width) < 1) return;
    width = entry.contentRect.width;
    draw();
  }).observe(holder);
  return holder;
}

function drawInto(holder, { points, stepS, name, height }) {
  const width = holder.clientWidth;
  if (!width || !points.length) return;
  const top = niceTop(Math.max(...points.map((point) => point.value)));
  const left = 8 + 7 * compact(top).length;
  const x = (place) => left + (points.length === 1 ? 0 : (place * (width - left - 8)) / (points.length - 1));
  const y = (value) => TOP + (1 - value / top) * (height - TOP - BOTTOM);
  const line = points.map((point, place) => `${x(place).toFixed(1)} ${y(point.value).toFixed(1)}`).join("L");
  const floor = height - BOTTOM;
  const picture = s(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": summary(points, name) },
    [0, 0.5, 1].map((share) => grid(top * share, { left, width, y })),
    ticks(points, stepS, { x, width, height }),
    s("path", { class: "area", d: `M${x(0)} ${floor}L${line}L${x(points.length - 1)} ${floor}Z` }),
    s("path", { class: "line", d: `M${line}` }),
  );
  const marker = s("g", { class: "marker", hidden: true }, s("line", { y1: TOP, y2: floor }), s("circle", { r: 4 }));
  picture.append(marker);
  const tip = h("div", { class: "tip", role: "status", hidden: true });
  replace(holder, picture, tip);
  holder.tabIndex = 0;
  let at = points.length;
  const show = (place) => {
    at = Math.max(0, Math.min(points.length - 1, place));
    const point = points[at];
    marker.removeAttribute("hidden");
    marker.setAttribute("transform", `translate(${x(at)} 0)`);
    marker.lastChild.setAttribute("cy", y(point.value));
    tip.hidden = false;
    replace(tip, h("strong", {}, `${number(point.value)} ${name}`), h("span", {}, span(point.at, stepS)));
    tip.style.left = `${Math.max(4, Math.min(width - tip.offsetWidth - 4, x(at) - tip.offsetWidth / 2))}px`;
  };
  const hide = () => {
    marker.setAttribute("hidden", "");
    tip.hidden = true;
    at = points.length;
  };
  const under = (event) => {
    const inside = event.clientX - picture.getBoundingClientRect().left - left;
    return Math.round((inside / Math.max(1, width - left - 8)) * (points.length - 1));
  };
  holder.onpointermove = (event) => show(under(event));
  holder.onpointerdown = holder.onpointermove;
  holder.onpointerleave = hide;
  holder.onblur = hide;
  holder.onkeydown = (event) => {
    if (event.key === "ArrowLeft") show(at - 1);
    else if (event.key === "ArrowRight") show(at + 1);
    else return;
    event.preventDefault();
  };
}

function grid(value, { left, width, y }) {
  const at = y(value);
  return [
    s("line", { class: "grid", x1: left, x2: width - 8, y1: at, y2: at }),
    s("text", { class: "axis", x: left - 6, y: at + 4, "text-anchor": "end" }, compact(value)),
  ];
}

function ticks(points, stepS, { x, width, height }) {
  const fit = Math.max(2, Math.min(7, Math.floor(width / 110)));
  const every = Math.max(1, Math.ceil(points.length / fit));
  return points
    .map((point, place) => [point, place])
    .filter(([, place]) => place % every === Math.floor(every / 2))
    .map(([point, place]) =>
      s("text", { class: "axis", x: x(place), y: height - 6, "text-anchor": "middle" }, tick(point.at, stepS * points.length)));
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
