// Spaces at a glance: how many pages each has, and what they got in the last seven days.

import { address, get } from "./api.js";
import { h, replace, words } from "./dom.js";
import { compact, number } from "./format.js";
import { empty, failure, loading, paced } from "./parts.js";

export class SpacesView {
  constructor(root, context) {
    this.context = context;
    this.again = paced(() => this.read(), 2000);
    this.card = h("section", { class: "card", "aria-label": "Spaces" }, loading(6));
    replace(root, this.card);
    context.title("Spaces");
    this.most = 100;
  }

  show() {
    const scope = this.context.scopeOf();
    this.context.live.follow([{ scope, window: "7d", metric: "views" }, { scope, window: "7d", metric: "likes" }]);
    this.read();
  }

  changed() {
    this.again();
  }

  stop() {
    this.again.cancel();
  }

  async read() {
    const items = [];
    let cursor;
    try {
      do {
        const part = await get(address("/api/v1/spaces", { limit: 100, cursor }));
        items.push(...part.items);
        cursor = part.next_cursor;
      } while (cursor && items.length < this.most);
    } catch (error) {
      if (error.status !== 401) replace(this.card, failure(error, () => this.read()));
      return;
    }
    this.showSpaces(items, cursor);
  }

  showSpaces(items, cursor) {
    if (!items.length) {
      replace(this.card, empty("There are no spaces yet", "A space is there as soon as a page is put in it."));
      return;
    }
    items.sort((a, b) => b.views_7d - a.views_7d || a.space.localeCompare(b.space));
    const most = Math.max(...items.map((one) => one.views_7d)) || 1;
    const row = (one) => {
      const bar = h("span", { class: "bar", "aria-hidden": "true" });
      bar.style.width = `${Math.max(0.5, (100 * one.views_7d) / most)}%`;
      const to = address("/dashboard", { space: one.space });
      return h("tr", {}, h("td", { class: "what" }, bar, h("span", { class: "name" }, h("a", { href: to, "data-route": "" }, words(one.space)))), h("td", { class: "value second" }, number(one.pages)), h("td", { class: "value" }, compact(one.likes_7d)), h("td", { class: "value" }, compact(one.views_7d)));
    };
    const heads = [["Space", ""], ["Pages", "value second"], ["Likes", "value"], ["Views", "value"]];
    const focused = this.card.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    replace(
      this.card,
      h("div", { class: "head" }, h("h2", {}, "Spaces"), h("span", { class: "quiet" }, "in the last 7 days")),
      h("table", { class: "board" }, h("caption", { class: "hidden" }, "Spaces by views in the last 7 days"), h("thead", {}, h("tr", {}, heads.map(([name, kind]) => h("th", { scope: "col", class: kind }, name)))), h("tbody", {}, items.map(row))),
      cursor && h("div", { class: "more" }, h("button", { type: "button", onclick: () => { this.most += 400; this.read(); } }, "Show more")),
    );
    if (focused) this.card.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }
}
