// What every view is made of: choices, states, and reading again when something changed.

import { h, replace } from "./dom.js";

/** A row of buttons of which one is chosen; `select` says which. */
export function choice(name, options, choose) {
  const buttons = options.map(([value, text]) => h("button", { type: "button", onclick: () => choose(value) }, text));
  const element = h("div", { class: "choice", role: "group", "aria-label": name }, buttons);
  element.select = (chosen) => {
    options.forEach(([value], place) => buttons[place].setAttribute("aria-pressed", String(value === chosen)));
    return element;
  };
  return element;
}

export function loading(lines = 6) {
  return h("div", { class: "loading", role: "status" }, h("span", { class: "hidden" }, "Loading…"), Array.from({ length: lines }, () => h("span", { class: "line", "aria-hidden": "true" })));
}

export function empty(title, ...text) {
  return h("div", { class: "empty" }, h("p", { class: "strong" }, title), h("p", {}, ...text));
}

export function failure(error, again) {
  const id = error.requestId ? h("p", { class: "quiet" }, "Request ", h("code", {}, error.requestId)) : null;
  return h("div", { class: "empty failure", role: "alert" }, h("p", { class: "strong" }, "This could not be loaded"), h("p", {}, error.message), id, again && h("button", { type: "button", onclick: again }, "Try again"));
}

/** Runs `act` soon, and once more if it is asked for meanwhile, but not too often: many changes are one reading. */
export function paced(act, milliseconds) {
  let timer = null;
  let endedAt = 0;
  let isRunning = false;
  let isAsked = false;
  const run = async () => {
    timer = null;
    isRunning = true;
    try {
      await act();
    } finally {
      isRunning = false;
      endedAt = Date.now();
      if (isAsked) soon();
    }
  };
  const soon = () => {
    isAsked = isRunning;
    if (!isRunning) timer ??= setTimeout(run, Math.max(0, endedAt + milliseconds - Date.now()));
  };
  soon.cancel = () => {
    clearTimeout(timer);
    timer = null;
    isAsked = false;
  };
  return soon;
}

/** A side sheet over the page: closed by Escape, its button, or a click beside it. */
export function sheet({ label, closed }) {
  const content = h("div", { class: "sheet-content" });
  const dialog = h("dialog", { class: "sheet", "aria-label": label }, content);
  dialog.addEventListener("close", () => {
    dialog.remove();
    closed();
  });
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  document.body.append(dialog);
  dialog.showModal();
  return { dialog, content };
}

/** A small form that says beside each field what is wrong with it. */
export function form({ fields, submit, action }) {
  const said = h("p", { class: "wrong", role: "alert", hidden: true });
  const button = h("button", { class: "primary" }, action);
  const element = h("form", { class: "fields", novalidate: true }, fields.map((field) => labelled(field)), said, h("div", {}, button));
  element.addEventListener("submit", async (event) => {
    event.preventDefault();
    said.hidden = true;
    for (const field of fields) field.wrong?.replaceChildren();
    const missing = fields.filter((field) => field.required && !String(field.read()).trim());
    for (const field of missing) replace(field.wrong, "is needed");
    if (missing.length) return;
    button.disabled = true;
    try {
      await submit(Object.fromEntries(fields.map((field) => [field.name, field.read()])), element);
    } catch (error) {
      const unknown = Object.entries(error.errors ?? {}).filter(([name, texts]) => {
        const field = fields.find((one) => one.name === name);
        if (field) replace(field.wrong, texts.join(" "));
        return !field;
      });
      said.hidden = !unknown.length && Object.keys(error.errors ?? {}).length > 0;
      said.textContent = unknown.length ? unknown.map(([name, texts]) => `${name}: ${texts.join(" ")}`).join("; ") : error.message;
    } finally {
      button.disabled = false;
    }
  });
  return element;
}

let numbered = 0;

function labelled(field) {
  const id = `field-${(numbered += 1)}`;
  field.wrong = h("span", { class: "wrong", id: `${id}-wrong` });
  const input = field.input ?? h("input", { type: field.type ?? "text", autocomplete: field.autocomplete ?? "off", value: field.value ?? "", required: field.required, min: field.min, step: field.step, placeholder: field.placeholder, autocapitalize: "none", spellcheck: "false" });
  input.id = id;
  input.setAttribute("aria-describedby", `${id}-wrong`);
  field.read ??= () => {
    if (field.type === "checkbox") return input.checked;
    if (field.type === "number") return input.value === "" ? null : Number(input.value);
    return input.value;
  };
  if (field.type === "checkbox") {
    input.checked = Boolean(field.value);
    return h("label", { class: "check", for: id }, input, field.label, field.wrong);
  }
  return h("label", { for: id }, h("span", {}, field.label), input, field.hint && h("span", { class: "quiet" }, field.hint), field.wrong);
}
