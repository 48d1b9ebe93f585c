// One page: its numbers over every window, and its series by the hour or the day.

import { address, get } from "./api.js";
import { lineChart } from "./chart.js";
import { h, icons, isOutside, outsideLink, replace, words } from "./dom.js";
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
    this.metrics = choice("Series", METRICS.slice(1), (metric) => this.choose({ metric }));
    this.steps = choice("Step", [["hour", "Hourly, 7 days"], ["day", "Daily, 30 days"]], (step) => this.choose({ step }));
    this.total = h("p", { class: "quiet", role: "status" });
    this.chart = lineChart({ height: 180 });
    this.series = h("div", { class: "series", hidden: true }, h("div", { class: "filters" }, this.metrics, this.steps), this.total, this.chart);
    replace(content, h("button", { type: "button", class: "close", "aria-label": "Close", onclick: () => dialog.close() }, icons.close()), this.head, this.series, this.stats);
    this.choose({});
  }

  choose(change) {
    Object.assign(this, change);
    this.metrics.select(this.metric);
    this.steps.select(this.step);
    this.read();
  }

  get path() {
    return `/api/v1/pages/${encodeURIComponent(this.id)}`;
  }

  close() {
    this.dialog.close();
  }

  changed() {
    if (!this.isGone) this.again();
  }

  async read() {
    const { metric, step } = this;
    try {
      const [page, stats, series] = await Promise.all([get(this.path), get(`${this.path}/stats`), get(address(`${this.path}/series`, { metric, step }))]);
      if (metric !== this.metric || step !== this.step) return; // another was chosen meanwhile
      this.series.hidden = false;
      this.showHead(page);
      this.showSeries(series);
      this.showStats(stats);
    } catch (error) {
      this.series.hidden = true;
      replace(this.stats);
      this.isGone = error.status === 404;
      if (this.isGone) replace(this.head, empty("There is no such page", "It may have been deleted since."));
      else replace(this.head, failure(error, () => this.read()));
    }
  }

  showHead(page) {
    const facts = [page.space, page.visibility, `added ${dateTime(page.created_at)}`, page.owner && `owned by ${page.owner}`];
    replace(this.head, h("h2", {}, words(page.title || page.external_id)), h("p", { class: "quiet url" }, outsideLink(page.url, {}, words(page.url), " ", isOutside(page.url) && icons.out())), h("p", { class: "quiet" }, facts.filter(Boolean).map((fact, place) => [place ? " · " : "", h("bdi", {}, fact)])));
  }

  showSeries({ metric, step, points }) {
    const total = points.reduce((sum, point) => sum + point.value, 0);
    this.total.textContent = `${number(total)} ${metric} in this period`;
    this.chart.update({ points, stepS: step === "hour" ? 3600 : 86400, name: metric, isUtcDay: step === "day" });
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
