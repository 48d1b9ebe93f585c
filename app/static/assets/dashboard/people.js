// People: the scoreboard, over a window, of all or of one segment.

import { address, get } from "./api.js";
import { BoardCard, FIRST_ROWS, MOST_ROWS, nameOf } from "./board.js";
import { h, icons, replace, words } from "./dom.js";
import { WINDOWS, ago, number, windowName } from "./format.js";
import { choice, empty, failure, loading, paced, sheet } from "./parts.js";

export class PeopleView {
  constructor(root, context) {
    this.context = context;
    this.again = paced(() => this.read(), 1000);
    this.filters = h("div", { class: "filters" });
    this.board = h("section", { class: "card", "aria-label": "Scoreboard" }, loading(10));
    replace(root, this.filters, this.board);
    context.title("People");
  }

  show(query) {
    this.query = { window: query.get("window") ?? "7d", segment: query.get("segment") ?? "", rows: Math.min(MOST_ROWS, Number(query.get("rows")) || FIRST_ROWS) };
    if (!windowName(this.query.window)) this.query.window = "7d";
    const { window, segment, rows } = this.query;
    this.shown = { scope: segment ? `users:${segment}` : "users", window, metric: "points" };
    this.context.live.follow([this.shown]);
    this.showFilters();
    const key = JSON.stringify(this.shown);
    if (key !== this.key || rows !== this.rows) {
      if (key !== this.key) this.card = null;
      this.key = key;
      this.rows = rows;
      this.read();
    }
    const user = query.get("user");
    if (user !== this.opened) {
      this.sheet?.close();
      this.opened = user;
      this.sheet = user ? openUser(user, () => this.opened === user && this.go({ user: null })) : null;
    }
  }

  go(change) {
    this.context.go(this.link(change));
  }

  link(change) {
    return address("/dashboard/people", { ...Object.fromEntries(new URLSearchParams(location.search)), ...change });
  }

  changed() {
    this.again();
  }

  stop() {
    this.again.cancel();
    this.sheet?.close();
  }

  showFilters() {
    if (this.filters.contains(document.activeElement) && document.activeElement.tagName === "INPUT") return;
    const segment = h("input", { type: "search", value: this.query.segment, placeholder: "All segments", "aria-label": "Segment", onchange: (event) => this.go({ segment: event.target.value.trim() }) });
    const focused = this.filters.contains(document.activeElement) ? document.activeElement.dataset.value : undefined;
    replace(this.filters, segment, choice("Window", WINDOWS, this.query.window, (value) => this.go({ window: value, rows: null })));
    if (focused) this.filters.querySelector(`[data-value="${CSS.escape(focused)}"]`)?.focus();
  }

  async read() {
    try {
      this.showBoard(await get(address("/api/v1/leaderboards", { ...this.shown, limit: this.query.rows })));
    } catch (error) {
      if (error.status === 401) return;
      this.card = null;
      replace(this.board, failure(error, () => this.read()));
    }
  }

  showBoard(found) {
    if (!found.items.length) {
      this.card = null;
      const whose = this.query.segment ? `in the segment ${this.query.segment} ` : "";
      replace(this.board, empty(`Nobody ${whose}got points in this time`, "Points come from actions: an admin says in the catalog what each is worth."));
      return;
    }
    this.card ??= new BoardCard(this.board, {
      board: this.shown,
      title: "Who contributed",
      what: "Person",
      nouns: ["person", "people"],
      open: (item) => this.link({ user: item.user.id }),
      more: (rows) => this.go({ rows }),
    });
    this.card.show(found);
  }
}

function openUser(id, closed) {
  const { dialog, content } = sheet({ label: "Person", closed });
  const body = h("div", {}, loading(4));
  replace(content, h("button", { type: "button", class: "close", "aria-label": "Close", onclick: () => dialog.close() }, icons.close()), body);
  const path = `/api/v1/users/${encodeURIComponent(id)}`;
  (async () => {
    try {
      const user = await get(path);
      const ledger = await get(`${path}/ledger?limit=20`).catch(() => null); // others' ledgers are for admins
      const facts = [user.role, user.segment && `segment ${user.segment}`, user.suspended && "suspended", `since ${ago(user.created_at)}`];
      replace(
        body,
        h("h2", {}, words(nameOf({ user }))),
        h("p", { class: "quiet" }, facts.filter(Boolean).join(" · ")),
        h("div", { class: "figures" }, figure("Score", user.score), figure("Actions", user.total_actions)),
        ledger && (ledger.items.length ? entries(ledger.items) : h("p", { class: "quiet" }, "No entries in the ledger yet.")),
      );
    } catch (error) {
      replace(body, error.status === 404 ? empty("There is no such person", "They may have been erased since.") : failure(error));
    }
  })();
  return dialog;
}

const figure = (name, value) => h("div", { class: "figure" }, h("span", { class: "label" }, name), h("span", { class: "big" }, number(value ?? 0)));

function entries(items) {
  return h(
    "table",
    { class: "list" },
    h("caption", {}, "Latest in the ledger"),
    h("thead", {}, h("tr", {}, ["When", "What", "Points", "Score"].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, items.map((one) => h("tr", {}, h("td", {}, ago(one.at)), h("td", {}, words(one.reverses ? `${one.action_type ?? one.source}, taken back` : (one.action_type ?? one.source))), h("td", { class: "number" }, `${one.delta > 0 ? "+" : ""}${number(one.delta)}`), h("td", { class: "number" }, number(one.score))))),
  );
}
