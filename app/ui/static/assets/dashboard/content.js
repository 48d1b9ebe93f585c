// Content: totals and trend, and the ranked pages of a space over a window, by a metric.

import { address, get } from "./api.js";
import { BoardCard, BoardView, rowsOf } from "./board.js";
import { lineChart } from "./chart.js";
import { h, icons, replace, words } from "./dom.js";
import { METRICS, WINDOWS, compact, number, windowName } from "./format.js";
import { openPage } from "./page.js";
import { choice, empty, loading } from "./parts.js";

export class ContentView extends BoardView {
  constructor(root, context) {
    super(context, "/dashboard");
    this.space = h("select", { "aria-label": "Space", onchange: () => this.go({ space: this.space.value, page: null, rows: null }) });
    this.windows = choice("Window", WINDOWS, (window) => this.go({ window, rows: null }));
    this.metrics = choice("Metric", METRICS, (metric) => this.go({ metric, rows: null, trend: null }));
    this.totals = h("section", { class: "card totals", "aria-label": "Totals" }, loading(4));
    this.board = h("section", { class: "card", "aria-label": "Ranking" }, loading(10));
    replace(root, h("div", { class: "filters" }, this.space, this.windows, this.metrics), this.totals, this.board);
    this.showSpaces([]);
    this.readSpaces();
  }

  show(query) {
    const space = query.get("space") ?? "";
    const window = windowName(query.get("window")) ? query.get("window") : "7d";
    const metric = METRICS.some(([name]) => name === query.get("metric")) ? query.get("metric") : "score";
    const scope = this.context.scopeOf(space);
    this.chosen = space;
    this.context.title(space || "All spaces");
    this.windows.select(window);
    this.metrics.select(metric);
    this.trend = ["views", "likes"].includes(query.get("trend")) ? query.get("trend") : metric === "likes" ? "likes" : "views";
    this.rows = rowsOf(query);
    // The totals are of views and likes, whatever the ranking is by.
    const follow = ["views", "likes", metric].map((one) => ({ scope, window, metric: one }));
    if (this.turnTo({ scope, window, metric }, follow)) this.showSpaces(this.spaces);
    this.ask(this.shown, this.rows, this.trend);
    const page = query.get("page");
    this.showOpened("page", page, (closed) => openPage(page, { closed }));
  }

  changed(topic, version) {
    const { scope, window, metric } = this.shown;
    if (topic === `${scope}:${window}:${metric}` && version <= this.version) return;
    this.again();
    this.opened?.sheet.changed();
  }

  async readSpaces() {
    const found = [];
    let cursor;
    try {
      for (let turn = 0; turn < 10 && cursor !== null; turn += 1) {
        const part = await get(address("/api/v1/spaces", { limit: 100, cursor }));
        found.push(...part.items.map((one) => one.space));
        cursor = part.next_cursor;
      }
    } catch {
      return; // the board says what is wrong
    }
    this.showSpaces(found);
  }

  showSpaces(spaces) {
    this.spaces = spaces;
    const chosen = this.chosen ?? "";
    const known = spaces.includes(chosen) || !chosen ? spaces : [chosen, ...spaces];
    replace(this.space, h("option", { value: "" }, "All spaces"), known.map((name) => h("option", { value: name }, name)));
    this.space.value = chosen;
  }

  async read() {
    const { signal } = this.reading;
    const { scope, window } = this.shown;
    await Promise.all([
      this.part(this.totals, async () => this.showTotals(await get(address("/api/v1/overview", { scope, window }), { signal, old: () => setTimeout(this.again, 2000) }), signal)),
      this.part(this.board, async () => this.showBoard(await get(address("/api/v1/leaderboards", { ...this.shown, limit: this.rows }), { signal }), signal)),
    ]);
  }

  async part(element, act) {
    try {
      await act();
      element.classList.remove("stale");
    } catch (error) {
      if (!this.fail(element, error, element === this.board ? this.card : this.chart)) return;
      if (element === this.board) this.card = null;
      else this.chart = null;
    }
  }

