// Content: totals and trend, and the ranked pages of a space over a window, by a metric.

import { get, getAll, withQuery } from "./api.js";
import { BoardCard, BoardView, rowsOf } from "./board_view.js";
import { lineChart } from "./chart.js";
import { choice, empty, loading } from "./components.js";
import { h, icons, replace, userText, viewLink } from "./dom.js";
import { compact, DAY_S, number } from "./format.js";
import { topicOf } from "./live.js";
import { countedMetrics, findWindow, nameIn, names, pageMetrics, windows } from "./names.js";
import { PageSheet } from "./page_sheet.js";

const READ_OLD_AGAIN_MS = 2000;

export class ContentView extends BoardView {
  constructor(root, context) {
    super(context, "/dashboard");
    const chooseSpace = () => this.go({ space: this.spaceSelect.value, page: null, rows: null });
    this.spaceSelect = h("select", { "aria-label": "Space", onchange: chooseSpace });
    this.windowChoice = choice("Window", windows, (window) => this.go({ window, rows: null }));
    this.metricChoice = choice("Metric", pageMetrics, (metric) => this.go({ metric, rows: null, trend: null }));
    this.totalsCard = h("section", { class: "card totals", "aria-label": "Totals" }, loading(4));
    this.boardCard = h("section", { class: "card", "aria-label": "Ranking" }, loading(10));
    replace(
      root,
      h("div", { class: "filters" }, this.spaceSelect, this.windowChoice, this.metricChoice),
      this.totalsCard,
      this.boardCard,
    );
    this.spaces = [];
    this.showSpaces();
    this.readSpaces();
  }

  show(query) {
    this.space = query.get("space") ?? "";
    const window = nameIn(windows, query.get("window"), names.defaults.window);
    const metric = nameIn(pageMetrics, query.get("metric"), names.defaults.page_metric);
    const scope = this.context.scopeOf(this.space);
    this.trend = nameIn(countedMetrics, query.get("trend"), nameIn(countedMetrics, metric, countedMetrics[0].name));
    this.rows = rowsOf(query);
    this.context.setTitle(this.space || "All spaces");
    this.windowChoice.select(window);
    this.metricChoice.select(metric);
    // The totals show every counted metric, whatever the ranking is by.
    const followed = [...countedMetrics.map(({ name }) => name), metric];
    const isOther = this.changeBoard(
      { scope, window, metric },
      followed.map((name) => ({ scope, window, metric: name })),
    );
    if (isOther) this.showSpaces();
    this.readIfChanged(this.board, this.rows, this.trend);
    const page = query.get("page");
    this.showSheet("page", page, (onClose) => new PageSheet(page, onClose));
  }

  onChange(topic, version) {
    if (topic === topicOf(this.board)) {
      if (version <= this.version) return;
      this.announce(version);
    }
    this.readSoon();
    this.opened?.sheet.onChange();
  }

  async readSpaces() {
    try {
      const { items } = await getAll("/api/v1/spaces");
      this.spaces = items.map((item) => item.space);
    } catch {
      return; // the board shows what is wrong
    }
    this.showSpaces();
  }

  showSpaces() {
    const space = this.space ?? "";
    const listed = this.spaces.includes(space) || !space ? this.spaces : [space, ...this.spaces];
    replace(
      this.spaceSelect,
      h("option", { value: "" }, "All spaces"),
      listed.map((name) => h("option", { value: name }, name)),
    );
    this.spaceSelect.value = space;
  }

  async read() {
    await Promise.all([this.readTotals(this.reading.signal), this.readBoard(this.reading.signal)]);
  }

  async readTotals(signal) {
    const { scope, window } = this.board;
    const onOld = () => setTimeout(this.readSoon, READ_OLD_AGAIN_MS);
    try {
      const overview = await get(withQuery("/api/v1/overview", { scope, window }), { signal, onOld });
      if (!signal.aborted) this.showTotals(overview);
      this.totalsCard.classList.remove("stale");
    } catch (error) {
      if (this.showError(this.totalsCard, error, this.chart)) this.chart = null;
    }
  }

