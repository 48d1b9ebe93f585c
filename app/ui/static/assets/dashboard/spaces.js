// Spaces: how many pages each has, and their counts in the last days.

import { getAll, withQuery } from "./api.js";
import { bar, empty, failure, loading, setShare } from "./components.js";
import { h, replace, userText, viewLink } from "./dom.js";
import { compact, number } from "./format.js";
import { countedMetrics, findWindow, names } from "./names.js";
import { throttled } from "./throttle.js";

const FIRST_SPACES = 100;
const MORE_SPACES = 400;
const { counts } = names.spaces;
const [ranked] = counts; // the list is ordered by it
const HEADS = [["Space"], ["Pages", "value second"], ...counts.map(({ label }) => [label, "value"])];

export class SpacesView {
  constructor(root, context) {
    this.context = context;
    this.readSoon = throttled(() => this.read(), 2000);
    this.card = h("section", { class: "card", "aria-label": "Spaces" }, loading(6));
    this.max = FIRST_SPACES;
    replace(root, this.card);
    context.setTitle("Spaces");
  }

  show() {
    const scope = this.context.scopeOf();
    this.context.live.follow(countedMetrics.map(({ name }) => ({ scope, window: names.spaces.window, metric: name })));
    this.read();
  }

  onChange() {
    this.readSoon();
  }

  stop() {
    this.readSoon.cancel();
  }

  async read() {
    try {
      this.showSpaces(await getAll("/api/v1/spaces", { max: this.max }));
    } catch (error) {
      if (error.status !== 401) replace(this.card, failure(error, () => this.read()));
    }
  }

  showSpaces({ items, hasMore }) {
    if (!items.length) {
      replace(this.card, empty("There are no spaces yet", "A space exists as soon as a page is put in it."));
      return;
    }
    items.sort((a, b) => b[ranked.name] - a[ranked.name] || a.space.localeCompare(b.space));
    const largest = items[0][ranked.name];
    const focused = this.card.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    const period = `in the last ${findWindow(names.spaces.window).label}`;
    replace(
      this.card,
      h("div", { class: "head" }, h("h2", {}, "Spaces"), h("span", { class: "quiet" }, period)),
      h(
        "table",
        { class: "board" },
        h("caption", { class: "hidden" }, `Spaces by ${ranked.label.toLowerCase()} ${period}`),
        h("thead", {}, h("tr", {}, HEADS.map(([name, style]) => h("th", { scope: "col", class: style }, name)))),
        h("tbody", {}, items.map((item) => spaceRow(item, largest))),
      ),
      hasMore &&
        h("div", { class: "more" }, h("button", { type: "button", onclick: () => this.showMore() }, "Show more")),
    );
    // The rows are new elements: give the focus back to the same link.
    if (focused) this.card.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }

  showMore() {
    this.max += MORE_SPACES;
    this.read();
  }
}

function spaceRow(item, largest) {
  const share = bar();
  setShare(share, item[ranked.name], largest);
  const link = viewLink(withQuery("/dashboard", { space: item.space }), {}, userText(item.space));
  return h(
    "tr",
    {},
    h("td", { class: "what" }, share, h("span", { class: "name" }, link)),
    h("td", { class: "value second" }, number(item.pages)),
    counts.map(({ name }) => h("td", { class: "value" }, compact(item[name]))),
  );
}
