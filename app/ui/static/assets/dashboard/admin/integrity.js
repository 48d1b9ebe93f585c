// Suspicious scores: the latest flags, and what an admin can decide about each.

import { get, getAll, send, withQuery } from "../api.js";
import { nameOf } from "../board_table.js";
import { empty } from "../components.js";
import { h, userText, viewLink } from "../dom.js";
import { ago, number } from "../format.js";
import { fillIn, names } from "../names.js";
import { badge, card, confirmButton, dataTable } from "./components.js";

const MAX_FLAGS = 100;

export async function integrityTab(reload) {
  const { items } = await getAll("/api/v1/integrity/flags", { max: MAX_FLAGS });
  const userNames = await namesOf(new Set(items.map((flag) => flag.user_id)));
  const rows = items.map((flag) => flagRow(flag, userNames.get(flag.user_id), reload));
  return card(
    "Suspicious scores",
    "What the rules against cheating have flagged",
    items.length
      ? dataTable(["Person", "Why", "When", "State", ""], rows)
      : empty("Nothing suspicious", "People whom a rule flags are listed here, with the reason."),
  );
}

/** The names of these users; of one who cannot be read, the id. */
async function namesOf(ids) {
  const nameOrId = async (id) => {
    try {
      return [id, nameOf({ user: await get(`/api/v1/users/${id}`) })];
    } catch {
      return [id, id];
    }
  };
  return new Map(await Promise.all([...ids].map(nameOrId)));
}

function flagRow(flag, name, reload) {
  const verdicts = names.flag_verdicts[flag.state] ?? [];
  const buttons = verdicts.map((verdict) =>
    confirmButton({
      text: verdict.label,
      question: fillIn(verdict.question, { name }),
      act: () => send("POST", `/api/v1/integrity/flags/${flag.id}/resolve`, { action: verdict.name }),
      reload,
    })
  );
  const link = viewLink(withQuery("/dashboard/people", { user: flag.user_id }), {}, userText(name));
  return h(
    "tr",
    {},
    h("td", {}, link),
    h("td", {}, reasonOf(flag)),
    h("td", {}, ago(flag.created_at)),
    h("td", {}, badge(flag.state)),
    h("td", { class: "acts" }, buttons),
  );
}

function reasonOf({ rule, details }) {
  const shown = (value) => (Number.isFinite(value) ? number(value) : value);
  const values = Object.entries(details ?? {}).map(([key, value]) => [key, shown(value)]);
  return fillIn(names.flag_rules[rule] ?? rule, Object.fromEntries(values));
}
