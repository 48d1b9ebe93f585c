// Hears of changes: by a socket; where none can be had, by asking again every few seconds. Says which of the two it is.

import { send } from "./api.js";

const FIRST_RETRY_MS = 1000;
const LAST_RETRY_MS = 30000;
const OPEN_WITHIN_MS = 5000;
const QUIET_FOR_MS = 30000;
const POLL_EVERY_MS = 5000;

export class Live {
  /** `changed(topic)`: look again; null: at everything. `state(name)`: "live", "polling" or "connecting". */
  constructor({ changed, state }) {
    this.changed = changed;
    this.state = state;
    this.wanted = new Map();
    this.seq = 0;
    this.retryMs = FIRST_RETRY_MS;
    this.stopped = false;
    this.poller = setInterval(() => this.poll(), POLL_EVERY_MS);
    this.open();
    addEventListener("online", () => this.now());
    document.addEventListener("visibilitychange", () => !document.hidden && this.now());
  }

  /** What to hear of from now on: a list of {scope, window, metric}. */
  follow(boards) {
    const next = new Map(boards.map((board) => [`${board.scope}:${board.window}:${board.metric}`, board]));
    for (const [topic, board] of this.wanted) if (!next.has(topic)) this.say({ op: "unsubscribe", ...board });
    for (const [topic, board] of next) if (!this.wanted.has(topic)) this.say({ op: "subscribe", ...board });
    this.wanted = next;
  }

  stop() {
    this.stopped = true;
    clearInterval(this.poller);
    clearTimeout(this.retry);
    clearTimeout(this.deadline);
    this.socket?.close();
  }

  async open() {
    clearTimeout(this.retry);
    if (this.stopped || this.socket) return;
    this.state(this.isPolling ? "polling" : "connecting");
    try {
      const { ticket, live_url } = await send("POST", "/api/v1/live/tickets");
      const url = new URL("/ws/leaderboards", live_url);
      url.protocol = url.protocol.replace("http", "ws");
      url.searchParams.set("ticket", ticket);
      this.listen(new WebSocket(url));
    } catch {
      this.later();
    }
  }

  listen(socket) {
    this.socket = socket;
    this.greeted = new Set();
    this.expectWithin(OPEN_WITHIN_MS);
    socket.onopen = () => {
      this.seq = 0;
      for (const board of this.wanted.values()) this.say({ op: "subscribe", ...board });
      this.say({ op: "ping" });
    };
    socket.onmessage = (event) => this.hear(JSON.parse(event.data));
    socket.onclose = () => {
      if (this.socket !== socket) return;
      this.socket = null;
      clearTimeout(this.deadline);
      this.later();
    };
  }

  hear(message) {
    const gap = message.seq !== this.seq + 1;
    this.seq = message.seq;
    if (message.type === "pong") {
      this.retryMs = FIRST_RETRY_MS;
      this.isPolling = false;
      this.state("live");
      clearTimeout(this.deadline);
      this.deadline = setTimeout(() => {
        this.say({ op: "ping" });
        this.expectWithin(OPEN_WITHIN_MS);
      }, QUIET_FOR_MS);
    }
    // The first greeting may tell of a change since the page was read; so does a message after a gap.
    if (gap) this.changed(null);
    else if (["invalidated", "resync", "subscribed", "top"].includes(message.type)) this.changed(message.topic);
  }

  say(message) {
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(message));
  }

  expectWithin(milliseconds) {
    clearTimeout(this.deadline);
    this.deadline = setTimeout(() => this.drop(), milliseconds);
  }

  drop() {
    const socket = this.socket;
    this.socket = null;
    socket?.close();
    this.later();
  }

  later() {
    if (this.stopped) return;
    this.isPolling = true;
    this.state("polling");
    clearTimeout(this.retry);
    this.retry = setTimeout(() => this.open(), this.retryMs);
    this.retryMs = Math.min(this.retryMs * 2, LAST_RETRY_MS);
  }

  now() {
    if (this.socket) this.say({ op: "ping" });
    else {
      this.retryMs = FIRST_RETRY_MS;
      this.open();
    }
  }

  poll() {
    if (this.isPolling && !document.hidden) this.changed(null);
  }
}
