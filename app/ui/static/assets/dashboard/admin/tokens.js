// Static tokens, for tools that can only send a fixed header: the tenant's and its users'.

import { send } from "../api.js";
import { empty } from "../components.js";
import { h, userText } from "../dom.js";
import { form } from "../form.js";
import { ago, dateTime } from "../format.js";
import { names } from "../names.js";
import { badge, card, confirmButton, dataTable, secretBox, unfold } from "./components.js";

const DAY_MS = 24 * 3600 * 1000;

// As for clients: on screen until the admin has saved it, while it is in the tenant's list.
let createdToken = null;

export function tokensCard(tokens, reload) {
  const table = dataTable(["Token", "Scopes", "Expires", "Last used", ""], tokens.map((token) => row(token, reload)));
  return card(
    "Static tokens",
    "Tools that can only send a fixed header, such as Grafana",
    tokens.length ? table : empty("There are no static tokens yet", "A tool sends one as Authorization: Bearer."),
    tokens.some((token) => token.id === createdToken?.id) && secretOf(createdToken, reload),
    unfold("New token", tokenForm(reload)),
  );
}

function row(token, reload) {
  const revoke = confirmButton({
    text: "Revoke",
    question: `Revoke the token ${token.name}? It stops working at once.`,
    act: () => send("DELETE", `/api/v1/tokens/${encodeURIComponent(token.id)}`),
    reload,
  });
  return h(
    "tr",
    {},
    h("td", {}, userText(token.name), " ", token.user && badge("of a user")),
    h("td", {}, token.scopes.join(", ")),
    h("td", {}, token.expires_at ? dateTime(token.expires_at) : "never"),
    h("td", {}, token.last_used_at ? ago(token.last_used_at) : "never"),
    h("td", { class: "acts" }, revoke),
  );
}

function secretOf(token, reload) {
  const hide = () => {
    createdToken = null;
    reload();
  };
  return secretBox({ token: token.token }, hide, "Your tool sends it as the header Authorization: Bearer.");
}

function tokenForm(reload) {
  const scopes = names.client_scopes.map(({ name, label }) => ({ name, label: `${name}: ${label}`, type: "checkbox" }));
  const days = { name: "days", label: "Days until it expires", type: "number", min: 1, hint: "Empty: never." };
  return form({
    action: "Create token",
    fields: [{ name: "name", label: "Name", placeholder: "Grafana", required: true }, days, ...scopes],
    submit: async ({ name, days, ...chosen }) => {
      const expires_at = days === null ? null : new Date(Date.now() + days * DAY_MS).toISOString();
      const body = { name, expires_at, scopes: Object.keys(chosen).filter((scope) => chosen[scope]) };
      createdToken = await send("POST", "/api/v1/tokens", body);
      reload();
    },
  });
}
