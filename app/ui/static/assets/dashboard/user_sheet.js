// One person: their role, points, XP and reputation, and latest ledger entries.

import { get, send } from "./api.js";
import { nameOf } from "./board_table.js";
import { empty, failure, loading, sheet } from "./components.js";
import { h, replace, userText } from "./dom.js";
import { ago, dateTime, number } from "./format.js";
import { findMetric, names } from "./names.js";
import { picture } from "./person.js";

const LEDGER_ROWS = 20;

export function openUserSheet(id, { me, isAdmin }, onClose) {
  const body = h("div", {}, loading(4));
  const maySeeLedger = isAdmin || id === me.id;
  showUser(body, id, { maySeeLedger, isAdmin });
  return sheet({ label: "Person", onClose }, body);
}

async function showUser(body, id, { maySeeLedger, isAdmin }) {
  const path = `/api/v1/users/${encodeURIComponent(id)}`;
  try {
    const user = await get(path);
    const ledger = maySeeLedger ? await get(`${path}/ledger?limit=${LEDGER_ROWS}`) : null;
    replace(body, head(user), isAdmin && user.username && signOutOf(path), ledger && entries(ledger.items));
  } catch (error) {
    if (error.status === 404) replace(body, empty("There is no such person", "They may have been erased since."));
    else replace(body, failure(error));
  }
}

function head(user) {
  const facts = [
    user.role,
    user.display_name && (user.username ?? user.external_id),
    user.segments.length && `${user.segments.length > 1 ? "segments" : "segment"} ${user.segments.join(", ")}`,
    user.suspended && (user.suspended_until ? `suspended until ${dateTime(user.suspended_until)}` : "suspended"),
    `joined ${ago(user.created_at)}`,
  ];
  return [
    h("h2", { class: "person" }, picture(user, "large"), userText(nameOf({ user }))),
    h("p", { class: "quiet" }, facts.filter(Boolean).join(" · ")),
    h("div", { class: "figures" }, names.person_figures.map(({ name, label }) => figure(label, user[name]))),
  ];
}

/** Ends all sessions of somebody who logs in here, such as after a device was lost. */
function signOutOf(path) {
  const message = h("span", { class: "quiet", role: "status" });
  const button = h("button", {
    type: "button",
    onclick: async () => {
      button.disabled = true;
      try {
        await send("DELETE", `${path}/sessions`);
        message.textContent = " Signed out on all devices.";
      } catch (error) {
        message.textContent = ` ${error.message}`;
        button.disabled = false;
      }
    },
  }, "Sign out everywhere");
  return h("p", {}, button, message);
}

function figure(label, value) {
  const total = h("span", { class: "big" }, number(value ?? 0));
  return h("div", { class: "figure" }, h("span", { class: "label" }, label), total);
}

function entries(items) {
  if (!items.length) return h("p", { class: "quiet" }, "No entries in the ledger yet.");
  const heads = [["When"], ["What"], ["Change", "number"], ["Total", "number"]];
  return h(
    "table",
    { class: "list" },
    h("caption", {}, "Latest in the ledger"),
    h("thead", {}, h("tr", {}, heads.map(([name, style]) => h("th", { scope: "col", class: style }, name)))),
    h("tbody", {}, items.map(entryRow)),
  );
}

function entryRow(entry) {
  const what = entry.action_type ?? entry.source;
  const account = entry.account !== names.defaults.user_metric &&
    h("span", { class: "quiet" }, ` · ${findMetric(entry.account).label}`);
  return h(
    "tr",
    {},
    h("td", {}, ago(entry.at)),
    h("td", {}, userText(entry.reverses ? `${what}, taken back` : what), account),
    h("td", { class: "number" }, `${entry.delta > 0 ? "+" : ""}${number(entry.delta)}`),
    h("td", { class: "number" }, number(entry.score)),
  );
}
