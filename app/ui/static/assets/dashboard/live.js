// Learns of changed boards from a WebSocket; while there is none, by polling. Reports which of the two is in use.

import { send } from "./api.js";

const FIRST_RETRY_MS = 1000;
const MAX_RETRY_MS = 30000;
const ANSWER_WITHIN_MS = 5000;
const PING_AFTER_MS = 30000;
const POLL_EVERY_MS = 5000;
// A subscription's first message may report a change since the board was read.
const CHANGE_MESSAGES = new Set(["invalidated", "resync", "subscribed"]);

/** How the server names a board in its messages; what is no board, such as quests, has a `topic` of its own. */
export const topicOf = (board) => board.topic ?? `${board.scope}:${board.window}:${board.metric}`;

export class Live {
  /**
   * `onChange(topic, version)`: a board may have changed; a topic of null: any board. `onState(state)`: "live",
   * "polling" or "connecting".
   */
  constructor({ onChange, onState }) {
    this.onChange = onChange;
    this.onState = onState;
    this.followed = new Map();
    this.retryMs = FIRST_RETRY_MS;
    this.stopped = new AbortController();
    const { signal } = this.stopped;
    addEventListener("online", () => this.checkNow(), { signal });
    document.addEventListener("visibilitychange", () => !document.hidden && this.checkNow(), { signal });
    this.poller = setInterval(() => this.isPolling && !document.hidden && this.onChange(null), POLL_EVERY_MS);
    this.open();
  }

  /** The boards to subscribe to from now on: a list of {scope, window, metric}, or {topic} for what is no board. */
  follow(boards) {
    const next = new Map(boards.map((board) => [topicOf(board), board]));
    for (const [topic, board] of this.followed) {
      if (!next.has(topic)) this.sendMessage({ op: "unsubscribe", ...board });
    }
    for (const [topic, board] of next) {
      if (!this.followed.has(topic)) this.sendMessage({ op: "subscribe", ...board });
    }
    this.followed = next;
  }

  stop() {
    this.stopped.abort();
    clearInterval(this.poller);
    clearTimeout(this.retry);
    clearTimeout(this.deadline);
    this.socket?.close();
  }

  async open() {
    clearTimeout(this.retry);
    if (this.stopped.signal.aborted || this.socket || this.isOpening) return;
    this.onState(this.isPolling ? "polling" : "connecting");
    this.isOpening = true;
    try {
      const { ticket, live_url } = await send("POST", "/api/v1/live/tickets");
      if (this.stopped.signal.aborted) return;
      const url = new URL("/ws/leaderboards", live_url);
      url.protocol = url.protocol.replace("http", "ws");
      url.searchParams.set("ticket", ticket);
      this.listen(new WebSocket(url));
    } catch {
      this.retryLater();
    } finally {
      this.isOpening = false;
    }
  }

  listen(socket) {
    this.socket = socket;
    this.seq = 0;
    this.dropAfter(ANSWER_WITHIN_MS);
    const isCurrent = () => this.socket === socket;
    socket.onopen = () => {
      if (!isCurrent()) return;
      for (const board of this.followed.values()) this.sendMessage({ op: "subscribe", ...board });
      this.sendMessage({ op: "ping" });
    };
    socket.onmessage = (event) => isCurrent() && this.receive(JSON.parse(event.data));
    socket.onclose = () => isCurrent() && this.drop();
  }

  receive(message) {
    const isGap = message.seq !== this.seq + 1;
    this.seq = message.seq;
    if (message.type === "pong") this.markLive();
    if (isGap) this.onChange(null); // the lost messages may have been about any board
    else if (CHANGE_MESSAGES.has(message.type)) this.onChange(message.topic, message.version);
  }

  markLive() {
    this.retryMs = FIRST_RETRY_MS;
    this.isPolling = false;
    this.onState("live");
    clearTimeout(this.deadline);
    this.deadline = setTimeout(() => this.ping(), PING_AFTER_MS);
  }

  ping() {
    this.sendMessage({ op: "ping" });
    this.dropAfter(ANSWER_WITHIN_MS);
  }

  sendMessage(message) {
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(message));
  }

  dropAfter(milliseconds) {
    clearTimeout(this.deadline);
    this.deadline = setTimeout(() => this.drop(), milliseconds);
  }

  drop() {
    const socket = this.socket;
    this.socket = null;
    socket?.close();
    this.retryLater();
  }

  /** With a random delay: after a restart of the server not every browser reconnects at the same moment. */
  retryLater() {
    if (this.stopped.signal.aborted) return;
    this.isPolling = true;
    this.onState("polling");
    clearTimeout(this.deadline);
    clearTimeout(this.retry);
    this.retry = setTimeout(() => this.open(), this.retryMs * (0.5 + Math.random()));
    this.retryMs = Math.min(this.retryMs * 2, MAX_RETRY_MS);
  }

  /** The machine woke up or is back on the network: the socket may be dead without having been closed. */
  checkNow() {
    if (this.socket) {
      this.ping();
    } else {
      this.retryMs = FIRST_RETRY_MS;
      this.open();
    }
  }
}
