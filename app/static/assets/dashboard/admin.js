// The admin's corner: clients and keys, the action catalog, weights with a preview, suspicious scores, refused events.

import { address, get, send } from "./api.js";
import { movement, nameOf } from "./board.js";
import { h, replace, words } from "./dom.js";
import { WINDOWS, ago, dateTime, number } from "./format.js";
import { choice, empty, failure, form, loading } from "./parts.js";

const SCOPES = ["pages:write", "events:write", "events:backfill", "stats:read", "users:write", "actions:write", "quests:write", "admin"];

// Columns of numbers, which stand at the right.
const NUMBERS = new Set(["Points", "Events", "Rank", "Score", "Likes", "Views"]);

const REASONS = {
  unknown_page: "names a page that does not exist",
  unknown_type: "is of an unknown type",
  invalid: "is not well formed",
  too_old: "happened too long ago",
  in_the_future: "has not happened yet",
  unknown_action: "names an action that is not in the catalog",
  limited: "was over a limit",
  bot: "came from a robot",
};

export class AdminView {
  constructor(root, context) {
    this.context = context;
    this.tabs = h("div", { class: "filters" });
    this.body = h("div", { class: "admin" });
    replace(root, this.tabs, this.body);
  }

  show(_query, name) {
    const tabs = { __proto__: null, access: ["Clients and keys", access], actions: ["Action catalog", catalog], weights: ["Weights", weights], integrity: ["Suspicious scores", integrity], rejections: ["Refused events", rejections] };
    const chosen = tabs[name] ? name : "access";
    this.context.title(tabs[chosen][0]);
    if (!this.parts) {
      this.parts = choice("Part", Object.entries(tabs).map(([value, [text]]) => [value, text]), (value) => this.context.go(`/dashboard/admin/${value}`));
      replace(this.tabs, this.parts);
    }
    this.parts.select(chosen);
    replace(this.body, h("section", { class: "card" }, loading(5)));
    this.open(tabs[chosen][1]);
  }

  async open(part) {
    this.part = part;
    const again = () => this.part === part && this.open(part);
    try {
      const shown = await part(again);
      if (this.part === part) replace(this.body, shown);
    } catch (error) {
      if (this.part === part && error.status !== 401) replace(this.body, h("section", { class: "card" }, failure(error, again)));
    }
  }

  changed() {}

  stop() {
    this.part = null;
  }
}

const card = (title, explained, ...children) => h("section", { class: "card" }, h("div", { class: "head" }, h("h2", {}, title), h("p", { class: "quiet" }, explained)), ...children);

const list = (heads, rows) => h("div", { class: "scroll" }, h("table", { class: "list" }, h("thead", {}, h("tr", {}, heads.map((name) => h("th", { scope: "col", class: NUMBERS.has(name) ? "number" : null }, name)))), h("tbody", {}, rows)));

const unfold = (title, ...children) => h("details", {}, h("summary", {}, title), ...children);

/** A button that asks once more before it does something that cannot be undone. */
function sure(text, question, act, again) {
  const said = h("span", { class: "wrong", role: "alert" });
  return [said, h("button", {
    type: "button",
    class: "danger",
    onclick: async (event) => {
      if (!confirm(question)) return;
      event.target.disabled = true;
      try {
        await act();
        again();
      } catch (error) {
        said.textContent = error.message;
        event.target.disabled = false;
      }
    },
  }, text)];
}

async function every(path) {
  const items = [];
  let cursor;
  do {
    const part = await get(address(path, { limit: 100, cursor }));
    items.push(...part.items);
    cursor = part.next_cursor;
  } while (cursor && items.length < 1000);
  return items;
}

