// People: the scoreboard over a window by a metric, of everybody or of one segment.

import { BoardCard, BoardView, rowsOf } from "./board_view.js";
import { choice, empty, loading } from "./components.js";
import { h, replace } from "./dom.js";
import { findMetric, nameIn, names, userMetrics, windows } from "./names.js";
import { openUserSheet } from "./user_sheet.js";

export class PeopleView extends BoardView {
  constructor(root, context) {
    super(context, "/dashboard/people");
    this.segmentInput = h("input", {
      type: "search",
      placeholder: "All segments",
      "aria-label": "Segment",
      onchange: () => this.go({ segment: this.segmentInput.value.trim(), rows: null }),
    });
    this.windowChoice = choice("Window", windows, (window) => this.go({ window, rows: null }));
    this.metricChoice = choice("Metric", userMetrics, (metric) => this.go({ metric, rows: null }));
    this.boardCard = h("section", { class: "card", "aria-label": "Scoreboard" }, loading(10));
    const filters = h("div", { class: "filters" }, this.segmentInput, this.windowChoice, this.metricChoice);
    replace(root, filters, this.boardCard);
    context.setTitle("People");
  }

  show(query) {
    const window = nameIn(windows, query.get("window"), names.defaults.window);
    this.segment = query.get("segment") ?? "";
    this.rows = rowsOf(query);
    const metric = nameIn(userMetrics, query.get("metric"), names.defaults.user_metric);
    this.windowChoice.select(window);
    this.metricChoice.select(metric);
    if (this.segmentInput !== document.activeElement) this.segmentInput.value = this.segment;
    const scope = this.segment ? `users:${this.segment}` : "users";
    const board = { scope, window, metric };
    this.changeBoard(board, [board]);
    this.readIfChanged(board, this.rows);
    const user = query.get("user");
    this.showSheet("user", user, (onClose) => openUserSheet(user, this.context, onClose));
  }

  onChange(_topic, version) {
    this.announce(version);
    if (version === undefined || version > this.version) this.readSoon();
  }

  read() {
    return this.readBoard(this.reading.signal);
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
      title: "Who contributed",
      subject: "Person",
      nouns: ["person", "people"],
      linkTo: (item) => this.link({ user: item.user.id }),
      showRows: (rows) => this.go({ rows }),
    });
    this.card.show(board);
  }

  emptyBoard() {
    const who = this.segment ? `Nobody in the segment ${this.segment}` : "Nobody";
    const { name, label, note } = findMetric(this.board.metric);
    if (name !== names.defaults.user_metric) {
      return empty(`${who} got ${label} in this period`, `${label} is earned ${note}.`);
    }
    return empty(
      `${who} got points in this period`,
      "Points come from actions: an admin sets in the catalog what each is worth.",
    );
  }
}
