// People: the scoreboard, over a window, of all or of one segment.

import { address, get } from "./api.js";
import { BoardCard, BoardView, nameOf, rowsOf } from "./board.js";
import { h, icons, replace, words } from "./dom.js";
import { WINDOWS, ago, number, windowName } from "./format.js";
import { choice, empty, failure, loading, sheet } from "./parts.js";

export class PeopleView extends BoardView {
  constructor(root, context) {
    super(context, "/dashboard/people");
    this.segment = h("input", { type: "search", placeholder: "All segments", "aria-label": "Segment", onchange: () => this.go({ segment: this.segment.value.trim(), rows: null }) });
    this.windows = choice("Window", WINDOWS, (window) => this.go({ window, rows: null }));
    this.board = h("section", { class: "card", "aria-label": "Scoreboard" }, loading(10));
    replace(root, h("div", { class: "filters" }, this.segment, this.windows), this.board);
    context.title("People");
  }

  show(query) {
    const window = windowName(query.get("window")) ? query.get("window") : "7d";
    const segment = query.get("segment") ?? "";
    this.rows = rowsOf(query);
    this.windows.select(window);
    if (this.segment !== document.activeElement) this.segment.value = segment;
    const shown = { scope: segment ? `users:${segment}` : "users", window, metric: "points" };
    this.turnTo(shown, [shown]);
    this.ask(shown, this.rows);
    const user = query.get("user");
    this.showOpened("user", user, (closed) => openUser(user, this.context, closed));
  }

  changed(_topic, version) {
    if (version === undefined || version > this.version) this.again();
  }

  async read() {
    const { signal } = this.reading;
    try {
      const found = await get(address("/api/v1/leaderboards", { ...this.shown, limit: this.rows }), { signal });
      if (!signal.aborted && found.version >= this.version) this.showBoard(found);
      this.board.classList.remove("stale");
    } catch (error) {
      if (this.fail(this.board, error, this.card)) this.card = null;
    }
  }

  showBoard(found) {
    this.version = found.version;
    if (!found.items.length) {
      this.card = null;
      const whose = this.shown.scope.includes(":") ? `in the segment ${this.shown.scope.slice(6)} ` : "";
      replace(this.board, empty(`Nobody ${whose}got points in this period`, "Points come from actions: an admin says in the catalog what each is worth."));
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

function openUser(id, { me, isAdmin }, closed) {
  const { dialog, content } = sheet({ label: "Person", closed });
  const body = h("div", {}, loading(4));
  replace(content, h("button", { type: "button", class: "close", "aria-label": "Close", onclick: () => dialog.close() }, icons.close()), body);
  const path = `/api/v1/users/${encodeURIComponent(id)}`;
  (async () => {
    try {
      const user = await get(path);
      const ledger = isAdmin || id === me.id ? await get(`${path}/ledger?limit=20`) : null; // of others, for admins
      const facts = [user.role, user.segment && `segment ${user.segment}`, user.suspended && "suspended", `joined ${ago(user.created_at)}`];
      replace(
        body,
        h("h2", {}, words(nameOf({ user }))),
        h("p", { class: "quiet" }, facts.filter(Boolean).join(" · ")),
        h("div", { class: "figures" }, figure("Points", user.score), figure("Actions", user.total_actions)),
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
    h("thead", {}, h("tr", {}, [["When"], ["What"], ["Points", "number"], ["Total", "number"]].map(([name, kind]) => h("th", { scope: "col", class: kind }, name)))),
    h("tbody", {}, items.map((one) => h("tr", {}, h("td", {}, ago(one.at)), h("td", {}, words(one.reverses ? `${one.action_type ?? one.source}, taken back` : (one.action_type ?? one.source))), h("td", { class: "number" }, `${one.delta > 0 ? "+" : ""}${number(one.delta)}`), h("td", { class: "number" }, number(one.score))))),
  );
}
