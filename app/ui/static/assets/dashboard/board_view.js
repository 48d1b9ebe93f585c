// What the views of boards share: a board in its card, and reading it again when the address or the board changes.

import { get, withQuery } from "./api.js";
import { BoardTable } from "./board_table.js";
import { failure } from "./components.js";
import { h, icons, replace } from "./dom.js";
import { number } from "./format.js";
import { findMetric, findWindow } from "./names.js";
import { throttled } from "./throttle.js";

const FIRST_ROWS = 20;
const MAX_ROWS = 1000;

/** How many rows an address asks for. */
export function rowsOf(query) {
  return Math.min(MAX_ROWS, Math.max(1, Math.trunc(Number(query.get("rows"))) || FIRST_ROWS));
}

/** A board in its card: its title, how many rows it has, its CSV file, its first rows, and a button for more. */
export class BoardCard {
  /** `subject`: what a row is, such as "Page"; `nouns`: one and many; `showRows(count)`: asks for that many rows. */
  constructor(card, { board, title, subject, nouns, second, linkTo, showRows }) {
    this.nouns = nouns;
    const metric = findMetric(board.metric);
    const caption = `${title} by ${board.metric}, ${findWindow(board.window).label}`;
    this.table = new BoardTable({ caption, subject, metric: metric.label, second, linkTo });
    this.count = h("span", { class: "quiet", role: "status" });
    this.more = h("button", { type: "button", onclick: () => showRows(this.nextRows()) });
    const csv = withQuery("/api/v1/leaderboards/export.csv", board);
    replace(
      card,
      h(
        "div",
        { class: "head" },
        h("h2", {}, title),
        this.count,
        metric.note && h("span", { class: "quiet" }, metric.note),
        h("a", { class: "button", href: csv, download: "" }, icons.download(), "CSV"),
      ),
      this.table.element,
      h("div", { class: "more" }, this.more),
    );
  }

  show(board) {
    this.table.show(board.items);
    const noun = this.nouns[board.total === 1 ? 0 : 1];
    const source = board.source === "redis" ? "" : " · from the database, while the boards are filled";
    this.count.textContent = `${number(board.total)} ${noun}${source}`;
    this.rows = board.items.length;
    const left = Math.min(board.total, MAX_ROWS) - this.rows;
    this.more.hidden = left <= 0;
    this.more.textContent = `Show more (${number(left)} left)`;
  }

  nextRows() {
    return Math.min(MAX_ROWS, this.rows + (this.rows < 100 ? 30 : 100));
  }
}

/** A view of the one board that its address names, with at most one side sheet. Subclasses have read(), showBoard(). */
export class BoardView {
  constructor(context, path) {
    this.context = context;
    this.path = path;
    this.readSoon = throttled(() => this.read(), 1000);
  }

  /** Starts to show another board; false if it is the one that is shown. */
  changeBoard(board, followed) {
    if (JSON.stringify(board) === JSON.stringify(this.board)) return false;
    this.board = board;
    this.card = null;
    this.version = -1;
    this.announced = -1;
    this.context.live.follow(followed);
    return true;
  }

  /** Reads if any of these changed since the last call; a read still under way for the old ones is aborted. */
  readIfChanged(...question) {
    const asked = JSON.stringify(question);
    if (asked === this.asked) return;
    this.asked = asked;
    this.reading?.abort();
    this.reading = new AbortController();
    this.read();
  }

  /** Remembers that the board has this version now. */
  announce(version) {
    this.announced = Math.max(this.announced, version ?? -1);
  }

  /** Reads the board and shows it, unless a newer version is shown already; again, if a newer one was announced. */
  async readBoard(signal) {
    try {
      const board = await get(withQuery("/api/v1/leaderboards", { ...this.board, limit: this.rows }), { signal });
      if (!signal.aborted && board.version >= this.version) this.showBoard(board);
      if (!signal.aborted && board.version < this.announced) {
        this.announced = -1; // once: no process keeps an answer for as long as readSoon waits
        this.readSoon();
      }
      this.boardCard.classList.remove("stale");
    } catch (error) {
      if (this.showError(this.boardCard, error, this.card)) this.card = null;
    }
  }

  /** Shows the sheet of the id in the address, created by `open(onClose)`. Closing it removes the id again. */
  showSheet(parameter, id, open) {
    if (id === (this.opened?.id ?? null)) return;
    this.closeSheet();
    if (!id) return;
    const opened = { id };
    this.opened = opened;
    opened.sheet = open(() => {
      if (this.opened !== opened) return;
      this.opened = null;
      this.context.go(this.link({ [parameter]: null }), { replace: true }); // so that Back does not open it again
    });
  }

  closeSheet() {
    const opened = this.opened;
    this.opened = null;
    opened?.sheet.close();
  }

  /**
   * Shows an error in the place of a card's content; true if it did. In an outage numbers that are shown already stay,
   * marked as stale: old numbers are better than none.
   */
  showError(card, error, hasContent) {
    if (error.name === "AbortError" || error.status === 401) return false;
    const isOutage = error.status === 0 || error.status >= 500;
    const isStale = Boolean(hasContent && isOutage);
    card.classList.toggle("stale", isStale);
    if (isStale) return false;
    replace(card, failure(error, () => this.read()));
    return true;
  }

  /** Goes to the address of this view with some parameters changed; null removes one. */
  go(changes) {
    this.context.go(this.link(changes));
  }

  link(changes) {
    return withQuery(this.path, { ...Object.fromEntries(new URLSearchParams(location.search)), ...changes });
  }

  stop() {
    this.readSoon.cancel();
    this.reading?.abort();
    this.closeSheet();
  }
}