async function access(again) {
  const [clients, keys] = await Promise.all([every("/api/v1/clients"), every("/api/v1/keys")]);
  const made = h("div", { role: "status" });
  const scopes = h("select", { multiple: true, size: SCOPES.length }, SCOPES.map((name) => h("option", { value: name }, name)));
  const newClient = form({
    action: "Make the client",
    fields: [
      { name: "name", label: "Name", placeholder: "Our wiki’s server", required: true },
      { name: "scopes", label: "Scopes", input: scopes, read: () => [...scopes.selectedOptions].map((one) => one.value), hint: "What it may do. Several with Ctrl or ⌘." },
    ],
    submit: async (values) => {
      const client = await send("POST", "/api/v1/clients", values);
      replace(made, h("div", { class: "secret" }, h("strong", {}, "Its secret is shown now and never again"), h("span", {}, "client_id ", h("code", {}, client.client_id)), h("span", {}, "client_secret ", h("code", {}, client.client_secret)), h("div", {}, h("button", { type: "button", onclick: again }, "I have kept it"))));
    },
  });
  const newKey = form({
    action: "Make the key",
    fields: [
      { name: "name", label: "Name", value: "Browser", required: true },
      { name: "origins", label: "Origins", placeholder: "https://wiki.example", hint: "From which pages it counts, with spaces between.", required: true },
    ],
    submit: async ({ name, origins }) => {
      await send("POST", "/api/v1/keys", { name, origins: origins.split(/[\s,]+/).filter(Boolean) });
      again();
    },
  });
  const clientRows = clients.map((one) => h("tr", {}, h("td", {}, words(one.name), h("div", { class: "quiet" }, h("code", {}, one.client_id))), h("td", {}, one.scopes.join(", ")), h("td", {}, one.last_used_at ? ago(one.last_used_at) : "never"), h("td", { class: "acts" }, sure("Revoke", `Revoke ${one.name}? Its tokens stop working at once.`, () => send("DELETE", `/api/v1/clients/${encodeURIComponent(one.client_id)}`), again))));
  const keyRows = keys.map((one) => h("tr", {}, h("td", {}, words(one.name), h("div", { class: "quiet" }, h("code", {}, one.key))), h("td", {}, one.origins.join(", ")), h("td", {}, ago(one.created_at)), h("td", { class: "acts" }, sure("Revoke", `Revoke ${one.name}? Pages that use it stop counting at once.`, () => send("DELETE", `/api/v1/keys/${encodeURIComponent(one.key)}`), again))));
  return [
    card("Clients", "Your servers, with a secret", clients.length ? list(["Client", "Scopes", "Last used", ""], clientRows) : empty("There are no clients yet", "A client sends events from your server."), made, unfold("New client", newClient)),
    card("Publishable keys", "Your pages, in browsers", keys.length ? list(["Key", "Origins", "Made", ""], keyRows) : empty("There are no keys yet", "A key lets browsers send views and read public boards."), unfold("New key", newKey)),
  ];
}

function actionForm(known, again) {
  const fields = [
    ...(known.type ? [] : [{ name: "type", label: "Type", placeholder: "answer", required: true }]),
    { name: "points", label: "Points", type: "number", value: known.points ?? 10, min: 0 },
    { name: "daily_cap", label: "Points a day at most", type: "number", value: known.daily_cap ?? "", placeholder: "no limit" },
    { name: "cooldown_s", label: "Seconds between two", type: "number", value: known.cooldown_s ?? "", placeholder: "none" },
    { name: "once_per_object", label: "Once for each object", type: "checkbox", value: known.once_per_object },
    { name: "requires_token", label: "Only with an action token", type: "checkbox", value: known.requires_token },
    { name: "enabled", label: "Enabled", type: "checkbox", value: known.enabled ?? true },
  ];
  const submit = async ({ type, ...terms }) => {
    await send("PUT", `/api/v1/actions/catalog/${encodeURIComponent(known.type ?? type)}`, terms);
    again();
  };
  return form({ fields, submit, action: known.type ? "Save" : "Add the action" });
}

async function catalog(again) {
  const { items } = await get("/api/v1/actions/catalog");
  const terms = (one) => [one.daily_cap && `at most ${number(one.daily_cap)} a day`, one.cooldown_s && `every ${number(one.cooldown_s)} s`, one.once_per_object && "once for each object", one.requires_token && "with a token"].filter(Boolean).join(", ");
  const rows = items.map((one) =>
    h("tr", {}, h("td", {}, h("code", {}, one.type), " ", !one.enabled && h("span", { class: "badge" }, "off")), h("td", { class: "number" }, number(one.points)), h("td", {}, terms(one) || "no limits", unfold("Change", actionForm(one, again))), h("td", { class: "acts" }, sure("Delete", `Delete ${one.type}? What it paid stays.`, () => send("DELETE", `/api/v1/actions/catalog/${encodeURIComponent(one.type)}`), again))));
  return card("Action catalog", "What people are paid for; the server decides the points", items.length ? list(["Action", "Points", "Limits", ""], rows) : empty("The catalog is empty", "An action that is not in it pays nothing."), unfold("New action", actionForm({}, again)));
}

