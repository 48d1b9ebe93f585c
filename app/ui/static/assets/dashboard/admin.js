// The admin's corner: clients and keys, the action catalog, weights with a preview, suspicious scores, refused events.

import { address, get, send } from "./api.js";
import { movement, nameOf } from "./board.js";
import { h, replace, words } from "./dom.js";
import { WINDOWS, ago, dateTime, number } from "./format.js";
import { choice, empty, failure, form, loading } from "./parts.js";

const SCOPES = {
  "pages:write": "make, change and delete pages",
  "events:write": "send views, likes and actions",
  "events:backfill": "send events of any age",
  "stats:read": "read boards and numbers",
  "users:write": "reset passwords, export and erase people",
  "actions:write": "make action tokens",
  "quests:write": "run quests",
  admin: "everything an admin may do",
};

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

// The client that was just made: its secret stays until somebody says that they have saved it.
let made = null;

function secretOf(client, again) {
  const saved = () => {
    made = null;
    again();
  };
  return h("div", { class: "secret", role: "status" }, h("strong", {}, "The secret is shown now and never again"), h("span", {}, "client_id ", h("code", {}, client.client_id)), h("span", {}, "client_secret ", h("code", {}, client.client_secret)), h("div", {}, h("button", { type: "button", onclick: saved }, "I have saved it")));
}

/** What to put on a page so that a key counts it. */
function snippetOf(key) {
  return unfold("How to use it", h("p", { class: "quiet" }, "On each of your pages, which you have made with the API before:"), h("p", {}, h("code", {}, `<script defer src="${location.origin}/plaudit.js" data-key="${key}"></script>`)));
}

async function access(again) {
  const [clients, keys] = await Promise.all([every("/api/v1/clients"), every("/api/v1/keys")]);
  const newClient = form({
    action: "Create client",
    fields: [
      { name: "name", label: "Name", placeholder: "Our wiki’s server", required: true },
      ...Object.entries(SCOPES).map(([scope, what]) => ({ name: scope, label: `${scope}: ${what}`, type: "checkbox" })),
    ],
    submit: async ({ name, ...chosen }) => {
      made = await send("POST", "/api/v1/clients", { name, scopes: Object.keys(chosen).filter((scope) => chosen[scope]) });
      again();
    },
  });
  const newKey = form({
    action: "Create key",
    fields: [
      { name: "name", label: "Name", value: "Browser", required: true },
      { name: "origins", label: "Origins", placeholder: "https://wiki.example", hint: "Sites that may use this key, separated by spaces.", required: true },
    ],
    submit: async ({ name, origins }) => {
      await send("POST", "/api/v1/keys", { name, origins: origins.split(/[\s,]+/).filter(Boolean) });
      again();
    },
  });
  const clientRows = clients.map((one) => h("tr", {}, h("td", {}, words(one.name), h("div", { class: "quiet" }, h("code", {}, one.client_id))), h("td", {}, one.scopes.join(", ")), h("td", {}, one.last_used_at ? ago(one.last_used_at) : "never"), h("td", { class: "acts" }, sure("Revoke", `Revoke the client ${one.name} (${one.client_id})? Its tokens stop working at once.`, () => send("DELETE", `/api/v1/clients/${encodeURIComponent(one.client_id)}`), again))));
  const keyRows = keys.map((one) => h("tr", {}, h("td", {}, words(one.name), h("div", { class: "quiet" }, h("code", {}, one.key)), snippetOf(one.key)), h("td", {}, one.origins.join(", ")), h("td", {}, ago(one.created_at)), h("td", { class: "acts" }, sure("Revoke", `Revoke the key ${one.name} (${one.key})? Pages that use it stop counting at once.`, () => send("DELETE", `/api/v1/keys/${encodeURIComponent(one.key)}`), again))));
  return [
    card("Clients", "Your servers, with a secret", clients.length ? list(["Client", "Scopes", "Last used", ""], clientRows) : empty("There are no clients yet", "A client sends events from your server."), made && secretOf(made, again), unfold("New client", newClient)),
    card("Publishable keys", "Your pages, in browsers", keys.length ? list(["Key", "Origins", "Made", ""], keyRows) : empty("There are no keys yet", "A key lets browsers send views and read public boards."), unfold("New key", newKey)),
  ];
}

function actionForm(known, again, taken = []) {
  const fields = [
    ...(known.type ? [] : [{ name: "type", label: "Type", placeholder: "answer", required: true }]),
    { name: "points", label: "Points", type: "number", value: known.points ?? 10, min: 0 },
    { name: "daily_cap", label: "At most so many points a day", type: "number", value: known.daily_cap ?? "", placeholder: "no limit" },
    { name: "daily_limit", label: "At most so many times a day", type: "number", value: known.daily_limit ?? "", placeholder: "no limit" },
    { name: "cooldown_s", label: "Wait between two (seconds)", type: "number", value: known.cooldown_s ?? "", placeholder: "none" },
    { name: "once_per_object", label: "Once for each object", type: "checkbox", value: known.once_per_object },
    { name: "requires_token", label: "Only with an action token", type: "checkbox", value: known.requires_token },
    { name: "enabled", label: "Enabled", type: "checkbox", value: known.enabled ?? true },
  ];
  const submit = async ({ type, ...terms }) => {
    if (taken.includes(type)) throw Object.assign(new Error("There is an action of this type already: change that one"), { errors: { type: ["is there already"] } });
    await send("PUT", `/api/v1/actions/catalog/${encodeURIComponent(known.type ?? type)}`, terms);
    again();
  };
  return form({ fields, submit, action: known.type ? "Save" : "Add the action" });
}

