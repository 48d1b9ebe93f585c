// Hears of changes: by a socket; where none can be had, by asking again every few seconds. Says which of the two it is.

import { send } from "./api.js";

const FIRST_RETRY_MS = 1000;
const LAST_RETRY_MS = 30000;
const OPEN_WITHIN_MS = 5000;
const QUIET_FOR_MS = 30000;
const POLL_EVERY_MS = 5000;

export class Live {
  /** `changed(topic, version)`: look again; null: at everything. `state(name)`: "live", "polling" or "connecting". */
  constructor({ changed, state }) {
    this.changed = changed;
    this.state = state;
    this.wanted = new Map();
    this.retryMs = FIRST_RETRY_MS;
    this.ended = new AbortController();
    const { signal } = this.ended;
    addEventListener("online", () => this.now(), { signal });
    document.addEventListener("visibilitychange", () => !document.hidden && this.now(), { signal });
    this.poller = setInterval(() => this.isPolling && !document.hidden && this.changed(null), POLL_EVERY_MS);
    this.open();
  }

  /** What to hear of from now on: a list of {scope, window, metric}. */
  follow(boards) {
    const next = new Map(boards.map((board) => [`${board.scope}:${board.window}:${board.metric}`, board]));
    for (const [topic, board] of this.wanted) if (!next.has(topic)) this.say({ op: "unsubscribe", ...board });
    for (const [topic, board] of next) if (!this.wanted.has(topic)) this.say({ op: "subscribe", ...board });
    this.wanted = next;
  }

  stop() {
    this.ended.abort();
    clearInterval(this.poller);
    clearTimeout(this.retry);
    clearTimeout(this.deadline);
    this.socket?.close();
  }

  async open() {
    clearTimeout(this.retry);
    if (this.ended.signal.aborted || this.socket || this.isOpening) return;
    this.state(this.isPolling ? "polling" : "connecting");
    this.isOpening = true;
    try {
      const { ticket, live_url } = await send("POST", "/api/v1/live/tickets");
      if (this.ended.signal.aborted) return;
      const url = new URL("/ws/leaderboards", live_url);
      url.protocol = url.protocol.replace("http", "ws");
      url.searchParams.set("ticket", ticket);
      this.listen(new WebSocket(url));
    } catch {
      this.later();
    } finally {
      this.isOpening = false;
    }
  }

  listen(socket) {
    this.socket = socket;
    this.seq = 0;
    this.expectWithin(OPEN_WITHIN_MS);
    const isOurs = () => this.socket === socket;
    socket.onopen = () => {
      if (!isOurs()) return;
      for (const board of this.wanted.values()) this.say({ op: "subscribe", ...board });
      this.say({ op: "ping" });
    };
    socket.onmessage = (event) => isOurs() && this.hear(JSON.parse(event.data));
    socket.onclose = () => isOurs() && this.drop();
  }

  hear(message) {
    const isGap = message.seq !== this.seq + 1;
    this.seq = message.seq;
    if (message.type === "pong") this.isWell();
    // A greeting may tell of a change since the page was read; after a gap anything may have changed.
    if (isGap) this.changed(null);
    else if (["invalidated", "resync", "subscribed"].includes(message.type)) this.changed(message.topic, message.version);
  }

  isWell() {
    this.retryMs = FIRST_RETRY_MS;
    this.isPolling = false;
    this.state("live");
    clearTimeout(this.deadline);
    this.deadline = setTimeout(() => {
      this.say({ op: "ping" });
      this.expectWithin(OPEN_WITHIN_MS);
    }, QUIET_FOR_MS);
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

  /** Each at a moment of its own: after a restart not everybody comes back at once. */
  later() {
    if (this.ended.signal.aborted) return;
    this.isPolling = true;
    this.state("polling");
    clearTimeout(this.deadline);
    clearTimeout(this.retry);
    this.retry = setTimeout(() => this.open(), this.retryMs * (0.5 + Math.random()));
    this.retryMs = Math.min(this.retryMs * 2, LAST_RETRY_MS);
  }

  /** The machine woke up, or is back on the network. */
  now() {
    if (this.socket) {
      this.say({ op: "ping" });
      this.expectWithin(OPEN_WITHIN_MS);
    } else {
      this.retryMs = FIRST_RETRY_MS;
      this.open();
    }
  }
}
