// Quests: those that are open, one's own, those to attest and, for admins, those in dispute; and a form for a new one.

import { get, send, withQuery } from "./api.js";
import { badge, unfold } from "./admin/components.js";
import { nameOf } from "./board_table.js";
import { BoardView } from "./board_view.js";
import { choice, empty, failure, loading } from "./components.js";
import { h, replace, userText, viewLink } from "./dom.js";
import { form } from "./form.js";
import { ago, number } from "./format.js";
import { names } from "./names.js";
import { QuestSheet } from "./quest_sheet.js";

const ROWS = 20;
// A slice may be empty and still not the last one: look at this many before the reader has to ask for more.
const MAX_SLICES = 5;
const READ_UNANNOUNCED_MS = 20000;

// `isAnnounced`: whether the live topics tell of every change; the other lists are also read from time to time.
const TABS = [
  {
    name: "open",
    label: "Open",
    isAnnounced: true,
    lists: [{
      title: "Open quests",
      query: { status: names.quests.open },
      empty: ["There are no open quests", "Offer one: say what is to be done and what it is worth."],
    }],
  },
  {
    name: "mine",
    label: "Mine",
    isAnnounced: true,
    lists: [
      {
        title: "Performed by you",
        query: { performer: "me" },
        empty: ["You have not claimed a quest yet", "Choose one of the open quests and claim it."],
      },
      {
        title: "Created by you",
        query: { creator: "me" },
        empty: ["You have not offered a quest yet", "Write one with “New quest” above."],
      },
    ],
  },
  {
    name: "attest",
    label: "To attest",
    lists: [{
      title: "Work that you can attest",
      query: { to_attest: "me" },
      empty: ["There is nothing to attest", "Work of others appears here as soon as they submit it."],
    }],
  },
  {
    name: "disputed",
    label: "Disputed",
    isForAdmins: true,
    lists: [{
      title: "Disputed quests",
      query: { status: names.quests.disputed },
      empty: ["Nothing is in dispute", "Quests that you have to decide about appear here."],
    }],
  },
];

/** Extends the views of boards for their side sheet and their way of reading again; its lists are not boards. */
export class QuestsView extends BoardView {
  constructor(root, context) {
    super(context, "/dashboard/quests");
    this.tabs = TABS.filter((tab) => !tab.isForAdmins || context.isAdmin);
    this.tabChoice = choice("List", this.tabs, (name) => context.go(`/dashboard/quests/${name}`));
    this.newQuest = h("section", { class: "card" });
    this.body = h("div", { class: "admin" });
    this.showNewQuest();
    replace(root, h("div", { class: "filters" }, this.tabChoice), this.newQuest, this.body);
    context.live.follow([{ topic: "quests:open" }, { topic: `quests:user:${context.me.id}` }]);
    this.reader = setInterval(() => {
      if (this.tab && !this.tab.isAnnounced && !document.hidden) this.readSoon();
    }, READ_UNANNOUNCED_MS);
  }

  show(query, name) {
    const tab = this.tabs.find((one) => one.name === name) ?? this.tabs[0];
    if (this.tab !== tab) this.openTab(tab);
    const id = query.get("quest");
    this.showSheet("quest", id, (onClose) => new QuestSheet(id, this.context, { onClose, onStep: () => this.read() }));
  }

  openTab(tab) {
    this.tab = tab;
    this.path = `/dashboard/quests/${tab.name}`;
    this.context.setTitle(`Quests: ${tab.label}`);
    this.tabChoice.select(tab.name);
    this.reading?.abort();
    this.reading = new AbortController();
    const linkTo = (quest) => this.link({ quest: quest.id });
    this.lists = tab.lists.map((list) => new QuestList(list, { linkTo, signal: this.reading.signal }));
    replace(this.body, this.lists.map((list) => list.card));
    this.read();
  }

  onChange() {
    this.readSoon();
    this.opened?.sheet.onChange();
  }

  async read() {
    const { signal } = this.reading;
    const results = await Promise.allSettled(this.lists.map((list) => list.read()));
    if (!signal.aborted) this.showDisabled(results.some(({ reason }) => reason?.code === "quests_disabled"));
  }

  showDisabled(isDisabled) {
    this.newQuest.hidden = isDisabled;
    this.tabChoice.hidden = isDisabled;
    if (!isDisabled) return;
    const next = this.context.isAdmin
      ? ["Enable them in the tenant’s settings: ", h("code", {}, 'PATCH /api/v1/settings {"quests_enabled": true}')]
      : ["An admin can enable them in the settings."];
    replace(this.body, h("section", { class: "card" }, empty("Quests are not enabled here", ...next)));
  }

  showNewQuest() {
    const created = (quest) => {
      this.showNewQuest();
      this.read();
      this.go({ quest: quest.id });
    };
    replace(this.newQuest, unfold("New quest", newQuestForm(created)));
  }

