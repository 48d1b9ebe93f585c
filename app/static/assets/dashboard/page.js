// One page: its numbers over every window, and its series by the hour or the day.

import { address, get } from "./api.js";
import { lineChart } from "./chart.js";
import { h, icons, outsideLink, replace, words } from "./dom.js";
import { METRICS, WINDOWS, dateTime, number } from "./format.js";
import { choice, empty, failure, loading, paced, sheet } from "./parts.js";

export function openPage(id, { closed }) {
  return new PageSheet(id, closed);
}

class PageSheet {
  constructor(id, closed) {
    this.id = id;
    this.metric = "views";
    this.step = "day";
    this.again = paced(() => this.read(), 2000);
    const { dialog, content } = sheet({ label: "Page", closed: () => { this.again.cancel(); closed(); } });
    this.dialog = dialog;
    this.head = h("div", {}, loading(2));
    this.stats = h("div", {});
    this.series = h("div", { class: "series" });
    replace(content, h("button", { type: "button", class: "close", "aria-label": "Close", onclick: () => dialog.close() }, icons.close()), this.head, this.series, this.stats);
    this.read();
  }

  get path() {
    return `/api/v1/pages/${encodeURIComponent(this.id)}`;
  }

  close() {
    this.dialog.close();
  }

  changed() {
    this.again();
  }

  async read() {
    try {
      const [page, stats, series] = await Promise.all([get(this.path), get(`${this.path}/stats`), get(address(`${this.path}/series`, { metric: this.metric, step: this.step }))]);
      this.showHead(page);
      this.showSeries(series);
      this.showStats(stats);
    } catch (error) {
      replace(this.series);
      replace(this.stats);
      if (error.code === "page_not_found" || error.status === 404) replace(this.head, empty("There is no such page", "It may have been deleted since."));
      else replace(this.head, failure(error, () => this.read()));
    }
  }

  showHead(page) {
    const facts = [page.space, page.visibility, `added ${dateTime(page.created_at)}`, page.owner && `owned by ${page.owner}`];
    replace(this.head, h("h2", {}, words(page.title || page.external_id)), h("p", { class: "quiet url" }, outsideLink(page.url, {}, words(page.url), " ", icons.out())), h("p", { class: "quiet" }, facts.filter(Boolean).map((fact, place) => [place ? " · " : "", h("bdi", {}, fact)])));
  }

  showSeries(series) {
    const shown = JSON.stringify(series);
    if (this.shown === shown) return;
    this.shown = shown;
    const total = series.points.reduce((sum, point) => sum + point.value, 0);
    const choose = (name) => (value) => {
      this[name] = value;
      this.read();
    };
    const focused = this.series.contains(document.activeElement) ? document.activeElement.dataset.value : undefined;
    replace(
      this.series,
      h("div", { class: "filters" }, choice("Series", METRICS.slice(1), this.metric, choose("metric")), choice("Step", [["hour", "Hourly, 7 days"], ["day", "Daily, 30 days"]], this.step, choose("step"))),
      h("p", { class: "quiet" }, `${number(total)} ${this.metric} in this time`),
      lineChart({ points: series.points, stepS: this.step === "hour" ? 3600 : 86400, name: this.metric, height: 180 }),
    );
    if (focused) this.series.querySelector(`[data-value="${CSS.escape(focused)}"]`)?.focus();
  }

  showStats(stats) {
    replace(
      this.stats,
      h(
        "table",
        { class: "grid" },
        h("caption", { class: "hidden" }, "Over each window"),
        h("thead", {}, h("tr", {}, h("td", {}), WINDOWS.map(([, name]) => h("th", { scope: "col" }, name)))),
        h("tbody", {}, METRICS.map(([metric, name]) => h("tr", {}, h("th", { scope: "row" }, name), WINDOWS.map(([window]) => h("td", {}, number(stats[metric][window])))))),
      ),
    );
  }
}
