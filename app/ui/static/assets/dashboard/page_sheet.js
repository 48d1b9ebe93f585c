// One page: its numbers over every window, and its series by the hour or the day.

import { get, withQuery } from "./api.js";
import { lineChart } from "./chart.js";
import { choice, empty, failure, loading, sheet } from "./components.js";
import { externalLink, h, icons, isExternalUrl, replace, userText } from "./dom.js";
import { dateTime, DAY_S, number } from "./format.js";
import { countedMetrics, names, pageMetrics, windows } from "./names.js";
import { throttled } from "./throttle.js";

export class PageSheet {
  constructor(id, onClose) {
    this.path = `/api/v1/pages/${encodeURIComponent(id)}`;
    this.metric = countedMetrics[0].name;
    this.step = names.defaults.series_step;
    this.readSoon = throttled(() => this.read(), 2000);
    this.head = h("div", {}, loading(2));
    this.metricChoice = choice("Series", countedMetrics, (metric) => this.choose({ metric }));
    this.stepChoice = choice("Step", names.series_steps, (step) => this.choose({ step }));
    this.total = h("p", { class: "quiet", role: "status" });
    this.chart = lineChart({ height: 180 });
    const filters = h("div", { class: "filters" }, this.metricChoice, this.stepChoice);
    this.series = h("div", { class: "series", hidden: true }, filters, this.total, this.chart);
    this.stats = h("div", {});
    const close = () => {
      this.readSoon.cancel();
      onClose();
    };
    this.dialog = sheet({ label: "Page", onClose: close }, this.head, this.series, this.stats);
    this.choose({});
  }

  choose(change) {
    Object.assign(this, change);
    this.metricChoice.select(this.metric);
    this.stepChoice.select(this.step);
    this.read();
  }

  close() {
    this.dialog.close();
  }

  onChange() {
    if (!this.isDeleted) this.readSoon();
  }

  async read() {
    const { metric, step } = this;
    try {
      const [page, stats, series] = await Promise.all([
        get(this.path),
        get(`${this.path}/stats`),
        get(withQuery(`${this.path}/series`, { metric, step })),
      ]);
      if (metric !== this.metric || step !== this.step) return; // the reader chose another meanwhile
      this.series.hidden = false;
      this.showHead(page);
      this.showSeries(series);
      this.showStats(stats);
    } catch (error) {
      this.showError(error);
    }
  }

  showError(error) {
    this.series.hidden = true;
    replace(this.stats);
    this.isDeleted = error.status === 404;
    if (this.isDeleted) replace(this.head, empty("There is no such page", "It may have been deleted since."));
    else replace(this.head, failure(error, () => this.read()));
  }

  showHead(page) {
    const facts = [
      page.space,
      page.visibility,
      `added ${dateTime(page.created_at)}`,
      page.owner && `owned by ${page.owner}`,
    ].filter(Boolean);
    const icon = isExternalUrl(page.url) && icons.external();
    replace(
      this.head,
      h("h2", {}, userText(page.title || page.external_id)),
      h("p", { class: "quiet url" }, externalLink(page.url, {}, userText(page.url), " ", icon)),
      h("p", { class: "quiet" }, facts.map((fact, index) => [index ? " · " : "", h("bdi", {}, fact)])),
    );
  }

  showSeries({ metric, step, points }) {
    const total = points.reduce((sum, point) => sum + point.value, 0);
    const { seconds } = names.series_steps.find((entry) => entry.name === step);
    this.total.textContent = `${number(total)} ${metric} in this period`;
    this.chart.update({ points, stepS: seconds, name: metric, isUtcDay: seconds === DAY_S });
  }

  showStats(stats) {
    const heads = windows.map((window) => h("th", { scope: "col" }, window.label));
    const row = (metric) => {
      const cells = windows.map((window) => h("td", {}, number(stats[metric.name][window.name])));
      return h("tr", {}, h("th", { scope: "row" }, metric.label), cells);
    };
    replace(
      this.stats,
      h(
        "table",
        { class: "grid" },
        h("caption", { class: "hidden" }, "Over each window"),
        h("thead", {}, h("tr", {}, h("td", {}), heads)),
        h("tbody", {}, pageMetrics.map(row)),
      ),
    );
  }
}