  showTotals(found, signal) {
    if (signal.aborted) return;
    if (!this.chart) {
      this.chart = lineChart();
      this.figures = Object.fromEntries([["views", "Views"], ["likes", "Likes"]].map(([name, text]) => [name, new Figure(text, () => this.go({ trend: name }))]));
      this.compared = h("p", { class: "quiet" });
      replace(this.totals, h("div", { class: "figures" }, Object.values(this.figures).map((one) => one.element), this.compared), this.chart);
    }
    for (const [name, figure] of Object.entries(this.figures)) figure.show(found[name], name === this.trend);
    const { window } = this.shown;
    this.compared.textContent = window === "all" ? "The chart is of the last 90 days" : `compared with the ${windowName(window)} before`;
    this.chart.hidden = !found[this.trend].points.length;
    if (this.chart.hidden) this.compared.textContent = "There is too much to show a trend of";
    this.chart.update({ points: found[this.trend].points, stepS: found.step_s, name: this.trend });
  }

  showBoard(found, signal) {
    if (signal.aborted || found.version < this.version) return;
    const space = this.space.value;
    this.version = found.version;
    if (!found.items.length) {
      this.card = null;
      const text = space ? `Nothing in ${space} was viewed or liked` : "Nothing was viewed or liked";
      replace(this.board, empty(`${text} in this period`, this.context.isAdmin ? firstSteps() : "As soon as something is, it is here."));
      return;
    }
    const linked = (item) => item.page && h("a", { href: this.link({ space: item.page.space, page: null }), "data-route": "" }, words(item.page.space));
    this.card ??= new BoardCard(this.board, {
      board: this.shown,
      title: this.context.publicOnly ? "Top public pages" : "Top pages",
      what: "Page",
      nouns: ["page", "pages"],
      second: space ? null : { name: "Space", cell: linked },
      open: (item) => item.page && this.link({ page: item.page.external_id }),
      more: (rows) => this.go({ rows }),
    });
    this.card.show(found);
  }
}

function firstSteps() {
  const step = (...text) => h("li", {}, ...text);
  const script = h("code", {}, `<script defer src="${location.origin}/plaudit.js" data-key="pk_…"></script>`);
  return h("ol", { class: "steps" }, step("Tell Plaudit of your pages: ", h("a", { href: "/api/docs#Pages" }, h("code", {}, "PUT /api/v1/pages/{id}")), ", from your server."), step("Make a ", h("a", { href: "/dashboard/admin/access", "data-route": "" }, "key"), " for your site, and put this on its pages: ", script), step("Or send views and likes from your server, in batches: ", h("code", {}, "POST /api/v1/events"), "."), step("Look here: the first view shows up by itself."));
}

/** A number with its name and how it changed, which is also the button that shows its trend. */
class Figure {
  constructor(text, choose) {
    this.big = h("span", { class: "big" });
    this.change = h("span", {});
    this.element = h("button", { type: "button", class: "figure", onclick: choose }, h("span", { class: "label" }, text), this.big, this.change);
  }

  show({ total, previous }, isChosen) {
    this.element.setAttribute("aria-pressed", String(isChosen));
    this.big.textContent = compact(total);
    this.big.title = number(total);
    const share = previous ? (100 * (total - previous)) / previous : 0;
    const isSame = Math.abs(share) < 0.05;
    this.change.className = `change ${isSame ? "" : share > 0 ? "up" : "down"}`;
    this.change.title = previous === null ? "" : `${number(previous)} before`;
    if (!previous) replace(this.change, previous === 0 && total ? "none before" : "\u00a0");
    else if (isSame) replace(this.change, "as before");
    else if (share > 999) replace(this.change, icons.up(), h("span", { class: "hidden" }, "up"), "over 999%");
    else replace(this.change, share > 0 ? icons.up() : icons.down(), h("span", { class: "hidden" }, share > 0 ? "up" : "down"), `${Math.abs(share) < 10 ? Math.abs(share).toFixed(1) : Math.round(Math.abs(share))}%`);
  }
}
