// Elements from data. Text only ever becomes text: nothing here, or anywhere in the dashboard, parses HTML.

export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes, ...children) {
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

export const isExternalUrl = (url) => /^https?:\/\/[^\\]+$/i.test(url ?? "");

/** A link to a tenant's page if a browser can open it safely, else only its text. */
export function externalLink(url, attributes, ...children) {
  if (!isExternalUrl(url)) return h("span", attributes, ...children);
  return h("a", { ...attributes, href: url, target: "_blank", rel: "noopener noreferrer nofollow" }, ...children);
}

/** A link to another view of the dashboard: main.js shows it without loading the page again. */
export function viewLink(href, attributes, ...children) {
  return h("a", { ...attributes, href, "data-route": "" }, ...children);
}

/** Text that users wrote, isolated so that its writing direction does not change ours. */
export function userText(text) {
  return h("bdi", { title: text }, text);
}

export const icons = {
  up: () => icon("M8 13V4M4 7.5 8 3.5l4 4"),
  down: () => icon("M8 3v9M4 8.5l4 4 4-4"),
  close: () => icon("M4 4l8 8M12 4l-8 8"),
  download: () => icon("M8 2.5v8M4.5 7.5 8 11l3.5-3.5M3 13.5h10"),
  external: () => icon("M6 3.5H3.5v9h9V10M9 3.5h3.5V7M12.5 3.5 7 9"),
  theme: () => icon("M8 2.2a5.8 5.8 0 1 0 0 11.6zM8 2.2a5.8 5.8 0 0 1 0 11.6"),
};

function icon(path) {
  return svg("svg", { viewBox: "0 0 16 16", class: "icon", "aria-hidden": "true" }, svg("path", { d: path }));
}
