// The elements of the admin's tabs.

import { h } from "../dom.js";

export function card(title, explanation, ...children) {
  const head = h("div", { class: "head" }, h("h2", {}, title), h("p", { class: "quiet" }, explanation));
  return h("section", { class: "card" }, head, ...children);
}

/** A column of numbers, aligned to the right, for `dataTable`. */
export const numbers = (label) => ({ label, style: "number" });

/** `heads`: a label, or `numbers(label)`, for each column. */
export function dataTable(heads, rows) {
  const cells = heads.map((head) => h("th", { scope: "col", class: head.style }, head.label ?? head));
  const table = h("table", { class: "list" }, h("thead", {}, h("tr", {}, cells)), h("tbody", {}, rows));
  return h("div", { class: "scroll" }, table);
}

export const numberCell = (...children) => h("td", { class: "number" }, ...children);

export const badge = (text) => h("span", { class: "badge" }, text);

export function unfold(title, ...children) {
  return h("details", {}, h("summary", {}, title), ...children);
}

/** A button for what cannot be undone: it asks `question` before it calls `act`, and then `reload`. */
export function confirmButton({ text, question, act, reload }) {
  const message = h("span", { class: "wrong", role: "alert" });
  const button = h("button", { type: "button", class: "danger" }, text);
  button.addEventListener("click", async () => {
    if (!confirm(question)) return;
    button.disabled = true;
    try {
      await act();
      reload();
    } catch (error) {
      message.textContent = error.message;
      button.disabled = false;
    }
  });
  return [message, button];
}

/** Secrets that are shown once, by name, each with a button that copies it. */
export function secretBox(shown, hide, purpose) {
  return h(
    "div",
    { class: "secret", role: "status" },
    h("strong", {}, "The secret is shown now and never again"),
    purpose && h("span", {}, purpose),
    Object.entries(shown).map(([name, value]) =>
      h("span", {}, `${name} `, h("code", {}, value), " ", copyButton(value))
    ),
    h("div", {}, h("button", { type: "button", onclick: hide }, "I have saved it")),
  );
}

/** Browsers have a clipboard for pages of https and of the own machine only. */
function copyButton(value) {
  if (!navigator.clipboard) return null;
  const button = h("button", { type: "button" }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(value);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not copied: select it";
    }
  });
  return button;
}
