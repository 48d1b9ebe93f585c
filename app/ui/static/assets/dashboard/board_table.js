// The ranked table: rows with bars and movement. A row that changes its rank glides to its new place.

import { bar, setShare } from "./components.js";
import { append, externalLink, h, icons, isExternalUrl, replace, userText, viewLink } from "./dom.js";
import { compact, number } from "./format.js";
import { personName, picture } from "./person.js";

const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");
const GLIDE = { duration: 450, easing: "cubic-bezier(.2,.7,.2,1)" };
const HIGHLIGHT = { duration: 1500, easing: "ease-in" };

export class BoardTable {
  /** `second`: a column in the middle, as {name, cell(item)}; `linkTo(item)`: the address of a row's own view. */
  constructor({ caption, subject, metric, linkTo, second }) {
    this.linkTo = linkTo;
    this.second = second;
    this.rows = new Map();
    this.body = h("tbody", {});
    const heads = [
      h("th", { class: "rank", scope: "col" }, h("abbr", { title: "Rank" }, "#")),
      h("th", { scope: "col" }, subject),
      second && h("th", { scope: "col", class: "second" }, second.name),
      h("th", { scope: "col", class: "value" }, metric),
    ];
    this.element = h(
      "table",
      { class: "board" },
      h("caption", { class: "hidden" }, caption),
      h("thead", {}, h("tr", {}, heads)),
      this.body,
    );
    this.body.addEventListener("keydown", (event) => this.moveFocus(event));
  }

  show(items) {
    const before = this.rowTops();
    const isFirst = this.rows.size === 0;
    const largest = Math.max(...items.map((item) => item.value), 0);
    const rows = new Map();
    for (const item of items) {
      const row = this.rows.get(keyOf(item)) ?? this.createRow();
      this.updateRow(row, item, largest);
      rows.set(keyOf(item), row);
    }
    this.placeRows(rows);
    if (!isFirst && !reducedMotion.matches) this.glide(before);
  }

  createRow() {
    const row = {
      rank: h("span", {}),
      movement: h("span", { class: "movement" }),
      bar: bar(),
      name: h("span", { class: "name" }),
      second: this.second && h("td", { class: "second" }),
      value: h("td", { class: "value" }),
    };
    row.element = h(
      "tr",
      {},
      h("td", { class: "rank" }, row.rank, row.movement),
      h("td", { class: "what" }, row.bar, row.name),
      row.second,
      row.value,
    );
    return row;
  }

  /** Replaces only the elements that changed, so that focus and animations survive an update. */
  updateRow(row, item, largest) {
    row.rank.textContent = item.rank;
    setShare(row.bar, item.value, largest);
    replace(row.movement, movement(item));
    const link = this.linkTo(item);
    const nameState = `${nameOf(item)}\n${link}\n${item.page?.url ?? item.user?.avatar_url}`;
    if (row.nameState !== nameState) {
      row.nameState = nameState;
      showName(row.name, item, link);
    }
    if (row.second && row.space !== item.page?.space) {
      row.space = item.page?.space;
      replace(row.second, this.second.cell(item));
    }
    const value = compact(item.value);
    if (row.value.textContent && row.value.textContent !== value && !reducedMotion.matches) {
      row.value.animate([{ color: "var(--accent)", fontWeight: 700 }, {}], HIGHLIGHT);
    }
    row.value.textContent = value;
    row.value.title = number(item.value);
  }

  placeRows(rows) {
    for (const [key, row] of this.rows) if (!rows.has(key)) row.element.remove();
    this.rows = rows;
    const focused = this.body.contains(document.activeElement) ? document.activeElement : null;
    let next = this.body.firstElementChild;
    for (const row of rows.values()) {
      if (row.element === next) next = next.nextElementSibling;
      else this.body.insertBefore(row.element, next);
    }
    // An element that is moved in the document loses the focus.
    if (focused && focused !== document.activeElement) focused.focus({ preventScroll: true });
  }

  rowTops() {
    return new Map([...this.rows].map(([key, row]) => [key, row.element.offsetTop]));
  }

  glide(before) {
    for (const [key, { element }] of this.rows) {
      const distance = before.get(key) - element.offsetTop;
      if (!before.has(key)) element.animate([{ opacity: 0 }, { opacity: 1 }], GLIDE);
      else if (distance) element.animate([{ transform: `translateY(${distance}px)` }, { transform: "none" }], GLIDE);
    }
  }

  /** The up and down keys move the focus from row to row. */
  moveFocus(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || event.altKey || event.ctrlKey || event.metaKey) return;
    const links = [...this.body.querySelectorAll(".name a[data-route]")];
    const next = links[links.indexOf(document.activeElement) + step];
    if (!next) return;
    event.preventDefault();
    next.focus();
  }
}

function showName(element, item, link) {
  const name = userText(nameOf(item));
  replace(element, item.user && picture(item.user), link ? viewLink(link, {}, name) : name);
  if (!isExternalUrl(item.page?.url)) return;
  const attributes = { class: "outside", "aria-label": "Open the page itself" };
  append(element, [externalLink(item.page.url, attributes, icons.external())]);
}

/** How a row's rank changed, or that it is new; `since` says compared with when. */
export function movement(item, { since = "since the day before", newTitle = "Not on the board the day before" } = {}) {
  if (item.is_new) return h("span", { class: "new", title: newTitle }, "new");
  if (!item.rank_change) return null;
  const direction = item.rank_change > 0 ? "up" : "down";
  const places = Math.abs(item.rank_change);
  const text = `${places} ${places === 1 ? "place" : "places"} ${direction} ${since}`;
  return h(
    "span",
    { class: direction, title: text },
    icons[direction](),
    h("span", { "aria-hidden": "true" }, places),
    h("span", { class: "hidden" }, text),
  );
}

export function nameOf({ user, page }) {
  if (user) return personName(user);
  return page ? page.title || page.external_id : "A deleted page";
}

const keyOf = (item) => String(item.user?.id ?? item.page?.id ?? `deleted-${item.rank}`);