  stop() {
    clearInterval(this.reader);
    super.stop();
  }
}

/** A list in its card, with a button for more. */
class QuestList {
  constructor({ title, query, empty: texts }, { linkTo, signal }) {
    Object.assign(this, { title, query, texts, linkTo, signal, items: [], isRead: false });
    this.card = h("section", { class: "card", "aria-label": title }, loading(4));
  }

  /** Reads as many as are shown again. Throws only if there are no quests at all here. */
  async read() {
    try {
      const { items, cursor } = await this.readSlices(undefined, Math.max(ROWS, this.items.length));
      Object.assign(this, { items, cursor, isRead: true });
      this.show();
    } catch (error) {
      if (error.code === "quests_disabled") throw error;
      this.showError(error);
    }
  }

  async readMore(button) {
    button.disabled = true;
    try {
      const { items, cursor } = await this.readSlices(this.cursor, ROWS);
      // A quest that moved between two slices is in both.
      const known = new Set(this.items.map(({ id }) => id));
      this.items.push(...items.filter(({ id }) => !known.has(id)));
      this.cursor = cursor;
      this.show();
    } catch (error) {
      button.disabled = false;
      this.showError(error);
    }
  }

  async readSlices(cursor, count) {
    const items = [];
    for (let slices = 0; slices < MAX_SLICES && items.length < count; slices += 1) {
      const limit = Math.min(names.max_slice, count - items.length);
      const slice = await get(withQuery("/api/v1/quests", { ...this.query, limit, cursor }), { signal: this.signal });
      items.push(...slice.items);
      cursor = slice.next_cursor;
      if (!cursor) break;
    }
    return { items, cursor };
  }

  /** In an outage what is shown already stays, marked as stale. */
  showError(error) {
    if (error.name === "AbortError" || error.status === 401) return;
    const isStale = this.isRead && (error.status === 0 || error.status >= 500);
    this.card.classList.toggle("stale", isStale);
    if (!isStale) replace(this.card, failure(error, () => this.read()));
  }

  show() {
    this.card.classList.remove("stale");
    const focused = this.card.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    const more = h("button", { type: "button", onclick: () => this.readMore(more) }, "Load more");
    replace(
      this.card,
      h("div", { class: "head" }, h("h2", {}, this.title)),
      this.items.length
        ? h("ul", { class: "quests" }, this.items.map((quest) => questItem(quest, this.linkTo(quest))))
        : !this.cursor && empty(...this.texts),
      this.cursor && h("div", { class: "more" }, more),
    );
    // The rows are new elements: give the focus back to the same link.
    if (focused) this.card.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }
}

function questItem(quest, link) {
  const { rewards, statuses } = names.quests;
  const [xp, reputation] = Object.values(rewards);
  return h(
    "li",
    {},
    h("div", { class: "quest-title" }, viewLink(link, {}, userText(quest.title)), badge(statuses[quest.status])),
    h(
      "p",
      { class: "quiet" },
      h("strong", {}, `${number(quest.reward_xp)} ${xp}`),
      ` · ${number(quest.reward_reputation)} ${reputation.toLowerCase()} · by `,
      quest.creator ? userText(nameOf({ user: quest.creator })) : "somebody who has left",
      ` · ${ago(quest.created_at)}`,
    ),
    quest.tags.length > 0 && h("p", { class: "tags" }, quest.tags.map((tag) => badge(userText(tag)))),
  );
}

function newQuestForm(created) {
  const { rewards } = names.quests;
  const [xp, reputation] = Object.values(rewards);
  const split = (text, separator) => text.split(separator).map((part) => part.trim()).filter(Boolean);
  return form({
    action: "Offer this quest",
    fields: [
      { name: "title", label: "Title", required: true, maxlength: 100 },
      {
        name: "description",
        label: "Description",
        type: "textarea",
        hint: "What is to be done, in at least ten characters.",
        required: true,
        maxlength: 1000,
      },
      { name: "reward_xp", label: xp, type: "number", value: 100, required: true, inputmode: "numeric" },
      { name: "reward_reputation", label: reputation, type: "number", value: 5, required: true, inputmode: "numeric" },
      { name: "tags", label: "Tags", placeholder: "docs, translation", hint: "Separated by commas." },
      { name: "requirements", label: "Requirements", type: "textarea", rows: 3, hint: "One on each line." },
      { name: "expires_at", label: "Open until", type: "datetime-local", hint: "Leave it empty for no end." },
    ],
    submit: async ({ tags, requirements, expires_at, ...offer }) => {
      const lists = { tags: split(tags, ","), requirements: split(requirements, "\n") };
      const until = expires_at ? { expires_at: new Date(expires_at).toISOString() } : {};
      created(await send("POST", "/api/v1/quests", { ...offer, ...lists, ...until }));
    },
  });
}
