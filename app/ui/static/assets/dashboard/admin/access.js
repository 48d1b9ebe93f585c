// Clients (servers of the tenant, with a secret), publishable keys (for its pages in browsers) and static tokens.

import { getAll, send } from "../api.js";
import { empty } from "../components.js";
import { h, userText } from "../dom.js";
import { form } from "../form.js";
import { ago } from "../format.js";
import { names } from "../names.js";
import { badge, card, confirmButton, dataTable, secretBox, unfold } from "./components.js";
import { tokensCard } from "./tokens.js";

// Answers with a secret, which stays on screen until the admin confirms having saved it. Shown only while the client
// or key is in the tenant's list: not when that was revoked, nor to another tenant's admin who signs in after this one.
let createdClient = null;
let keyWithSecret = null;

export async function accessTab(reload) {
  const paths = ["/api/v1/clients", "/api/v1/keys", "/api/v1/tokens"];
  const [clients, keys, tokens] = await Promise.all(paths.map((path) => getAll(path)));
  return [clientsCard(clients.items, reload), keysCard(keys.items, reload), tokensCard(tokens.items, reload)];
}

function clientsCard(clients, reload) {
  const table = dataTable(["Client", "Scopes", "Last used", ""], clients.map((client) => clientRow(client, reload)));
  return card(
    "Clients",
    "Your servers, with a secret",
    clients.length ? table : empty("There are no clients yet", "A client sends events from your server."),
    clients.some((client) => client.client_id === createdClient?.client_id) && secretOf(createdClient, reload),
    unfold("New client", clientForm(reload)),
  );
}

function clientRow(client, reload) {
  const revoke = confirmButton({
    text: "Revoke",
    question: `Revoke the client ${client.name} (${client.client_id})? Its tokens stop working at once.`,
    act: () => send("DELETE", `/api/v1/clients/${encodeURIComponent(client.client_id)}`),
    reload,
  });
  return h(
    "tr",
    {},
    h("td", {}, userText(client.name), h("div", { class: "quiet" }, h("code", {}, client.client_id))),
    h("td", {}, client.scopes.join(", ")),
    h("td", {}, client.last_used_at ? ago(client.last_used_at) : "never"),
    h("td", { class: "acts" }, revoke),
  );
}

function clientForm(reload) {
  const scopes = names.client_scopes.map(({ name, label }) => ({ name, label: `${name}: ${label}`, type: "checkbox" }));
  return form({
    action: "Create client",
    fields: [{ name: "name", label: "Name", placeholder: "Our wiki’s server", required: true }, ...scopes],
    submit: async ({ name, ...chosen }) => {
      const body = { name, scopes: Object.keys(chosen).filter((scope) => chosen[scope]) };
      createdClient = await send("POST", "/api/v1/clients", body);
      reload();
    },
  });
}

function secretOf(client, reload) {
  const hide = () => {
    createdClient = null;
    reload();
  };
  return secretBox({ client_id: client.client_id, client_secret: client.client_secret }, hide);
}

function signingSecretOf(key, reload) {
  const hide = () => {
    keyWithSecret = null;
    reload();
  };
  const purpose = "Your server signs the ids of your readers with it, so that they can like pages from their browsers.";
  return secretBox({ key: key.key, signing_secret: key.signing_secret }, hide, purpose);
}

function keysCard(keys, reload) {
  const table = dataTable(["Key", "Origins", "Created", ""], keys.map((key) => keyRow(key, reload)));
  return card(
    "Publishable keys",
    "Your pages, in browsers",
    keys.length ? table : empty("There are no keys yet", "A key lets browsers send views and read public boards."),
    keys.some((key) => key.key === keyWithSecret?.key) && signingSecretOf(keyWithSecret, reload),
    unfold("New key", keyForm(reload)),
  );
}

function keyRow(key, reload) {
  const address = `/api/v1/keys/${encodeURIComponent(key.key)}`;
  const newSecret = confirmButton({
    text: "New signing secret",
    question: `Make a new signing secret for the key ${key.name} (${key.key})? The old one ends at once.`,
    act: async () => {
      keyWithSecret = await send("POST", `${address}/signing-secret`);
    },
    reload,
  });
  const revoke = confirmButton({
    text: "Revoke",
    question: `Revoke the key ${key.name} (${key.key})? Views of pages that use it are no longer counted.`,
    act: () => send("DELETE", address),
    reload,
  });
  return h(
    "tr",
    {},
    h(
      "td",
      {},
      userText(key.name),
      " ",
      key.auto_pages && badge("pages make themselves"),
      h("div", { class: "quiet" }, h("code", {}, key.key)),
      snippetOf(key),
    ),
    h("td", {}, key.origins.join(", ")),
    h("td", {}, ago(key.created_at)),
    h("td", { class: "acts" }, newSecret, revoke),
  );
}

/** The script tag that counts the views of a page. */
function snippetOf({ key, auto_pages }) {
  const tag = `<script defer src="${location.origin}/plaudit.js" data-key="${key}"></script>`;
  const which = auto_pages ? "On each of your pages:" : "On each of your pages, which you have registered before:";
  return unfold(
    "How to use it",
    h("p", { class: "quiet" }, which),
    h("p", {}, h("code", {}, tag)),
  );
}

function keyForm(reload) {
  return form({
    action: "Create key",
    fields: [
      { name: "name", label: "Name", value: "Browser", required: true },
      {
        name: "origins",
        label: "Origins",
        placeholder: "https://wiki.example",
        hint: "Sites that may use this key, separated by spaces.",
        required: true,
      },
      { name: "auto_pages", label: "The first view of an unknown address makes its page", type: "checkbox" },
    ],
    submit: async ({ origins, ...others }) => {
      const body = { ...others, origins: origins.split(/[\s,]+/).filter(Boolean) };
      keyWithSecret = await send("POST", "/api/v1/keys", body);
      reload();
    },
  });
}
