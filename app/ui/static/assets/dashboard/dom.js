// Elements from data. Text only ever becomes text: nothing here, or anywhere in the dashboard, parses HTML.

export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function s(tag, attributes, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  append(element, children);
  return element;
}

export function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) element.append(child);
  }
  return element;
}

export function replace(element, ...children) {
  element.replaceChildren();
  return append(element, children);
}

export const isOutside = (url) => /^https?:\/\/[^\\]+$/i.test(url ?? "");

/** A link to somebody's page, if it is one that a browser should open; else only its text. */
export function outsideLink(url, attributes, ...children) {
  if (!isOutside(url)) return h("span", attributes, ...children);
  return h("a", { ...attributes, href: url, target: "_blank", rel: "noopener noreferrer nofollow" }, ...children);
}

/** Words of others, in their own direction: they cannot turn ours around. */
export function words(text, attributes) {
  return h("bdi", { ...attributes, title: text }, text);
}

export const icons = {
  up: () => icon("M8 13V4M4 7.5 8 3.5l4 4"),
  down: () => icon("M8 3v9M4 8.5l4 4 4-4"),
  close: () => icon("M4 4l8 8M12 4l-8 8"),
  download: () => icon("M8 2.5v8M4.5 7.5 8 11l3.5-3.5M3 13.5h10"),
  out: () => icon("M6 3.5H3.5v9h9V10M9 3.5h3.5V7M12.5 3.5 7 9"),
  theme: () => icon("M8 2.2a5.8 5.8 0 1 0 0 11.6zM8 2.2a5.8 5.8 0 0 1 0 11.6"),
};

function icon(path) {
  return s("svg", { viewBox: "0 0 16 16", class: "icon", "aria-hidden": "true" }, s("path", { d: path }));
}