  showTotals(overview) {
    if (!this.chart) this.createTotals();
    for (const [name, figure] of this.figures) figure.show(overview[name], name === this.trend);
    const { points } = overview[this.trend];
    this.note.textContent = this.noteOn(points, overview.step_s);
    this.chart.hidden = !points.length;
    this.chart.update({ points, stepS: overview.step_s, name: this.trend });
  }

  createTotals() {
    this.chart = lineChart();
    this.figures = new Map(
      countedMetrics.map(({ name, label }) => [name, new Figure(label, () => this.go({ trend: name }))]),
    );
    this.note = h("p", { class: "quiet" });
    const figures = [...this.figures.values()].map((figure) => figure.element);
    replace(this.totalsCard, h("div", { class: "figures" }, figures, this.note), this.chart);
  }

  noteOn(points, stepS) {
    if (!points.length) return "There is too much to show a trend of";
    const window = findWindow(this.board.window);
    if (window.is_sliding) return `compared with the ${window.label} before`;
    return `The chart is of the last ${Math.round((points.length * stepS) / DAY_S)} days`;
  }

  showBoard(board) {
    this.version = board.version;
    if (!board.items.length) {
      this.card = null;
      replace(this.boardCard, this.emptyBoard());
      return;
    }
    this.card ??= new BoardCard(this.boardCard, {
      board: this.board,
      title: this.context.publicOnly ? "Top public pages" : "Top pages",
      subject: "Page",
      nouns: ["page", "pages"],
      second: this.space ? null : { name: "Space", cell: (item) => this.spaceLink(item) },
      linkTo: (item) => item.page && this.link({ page: item.page.external_id }),
      showRows: (rows) => this.go({ rows }),
    });
    this.card.show(board);
  }

  emptyBoard() {
    const what = this.space ? `Nothing in ${this.space} was viewed or liked` : "Nothing was viewed or liked";
    const next = this.context.isAdmin ? firstSteps() : "The first view or like appears here automatically.";
    return empty(`${what} in this period`, next);
  }

  spaceLink({ page }) {
    return page && viewLink(this.link({ space: page.space, page: null }), {}, userText(page.space));
  }
}

function firstSteps() {
  const script = `<script defer src="${location.origin}/plaudit.js" data-key="pk_…"></script>`;
  const pagesEndpoint = h("a", { href: "/api/docs#Pages" }, h("code", {}, "PUT /api/v1/pages/{id}"));
  const keys = viewLink("/dashboard/admin/access", {}, "key");
  return h(
    "ol",
    { class: "steps" },
    h("li", {}, "Register your pages from your server: ", pagesEndpoint, "."),
    h("li", {}, "Create a ", keys, " for your site, and put this on its pages: ", h("code", {}, script)),
    h("li", {}, "Or send views and likes from your server, in batches: ", h("code", {}, "POST /api/v1/events"), "."),
    h("li", {}, "Keep this page open: the first view appears by itself."),
  );
}

/** A total with its label and its change, which is also the button that shows its trend. */
class Figure {
  constructor(label, onChoose) {
    this.total = h("span", { class: "big" });
    this.change = h("span", {});
    const children = [h("span", { class: "label" }, label), this.total, this.change];
    this.element = h("button", { type: "button", class: "figure", onclick: onChoose }, children);
  }

  /** `previous`: the total of the window before; null where there is none. */
  show({ total, previous }, isChosen) {
    this.element.setAttribute("aria-pressed", String(isChosen));
    this.total.textContent = compact(total);
    this.total.title = number(total);
    this.change.title = previous === null ? "" : `${number(previous)} before`;
    this.change.className = "change";
    if (previous) this.showChange((100 * (total - previous)) / previous);
    else replace(this.change, previous === 0 && total ? "none before" : "\u00a0");
  }

  showChange(percent) {
    const size = Math.abs(percent);
    if (size < 0.05) {
      replace(this.change, "as before");
      return;
    }
    const direction = percent > 0 ? "up" : "down";
    this.change.classList.add(direction);
    const text = size > 999 ? "over 999%" : `${size < 10 ? size.toFixed(1) : Math.round(size)}%`;
    replace(this.change, icons[direction](), h("span", { class: "hidden" }, direction), text);
  }
}
