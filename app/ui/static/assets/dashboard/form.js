// A small form that shows beside each field what is wrong with it.

import { h, replace } from "./dom.js";

let lastId = 0;

/**
 * `fields`: name, label, type, value and so on of each; the type may also be "textarea", or "select" with `options`.
 * `submit(values)` may throw a Problem: its errors by field are shown beside the fields, the others above the button,
 * whose text is `action`.
 */
export function form({ fields, submit, action }) {
  const inputs = fields.map((field) => new Field(field));
  const message = h("p", { class: "wrong", role: "alert", hidden: true });
  const button = h("button", { class: "primary" }, action);
  const labels = inputs.map((input) => input.label);
  const element = h("form", { class: "fields", novalidate: true }, labels, message, h("div", {}, button));
  element.addEventListener("submit", async (event) => {
    event.preventDefault();
    message.hidden = true;
    for (const input of inputs) input.showErrors([]);
    const missing = inputs.filter((input) => input.isMissing());
    for (const input of missing) input.showErrors(["is needed"]);
    if (missing.length) return;
    button.disabled = true;
    try {
      await submit(Object.fromEntries(inputs.map((input) => [input.name, input.read()])));
    } catch (error) {
      message.textContent = showFieldErrors(inputs, error);
      message.hidden = !message.textContent;
    } finally {
      button.disabled = false;
    }
  });
  return element;
}

/** Shows errors beside their fields; returns the text of those that belong to no field here. */
function showFieldErrors(inputs, error) {
  const errors = Object.entries(error.errors ?? {});
  if (!errors.length) return error.message;
  const others = [];
  for (const [name, texts] of errors) {
    // An item of a list is named by its place in it: tags.2.
    const input = inputs.find((one) => one.name === name || name.startsWith(`${one.name}.`));
    if (input) input.addErrors(texts);
    else others.push(`${name}: ${texts.join(" ")}`);
  }
  return others.join("; ");
}

class Field {
  constructor({ name, label, type = "text", value, hint, required, options, ...attributes }) {
    this.name = name;
    this.type = type;
    this.required = required;
    const id = `field-${(lastId += 1)}`;
    this.errors = h("span", { class: "wrong", id: `${id}-wrong` });
    const described = { ...attributes, id, required, "aria-describedby": `${id}-wrong` };
    this.input = inputOf(type, described, options);
    if (type === "checkbox") {
      this.input.checked = Boolean(value);
      this.label = h("label", { class: "check", for: id }, this.input, label, this.errors);
    } else {
      this.input.value = value ?? "";
      const explanation = hint && h("span", { class: "quiet" }, hint);
      this.label = h("label", { for: id }, h("span", {}, label), this.input, explanation, this.errors);
    }
  }

  read() {
    if (this.type === "checkbox") return this.input.checked;
    if (this.type === "number") return this.input.value === "" ? null : Number(this.input.value);
    return this.input.value;
  }

  isMissing() {
    return this.required && !String(this.read() ?? "").trim();
  }

  showErrors(texts) {
    replace(this.errors, texts.join(" "));
  }

  addErrors(texts) {
    this.showErrors([this.errors.textContent, ...texts].filter(Boolean));
  }
}

/** Several lines are prose, which the browser may correct; one line is a name or an address. */
function inputOf(type, attributes, options = []) {
  if (type === "textarea") return h("textarea", { rows: 4, ...attributes });
  if (type === "select") {
    return h("select", attributes, options.map(({ name, label }) => h("option", { value: name }, label)));
  }
  return h("input", { autocomplete: "off", autocapitalize: "none", spellcheck: "false", ...attributes, type });
}
