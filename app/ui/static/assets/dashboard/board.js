// The ranked table: rows with bars and movement. Rows that change places glide there; nothing else on the page moves.

import { address } from "./api.js";
import { append, h, icons, isOutside, outsideLink, replace, words } from "./dom.js";
import { compact, metricName, number, windowName } from "./format.js";
import { failure, paced } from "./parts.js";

const calm = matchMedia("(prefers-reduced-motion: reduce)");
const GLIDE = { duration: 450, easing: "cubic-bezier(.2,.7,.2,1)" };

export class BoardTable {
  /** `second`: a column between, as {name, cell(item)}; `open(item)`: the address of a row's own view. */
  constructor({ caption, what, metric, open, second }) {
    this.open = open;
    this.second = second;
    this.rows = new Map();
    this.body = h("tbody", {});
    this.element = h(
      "table",
      { class: "board" },
      h("caption", { class: "hidden" }, caption),
      h("thead", {}, h("tr", {}, h("th", { class: "rank", scope: "col" }, h("abbr", { title: "Rank" }, "#")), h("th", { scope: "col" }, what), second && h("th", { scope: "col", class: "second" }, second.name), h("th", { scope: "col", class: "value" }, metric))),
      this.body,
    );
    this.body.addEventListener("keydown", (event) => this.move(event));
  }

  show(items) {
    const before = this.places();
    const most = Math.max(...items.map((item) => item.value), 0) || 1;
    const rows = new Map();
    for (const item of items) {
      const key = keyOf(item);
      const row = this.rows.get(key) ?? this.make();
      this.update(row, item, most);
      rows.set(key, row);
    }
    for (const [key, row] of this.rows) if (!rows.has(key)) row.element.remove();
    const isFirst = this.rows.size === 0;
    const focused = this.body.contains(document.activeElement) ? document.activeElement : null;
    this.rows = rows;
    let place = this.body.firstElementChild;
    for (const row of rows.values()) {
      if (row.element === place) place = place.nextElementSibling;
      else this.body.insertBefore(row.element, place);
    }
    if (focused && focused !== document.activeElement) focused.focus({ preventScroll: true }); // a row that is moved loses it
    if (!isFirst && !calm.matches) this.glide(before);
  }

  make() {
    const row = { rank: h("span", {}), movement: h("span", { class: "movement" }), bar: h("span", { class: "bar", "aria-hidden": "true" }), name: h("span", { class: "name" }), second: this.second && h("td", { class: "second" }), value: h("td", { class: "value" }) };
    row.element = h("tr", {}, h("td", { class: "rank" }, row.rank, row.movement), h("td", { class: "what" }, row.bar, row.name), row.second, row.value);
    return row;
  }

  update(row, item, most) {
    row.rank.textContent = item.rank;
    row.bar.style.width = `${Math.max(0.5, (100 * item.value) / most)}%`;
    replace(row.movement, movement(item));
    const text = nameOf(item);
    const address = this.open(item);
    const named = `${text}\n${address}\n${item.page?.url}`;
    if (row.named !== named) {
      row.named = named;
      replace(row.name, address ? h("a", { href: address, "data-route": "" }, words(text)) : words(text));
      if (isOutside(item.page?.url)) append(row.name, [outsideLink(item.page.url, { class: "outside", "aria-label": "Open the page itself" }, icons.out())]);
    }
    if (row.second && row.space !== item.page?.space) {
      row.space = item.page?.space;
      replace(row.second, this.second.cell(item));
    }
    const value = compact(item.value);
    if (row.value.textContent && row.value.textContent !== value && !calm.matches) {
      row.value.animate([{ color: "var(--accent)", fontWeight: 700 }, {}], { duration: 1500, easing: "ease-in" });
    }
    row.value.textContent = value;
    row.value.title = number(item.value);
  }

  places() {
    return new Map([...this.rows].map(([key, row]) => [key, row.element.offsetTop]));
  }

  glide(before) {
    for (const [key, row] of this.rows) {
      const from = before.get(key);
      if (from === undefined) row.element.animate([{ opacity: 0 }, { opacity: 1 }], GLIDE);
      else if (from !== row.element.offsetTop) {
        row.element.animate([{ transform: `translateY(${from - row.element.offsetTop}px)` }, { transform: "none" }], GLIDE);
      }
    }
  }

  /** Up and down go from row to row. */
  move(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || event.altKey || event.ctrlKey || event.metaKey) return;
    const links = [...this.body.querySelectorAll(".name a[data-route]")];
    const next = links[links.indexOf(document.activeElement) + step];
    if (!next) return;
    event.preventDefault();
    next.focus();
  }
}

const FIRST_ROWS = 20;
const MOST_ROWS = 1000;