async function weights(again) {
  const now = await get("/api/v1/settings/weights");
  const preview = h("div", { role: "status" });
  const fields = [
    { name: "likes", label: "A like counts", type: "number", value: now.likes, min: 0, step: "any" },
    { name: "views", label: "Views count", type: "number", value: now.views, min: 0, step: "any" },
  ];
  const show = async (values) => {
    const { items, moved } = await send("POST", "/api/v1/settings/weights/preview", values);
    const row = (one) => h("tr", {}, h("td", { class: "number" }, one.rank), h("td", {}, movement({ rank_change: one.rank_now === null ? null : one.rank_now - one.rank, is_new: one.rank_now === null })), h("td", {}, words(nameOf(one))), h("td", { class: "number" }, `${number(one.score_now)} → ${number(one.score)}`));
    const apply = form({
      action: "Apply these weights",
      fields: [],
      submit: async () => {
        await send("PUT", "/api/v1/settings/weights", values);
        again();
      },
    });
    replace(preview, h("p", {}, moved ? `${number(moved)} ${moved === 1 ? "page" : "pages"} would move on the 7-day board.` : "No page would move on the 7-day board."), items.length ? list(["Rank", "", "Page", "Score"], items.map(row)) : null, apply);
  };
  const chosen = form({ fields, action: "Preview", submit: show });
  const done = now.projected && now.projected.done < now.projected.total ? h("p", { class: "quiet" }, `Being applied: ${number(now.projected.done)} of ${number(now.projected.total)} pages.`) : null;
  const history = (now.history ?? []).map((one) => h("tr", {}, h("td", {}, one.version), h("td", {}, h("span", { class: "badge" }, one.state)), h("td", { class: "number" }, number(one.likes)), h("td", { class: "number" }, number(one.views)), h("td", {}, one.effective_from ? dateTime(one.effective_from) : "from the start")));
  return [card("Weights of the score", h("code", {}, now.formula), done, chosen, preview), history.length ? card("History", "", list(["Version", "", "Likes", "Views", "From"], history)) : null].filter(Boolean);
}

function why({ rule, details }) {
  if (rule === "points_per_hour") return `${number(details.points)} points within an hour; more than ${number(details.most)} are looked at`;
  return `${rule} ${Object.entries(details ?? {}).map(([name, value]) => `${name}: ${value}`).join(", ")}`;
}

async function integrity(again) {
  const { items } = await get("/api/v1/integrity/flags?limit=100");
  const names = new Map();
  await Promise.all([...new Set(items.map((one) => one.user_id))].map(async (id) => names.set(id, await get(`/api/v1/users/${id}`).then((user) => nameOf({ user })).catch(() => id))));
  const verdicts = [["dismiss", "Dismiss", "Dismiss this flag?"], ["suspend", "Suspend", "Suspend this person?"], ["reverse", "Reverse", "Take back the points of the flagged time?"]];
  const row = (one) => {
    const isOpen = one.state === "open" || one.state === "suspended";
    const to = address("/dashboard/people", { user: one.user_id });
    return h("tr", {}, h("td", {}, h("a", { href: to, "data-route": "" }, words(names.get(one.user_id)))), h("td", {}, why(one)), h("td", {}, ago(one.created_at)), h("td", {}, h("span", { class: "badge" }, one.state)), h("td", { class: "acts" }, isOpen && verdicts.map(([action, text, question]) => sure(text, question, () => send("POST", `/api/v1/integrity/flags/${one.id}/resolve`, { action }), again))));
  };
  return card("Suspicious scores", "Flagged by what people got in an hour", items.length ? list(["Person", "Why", "When", "State", ""], items.map(row)) : empty("Nothing suspicious", "Whoever gets more points in an hour than your settings allow is listed here."));
}

async function rejections() {
  let window = "1d";
  const body = h("div", {});
  const windows = choice("Window", WINDOWS.slice(0, 3), (value) => {
    window = value;
    show();
  });
  const show = async () => {
    windows.select(window);
    try {
      const found = await get(address("/api/v1/ingest/rejections", { window }));
      if (found.window !== window) return; // another was chosen meanwhile
      const reasons = Object.entries(found.reasons).sort((a, b) => b[1] - a[1]);
      replace(body, reasons.length ? list(["Reason", "An event that…", "Events"], reasons.map(([code, count]) => h("tr", {}, h("td", {}, h("code", {}, code)), h("td", {}, REASONS[code] ?? ""), h("td", { class: "number" }, number(count))))) : empty("No event was refused in this time", "Whatever is refused is counted here, with its reason."));
    } catch (error) {
      replace(body, failure(error, show));
    }
  };
  await show();
  return card("Refused events", "Nothing is dropped silently", h("div", { class: "filters" }, windows), body);
}
