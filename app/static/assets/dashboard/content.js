// Content: totals and trend, and the ranked pages of a space over a window, by a metric.

import { address, get } from "./api.js";
import { BoardCard, FIRST_ROWS, MOST_ROWS } from "./board.js";
import { lineChart } from "./chart.js";
import { h, icons, replace, words } from "./dom.js";
import { METRICS, WINDOWS, compact, number, windowName } from "./format.js";
import { openPage } from "./page.js";
import { choice, empty, failure, loading, paced } from "./parts.js";

export class ContentView {
  constructor(root, context) {
    this.context = context;
    this.again = paced(() => this.read(), 1000);
    this.filters = h("div", { class: "filters" });
    this.totals = h("section", { class: "card totals", "aria-label": "Totals" }, loading(4));
    this.board = h("section", { class: "card", "aria-label": "Ranking" }, loading(10));
    replace(root, this.filters, this.totals, this.board);
    this.spaces = [];
    this.readSpaces();
  }

  show(query) {
    const before = this.query;
    this.query = { space: query.get("space") ?? "", window: query.get("window") ?? "7d", metric: query.get("metric") ?? "score", rows: Math.min(MOST_ROWS, Number(query.get("rows")) || FIRST_ROWS), trend: query.get("trend") };
    if (!windowName(this.query.window)) this.query.window = "7d";
    if (!METRICS.some(([name]) => name === this.query.metric)) this.query.metric = "score";
    this.context.title(this.query.space || "All spaces");
    this.showFilters();
    const { space, window, metric } = this.query;
    this.shown = { scope: space ? `space:${space}` : "tenant", window, metric };
    this.context.live.follow([this.shown]);
    const key = JSON.stringify(this.shown);
    if (key !== this.key || before?.rows !== this.query.rows || before?.trend !== this.query.trend) {
      if (key !== this.key) this.card = null;
      this.key = key;
      this.read();
    }
    const page = query.get("page");
    if (page !== this.opened?.id) {
      this.opened?.close();
      this.opened = page ? openPage(page, { closed: () => this.closed(page) }) : null;
    }
  }

  closed(page) {
    if (this.opened?.id !== page) return;
    this.opened = null;
    this.go({ page: null });
  }

  go(change) {
    this.context.go(this.link(change));
  }

  link(change) {
    return address("/dashboard", { ...Object.fromEntries(new URLSearchParams(location.search)), ...change });
  }

  changed() {
    this.again();
    this.opened?.changed();
  }

  stop() {
    this.again.cancel();
    this.reading?.abort();
    this.opened?.close();
  }

  async readSpaces() {
    let cursor;
    try {
      for (let turn = 0; turn < 10 && cursor !== null; turn += 1) {
        const part = await get(address("/api/v1/spaces", { limit: 100, cursor }));
        this.spaces.push(...part.items.map((one) => one.space));
        cursor = part.next_cursor;
      }
    } catch {
      return; // the board says what is wrong
    }
    if (this.query) this.showFilters();
  }

  showFilters() {
    const { space, window, metric } = this.query;
    const known = this.spaces.includes(space) || !space ? this.spaces : [space, ...this.spaces];
    const select = h("select", { "aria-label": "Space", onchange: (event) => this.go({ space: event.target.value, page: null, rows: null }) }, h("option", { value: "" }, "All spaces"), known.map((name) => h("option", { value: name }, name)));
    select.value = space;
    const focused = this.filters.contains(document.activeElement) ? document.activeElement.dataset.value : undefined;
    replace(
      this.filters,
      select,
      choice("Window", WINDOWS, window, (value) => this.go({ window: value, rows: null })),
      choice("Metric", METRICS, metric, (value) => this.go({ metric: value, rows: null, trend: null })),
    );
    if (focused) this.filters.querySelector(`[data-value="${CSS.escape(focused)}"]`)?.focus();
  }

  async read() {
    this.reading?.abort();
    this.reading = new AbortController();
    const { signal } = this.reading;
    const { scope, window } = this.shown;
    await Promise.all([
      this.part(this.totals, async () => this.showTotals(await get(address("/api/v1/overview", { scope, window }), { signal }))),
      this.part(this.board, async () => this.showBoard(await get(address("/api/v1/leaderboards", { ...this.shown, limit: this.query.rows }), { signal }))),
    ]);
  }

  async part(element, act) {
    try {
      await act();
    } catch (error) {
      if (error.name === "AbortError" || error.status === 401) return;
      if (element === this.board) this.card = null;
      else this.overview = null;
      replace(element, failure(error, () => this.read()));
    }
  }

  showTotals(found) {
    if (this.overview === found && this.overviewTrend === this.trend) return;
    this.overview = found;
    this.overviewTrend = this.trend;
    const { window } = this.query;
    const shown = found[this.trend];
    const figure = ([name, text]) =>
      h(
        "button",
        { type: "button", class: "figure", "aria-pressed": String(name === this.trend), "data-value": name, onclick: () => this.go({ trend: name }) },
        h("span", { class: "label" }, text),
        h("span", { class: "big", title: number(found[name].total) }, compact(found[name].total)),
        change(found[name]),
      );
    const focused = this.totals.contains(document.activeElement) ? document.activeElement.dataset.value : undefined;
    const before = window === "all" ? h("p", { class: "quiet" }, "The last 90 days") : h("p", { class: "quiet" }, `compared with the ${windowName(window)} before`);
    replace(
      this.totals,
      h("div", { class: "figures" }, [["views", "Views"], ["likes", "Likes"]].map(figure), before),
      lineChart({ points: shown.points, stepS: found.step_s, name: this.trend }),
    );
    if (focused) this.totals.querySelector(`[data-value="${CSS.escape(focused)}"]`)?.focus();
  }

  get trend() {
    return this.query.trend ?? (this.query.metric === "likes" ? "likes" : "views");
  }

  showBoard(found) {
    const { space } = this.query;
    if (!found.items.length) {
      this.card = null;
      const text = space ? `Nothing in ${space} was viewed or liked` : "Nothing was viewed or liked";
      replace(this.board, empty(`${text} in this time`, "Send views and likes with the API, or put ", h("code", {}, "plaudit.js"), " on your pages: the ", h("a", { href: "/api/docs" }, "API’s pages"), " say how."));
      return;
    }
    const linked = (item) => item.page && h("a", { href: this.link({ space: item.page.space, page: null }), "data-route": "" }, words(item.page.space));
    this.card ??= new BoardCard(this.board, {
      board: this.shown,
      title: "Top pages",
      what: "Page",
      nouns: ["page", "pages"],
      second: space ? null : { name: "Space", cell: linked },
      open: (item) => item.page && this.link({ page: item.page.external_id }),
      more: (rows) => this.go({ rows }),
    });
    this.card.show(found);
  }
}

function change({ total, previous }) {
  if (previous === null) return h("span", { class: "change" }, " ");
  if (!previous) return h("span", { class: "change" }, total ? "none before" : " ");
  const share = (100 * (total - previous)) / previous;
  const text = `${Math.abs(share) < 10 ? Math.abs(share).toFixed(1) : Math.round(Math.abs(share))}%`;
  if (Math.abs(share) < 0.05) return h("span", { class: "change", title: `${number(previous)} before` }, "as before");
  return h("span", { class: `change ${share > 0 ? "up" : "down"}`, title: `${number(previous)} before` }, share > 0 ? icons.up() : icons.down(), h("span", { class: "hidden" }, share > 0 ? "up" : "down"), text);
}