async function catalog(again) {
  const { items } = await get("/api/v1/actions/catalog");
  const terms = (one) => [one.daily_cap && `at most ${number(one.daily_cap)} points a day`, one.daily_limit && `at most ${number(one.daily_limit)} times a day`, one.cooldown_s && `every ${number(one.cooldown_s)} s`, one.once_per_object && "once for each object", one.requires_token && "with a token"].filter(Boolean).join(", ");
  const rows = items.map((one) =>
    h("tr", {}, h("td", {}, h("code", {}, one.type), " ", !one.enabled && h("span", { class: "badge" }, "off")), h("td", { class: "number" }, number(one.points)), h("td", {}, terms(one) || "no limits", unfold("Change", actionForm(one, again))), h("td", { class: "acts" }, sure("Delete", `Delete ${one.type}? What it paid stays.`, () => send("DELETE", `/api/v1/actions/catalog/${encodeURIComponent(one.type)}`), again))));
  return card("Action catalog", "What earns points, and how many; the server decides", items.length ? list(["Action", "Points", "Limits", ""], rows) : empty("The catalog is empty", "An action that is not in it pays nothing."), unfold("New action", actionForm({}, again, items.map((one) => one.type))));
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
    const row = (one) => h("tr", {}, h("td", { class: "number" }, one.rank), h("td", {}, movement({ rank_change: one.rank_now === null ? null : one.rank_now - one.rank, is_new: one.rank_now === null }, "compared with now")), h("td", {}, words(nameOf(one))), h("td", { class: "number" }, `${number(one.score_now)} → ${number(one.score)}`));
    const apply = form({
      action: "Apply these weights",
      fields: [],
      submit: async () => {
        const planned = (now.history ?? []).some((one) => one.state === "planned");
        if (!confirm(`Score every page by these weights from now on?${planned ? " What was planned for later will not take effect." : ""}`)) return;
        await send("PUT", "/api/v1/settings/weights", values);
        again();
      },
    });
    replace(preview, h("p", {}, moved ? `${number(moved)} ${moved === 1 ? "page" : "pages"} would move on the 7-day board.` : "No page would move on the 7-day board."), items.length ? list(["Rank", "", "Page", "Score"], items.map(row)) : null, apply);
  };
  const chosen = form({ fields, action: "Preview", submit: show });
  chosen.addEventListener("input", () => replace(preview)); // which was of other numbers
  const { done, total } = now.projected ?? {};
  const applied = done < total ? h("p", { class: "quiet", role: "status" }, `Being applied: ${number(done)} of ${number(total)} pages.`) : null;
  if (applied) setTimeout(() => applied.isConnected && again(), 1500);
  const history = (now.history ?? []).map((one) => h("tr", {}, h("td", {}, one.version), h("td", {}, h("span", { class: "badge" }, one.state)), h("td", { class: "number" }, number(one.likes)), h("td", { class: "number" }, number(one.views)), h("td", {}, one.effective_from ? dateTime(one.effective_from) : "from the start")));
  return [card("Weights of the score", h("code", {}, now.formula), applied, chosen, preview), history.length ? card("History", "", list(["Version", "", "Likes", "Views", "From"], history)) : null].filter(Boolean);
}

function why({ rule, details }) {
  if (rule === "points_per_hour") return `${number(details.points)} points within an hour; the limit is ${number(details.most)}`;
  return `${rule} ${Object.entries(details ?? {}).map(([name, value]) => `${name}: ${value}`).join(", ")}`;
}

async function integrity(again) {
  const { items } = await get("/api/v1/integrity/flags?limit=100");
  const names = new Map();
  await Promise.all([...new Set(items.map((one) => one.user_id))].map(async (id) => names.set(id, await get(`/api/v1/users/${id}`).then((user) => nameOf({ user })).catch(() => id))));
  const verdicts = ({ state }, name) => [
    state === "suspended" ? ["dismiss", "Lift suspension", `Lift the suspension of ${name}?`] : ["dismiss", "Dismiss", `Dismiss this flag? ${name} keeps the points.`],
    ...(state === "suspended" ? [] : [["suspend", "Suspend", `Suspend ${name}? They are signed out, and leave the boards.`]]),
    ["reverse", "Reverse", `Take back the points that ${name} got in the flagged hour?`],
  ];
  const row = (one) => {
    const isOpen = one.state === "open" || one.state === "suspended";
    const to = address("/dashboard/people", { user: one.user_id });
    return h("tr", {}, h("td", {}, h("a", { href: to, "data-route": "" }, words(names.get(one.user_id)))), h("td", {}, why(one)), h("td", {}, ago(one.created_at)), h("td", {}, h("span", { class: "badge" }, one.state)), h("td", { class: "acts" }, isOpen && verdicts(one, names.get(one.user_id)).map(([action, text, question]) => sure(text, question, () => send("POST", `/api/v1/integrity/flags/${one.id}/resolve`, { action }), again))));
  };
  return card("Suspicious scores", "Unusually many points in one hour", items.length ? list(["Person", "Why", "When", "State", ""], items.map(row)) : empty("Nothing suspicious", "Whoever gets more points in an hour than your settings allow is listed here."));
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
      replace(body, reasons.length ? list(["Reason", "An event that…", "Events"], reasons.map(([code, count]) => h("tr", {}, h("td", {}, h("code", {}, code)), h("td", {}, REASONS[code] ?? ""), h("td", { class: "number" }, number(count))))) : empty("No event was refused in this period", "Whatever is refused is counted here, with its reason."));
    } catch (error) {
      replace(body, failure(error, show));
    }
  };
  await show();
  return card("Refused events", "Nothing is dropped silently", h("div", { class: "filters" }, windows), body);
}
