// The elements of every view: choices, bars, sheets, and the states of a card (loading, empty, failed).

import { h, icons } from "./dom.js";

/** A row of buttons of which `select(name)` presses one; `options` are entries with a name and a label. */
export function choice(label, options, onChoose) {
  const buttons = options.map((option) =>
    h("button", { type: "button", onclick: () => onChoose(option.name) }, option.label)
  );
  const element = h("div", { class: "choice", role: "group", "aria-label": label }, buttons);
  element.select = (name) => {
    options.forEach((option, index) => buttons[index].setAttribute("aria-pressed", String(option.name === name)));
  };
  return element;
}

export function loading(lines = 6) {
  return h(
    "div",
    { class: "loading", role: "status" },
    h("span", { class: "hidden" }, "Loading…"),
    Array.from({ length: lines }, () => h("span", { class: "line", "aria-hidden": "true" })),
  );
}

export function empty(title, ...text) {
  return h("div", { class: "empty" }, h("p", { class: "strong" }, title), h("p", {}, ...text));
}

export function failure(error, retry) {
  return h(
    "div",
    { class: "empty failure", role: "alert" },
    h("p", { class: "strong" }, "This could not be loaded"),
    h("p", {}, error.message),
    error.requestId && h("p", { class: "quiet" }, "Request ", h("code", {}, error.requestId)),
    retry && h("button", { type: "button", onclick: retry }, "Try again"),
  );
}

/** The bar behind a row's name. */
export function bar() {
  return h("span", { class: "bar", "aria-hidden": "true" });
}

/** As wide as its share of the largest value, but always visible. */
export function setShare(element, value, largest) {
  element.style.width = `${Math.max(0.5, (100 * value) / (largest || 1))}%`;
}

/** A side sheet over the page with these children: closed by Escape, its button, or a click beside it. */
export function sheet({ label, onClose }, ...children) {
  const close = h("button", { type: "button", class: "close", "aria-label": "Close" }, icons.close());
  const dialog = h(
    "dialog",
    { class: "sheet", "aria-label": label },
    h("div", { class: "sheet-content" }, close, ...children),
  );
  close.addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  dialog.addEventListener("close", () => {
    dialog.remove();
    onClose();
  });
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}