/** How many rows an address asks for. */
export const rowsOf = (query) => Math.min(MOST_ROWS, Math.max(1, Math.trunc(Number(query.get("rows"))) || FIRST_ROWS));

/** A board in its card: what it is called, how many there are, its file, its rows, and more of them. */
export class BoardCard {
  constructor(card, { board, title, what, nouns, second, open, more }) {
    this.board = board;
    this.nouns = nouns;
    this.askForMore = more;
    this.table = new BoardTable({ caption: `${title} by ${board.metric}, ${windowName(board.window)}`, what, metric: metricName(board.metric), second, open });
    this.count = h("span", { class: "quiet", role: "status" });
    this.more = h("button", { type: "button", onclick: () => this.askForMore(Math.min(MOST_ROWS, this.rows + (this.rows < 100 ? 30 : 100))) });
    const csv = h("a", { class: "button", href: address("/api/v1/leaderboards/export.csv", board), download: "" }, icons.download(), "CSV");
    replace(card, h("div", { class: "head" }, h("h2", {}, title), this.count, board.metric === "score" && h("span", { class: "quiet" }, "by likes and views, weighted"), csv), this.table.element, h("div", { class: "more" }, this.more));
  }

  show(found) {
    this.table.show(found.items);
    const noun = this.nouns[found.total === 1 ? 0 : 1];
    const source = found.source === "redis" ? "" : " · from the database, while the boards are filled";
    this.count.textContent = `${number(found.total)} ${noun}${source}`;
    this.rows = found.items.length;
    const left = Math.min(found.total, MOST_ROWS) - this.rows;
    this.more.hidden = left <= 0;
    this.more.textContent = `Show more (${number(left)} left)`;
  }
}

/** What the views of boards share: a question that is asked anew when it changes, their addresses, and one opened sheet. */
export class BoardView {
  constructor(context, path) {
    this.context = context;
    this.path = path;
    this.again = paced(() => this.read(), 1000);
  }

  /** Another board than before: nothing that is shown is of it. */
  turnTo(board, follow) {
    if (JSON.stringify(board) === JSON.stringify(this.shown)) return false;
    this.shown = board;
    this.card = null;
    this.version = -1;
    this.context.live.follow(follow);
    return true;
  }

  /** Reads, unless this very question was asked before; what was still being read for another is dropped. */
  ask(...question) {
    const asked = JSON.stringify(question);
    if (asked === this.asked) return;
    this.asked = asked;
    this.reading?.abort();
    this.reading = new AbortController();
    this.read();
  }

  /** The sheet that the address names, `open(closed)` makes it; closing it goes back to the address without it. */
  showOpened(name, id, open) {
    if (id === (this.opened?.id ?? null)) return;
    this.close();
    if (!id) return;
    const opened = { id };
    this.opened = opened;
    opened.sheet = open(() => {
      if (this.opened !== opened) return;
      this.opened = null;
      this.context.go(this.link({ [name]: null }), { replace: true }); // so that Back does not open it again
    });
  }

  close() {
    const opened = this.opened;
    this.opened = null;
    opened?.sheet.close();
  }

  /** What went wrong, in the place of `card`; where something is shown already, the last numbers are better than none. */
  fail(card, error, isShown) {
    if (error.name === "AbortError" || error.status === 401) return false;
    const isOutage = error.status === 0 || error.status >= 500;
    card.classList.toggle("stale", Boolean(isShown && isOutage));
    if (isShown && isOutage) return false;
    replace(card, failure(error, () => this.read()));
    return true;
  }

  go(change) {
    this.context.go(this.link(change));
  }

  link(change) {
    return address(this.path, { ...Object.fromEntries(new URLSearchParams(location.search)), ...change });
  }

  stop() {
    this.again.cancel();
    this.reading?.abort();
    this.close();
  }
}

export function movement(item, since = "since the day before") {
  if (item.is_new) return h("span", { class: "new", title: `Not on the board ${since === "compared with now" ? "now" : "the day before"}` }, "new");
  const change = item.rank_change;
  if (!change) return null;
  const [name, arrow] = change > 0 ? ["up", icons.up()] : ["down", icons.down()];
  const said = `${Math.abs(change)} ${Math.abs(change) === 1 ? "place" : "places"} ${name} ${since}`;
  return h("span", { class: name, title: said }, arrow, h("span", { "aria-hidden": "true" }, Math.abs(change)), h("span", { class: "hidden" }, said));
}

export function nameOf(item) {
  if (item.user) return item.user.username ?? item.user.external_id ?? `User ${item.user.id.slice(0, 8)}`;
  return item.page ? item.page.title || item.page.external_id : "A page that is gone";
}

const keyOf = (item) => String(item.user?.id ?? item.page?.id ?? `gone-${item.rank}`);
