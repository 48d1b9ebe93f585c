// The action catalog: which actions earn points, how many, and their limits. The fields are the server's.

import { get, send } from "../api.js";
import { empty } from "../components.js";
import { h } from "../dom.js";
import { form } from "../form.js";
import { number } from "../format.js";
import { fillIn, names } from "../names.js";
import { badge, card, confirmButton, dataTable, numberCell, numbers, unfold } from "./components.js";

const CATALOG = "/api/v1/actions/catalog";

export async function actionsTab(reload) {
  const { items } = await get(CATALOG);
  const table = dataTable(
    ["Action", numbers("Points"), "Limits", ""],
    items.map((action) => actionRow(action, reload)),
  );
  return card(
    "Action catalog",
    "What earns points, and how many; the server decides",
    items.length ? table : empty("The catalog is empty", "An action that is not in it pays nothing."),
    unfold("New action", newActionForm(items.map((action) => action.type), reload)),
  );
}

function actionRow(action, reload) {
  const remove = confirmButton({
    text: "Delete",
    question: `Delete ${action.type}? What it paid stays.`,
    act: () => send("DELETE", pathOf(action.type)),
    reload,
  });
  return h(
    "tr",
    {},
    h("td", {}, h("code", {}, action.type), " ", !action.enabled && badge("off")),
    numberCell(number(action.points)),
    h("td", {}, limitsOf(action) || "no limits", unfold("Change", changeForm(action, reload))),
    h("td", { class: "acts" }, remove),
  );
}

function limitsOf(action) {
  return names.action_fields
    .filter((field) => field.summary && action[field.name])
    .map((field) => fillIn(field.summary, { value: number(Number(action[field.name])) }))
    .join(", ");
}

const pathOf = (type) => `${CATALOG}/${encodeURIComponent(type)}`;

function fieldsOf(action) {
  return names.action_fields.map(({ name, label, type, placeholder, default: initial }) => ({
    name,
    label,
    type,
    placeholder,
    value: action ? action[name] : initial,
  }));
}

function changeForm(action, reload) {
  const submit = async (terms) => {
    await send("PUT", pathOf(action.type), terms);
    reload();
  };
  return form({ fields: fieldsOf(action), submit, action: "Save" });
}

function newActionForm(takenTypes, reload) {
  const fields = [{ name: "type", label: "Type", placeholder: "answer", required: true }, ...fieldsOf(null)];
  const submit = async ({ type, ...terms }) => {
    // PUT would replace the terms of an action that exists.
    if (takenTypes.includes(type)) {
      throw Object.assign(new Error("This type exists"), { errors: { type: ["is there already: change that one"] } });
    }
    await send("PUT", pathOf(type), terms);
    reload();
  };
  return form({ fields, submit, action: "Add the action" });
}
