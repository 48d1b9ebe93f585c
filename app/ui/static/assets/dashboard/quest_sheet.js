// One quest: what it asks for and pays, the work and what others say of it, its history, and the steps that the reader
// may take. Which those are follows from the server's table of steps.

import { get, send } from "./api.js";
import { badge, unfold } from "./admin/components.js";
import { nameOf } from "./board_table.js";
import { empty, failure, loading, sheet } from "./components.js";
import { h, replace, userText } from "./dom.js";
import { form } from "./form.js";
import { ago, dateTime, number } from "./format.js";
import { names } from "./names.js";
import { throttled } from "./throttle.js";

const { statuses, steps, resolutions, rewards, reward_states: rewardStates } = names.quests;
// A decision is made, not left as it was.
const UNDECIDED = { name: "", label: "Choose…" };
const RATINGS = [
  UNDECIDED,
  { name: "5", label: "5 – excellent" },
  { name: "4", label: "4 – good" },
  { name: "3", label: "3 – as asked for" },
  { name: "2", label: "2 – incomplete" },
  { name: "1", label: "1 – not done" },
];
const REASON = { name: "reason", label: "Reason", type: "textarea", rows: 3, maxlength: 1000 };
// What each step asks for. `isMain`: it is what the reader most likely came for, so its form is open.
const FORMS = {
  claim: { isMain: true },
  submit: {
    isMain: true,
    fields: [{
      name: "submission",
      label: "What you did",
      type: "textarea",
      rows: 6,
      maxlength: 5000,
      required: true,
      hint: "Say where the result can be seen.",
    }],
  },
  attest: {
    isMain: true,
    path: "attestations",
    fields: [
      { name: "rating", label: "Rating", type: "select", options: RATINGS, required: true },
      { name: "comments", label: "Comments", type: "textarea", rows: 3, maxlength: 1000 },
    ],
    body: ({ rating, comments }) => ({ rating: Number(rating), comments }),
  },
  resolve: {
    isMain: true,
    fields: [
      { name: "to", label: "Decision", type: "select", options: [UNDECIDED, ...resolutions], required: true },
      { ...REASON, required: true },
      {
        name: "expires_at",
        label: "Open until",
        type: "datetime-local",
        hint: "Only for a new round. Leave it empty to keep the date.",
      },
    ],
    body: ({ expires_at, ...body }) => expires_at ? { ...body, expires_at: new Date(expires_at).toISOString() } : body,
  },
  withdraw: {},
  release: { fields: [REASON] },
  dispute: { fields: [{ ...REASON, required: true, hint: "An admin decides. Say what is wrong." }] },
  cancel: { fields: [REASON] },
};

export class QuestSheet {
  /** `onStep`: called after a step, or when the quest turned out to be another than the one that is shown. */
  constructor(id, { me, isAdmin }, { onClose, onStep }) {
    Object.assign(this, { id, me, isAdmin, onStep });
    this.path = `/api/v1/quests/${encodeURIComponent(id)}`;
    this.readSoon = throttled(() => this.read(), 1000);
    this.notice = h("p", { class: "notice", role: "status", hidden: true });
    this.head = h("div", { class: "part" }, loading(4));
    this.actions = h("div", { class: "part", hidden: true });
    this.details = h("div", { class: "part" });
    const close = () => {
      this.readSoon.cancel();
      onClose();
    };
    this.dialog = sheet({ label: "Quest", onClose: close }, this.head, this.notice, this.actions, this.details);
    this.read();
  }

  close() {
    this.dialog.close();
  }

  onChange() {
    if (!this.isMissing) this.readSoon();
  }

  async read() {
    try {
      this.show(await get(this.path));
    } catch (error) {
      this.showError(error);
    }
  }

  showError(error) {
    const isOutage = error.status === 0 || error.status >= 500;
    if (error.status === 401 || (this.quest && isOutage)) return; // an old quest is better than none
    this.isMissing = error.status === 404;
    this.actions.hidden = true;
    replace(this.details);
    if (this.isMissing) replace(this.head, empty("There is no such quest", "The address may be wrong."));
    else replace(this.head, failure(error, () => this.read()));
  }

  show(quest) {
    if (this.quest && quest.version < this.quest.version) return; // an answer that was overtaken
    this.quest = quest;
    // The work comes before the form in which it is rated.
    replace(this.head, headOf(quest), workOf(quest));
    replace(this.details, attestationsOf(quest), rewardsOf(quest), historyOf(quest));
    this.showActions();
  }

  /** Leaves the forms alone while the same steps are possible: the reader may be writing in one. */
  showActions() {
    const possible = steps.filter((step) => this.mayTake(step));
    const shown = `${this.quest.status} ${this.quest.round} ${possible.map((step) => step.name)}`;
    if (this.shown === shown) return;
    this.shown = shown;
    this.actions.hidden = !possible.length;
    replace(this.actions, possible.map((step) => this.formOf(step)));
  }

  mayTake({ name, allowed }) {
    const { status, creator, performer, attestations } = this.quest;
    const isMe = (person) => person?.id === this.me.id;
    const roles = (isMe(creator) ? 1 : 0) + (isMe(performer) ? 2 : 0) + (this.isAdmin ? 4 : 0);
    if (!FORMS[name] || !allowed[status]?.includes(roles)) return false;
    if (name === "withdraw") return !attestations.length;
    return name !== "attest" || !attestations.some(({ attester }) => isMe(attester));
  }

  formOf({ name, label }) {
    const { isMain, fields = [], path = name, body = (values) => values } = FORMS[name];
    const submit = (values) => this.take(path, body(values));
    const element = form({ fields, submit, action: label });
    if (isMain) return element;
    element.querySelector("button").classList.remove("primary");
    return fields.length ? unfold(label, element) : element;
  }

  async take(path, body) {
    this.say("");
    try {
      const quest = await send("POST", `${this.path}/${path}`, body, { version: this.quest.version });
      this.show(quest);
      this.say(`Done. The quest is now: ${statuses[quest.status]}.`);
    } catch (error) {
      if (error.status !== 409 && error.status !== 412) throw error;
      await this.read();
      this.say(this.whyRefused(error));
    }
    this.onStep();
  }

  whyRefused({ status, code, message }) {
    const now = `It is now: ${statuses[this.quest.status]}.`;
    if (status === 412) {
      return `Somebody changed this quest while you looked at it. ${now} Look at it again, then retry.`;
    }
    const isOfState = Object.keys(statuses).some((name) => code === `quest_${name.toLowerCase()}`);
    return isOfState ? `The quest has changed, so this is not possible any more. ${now}` : `${message}.`;
  }

  say(text) {
    this.notice.textContent = text;
    this.notice.hidden = !text;
  }
}

const personOf = (user) => user ? userText(nameOf({ user })) : "somebody who has left";

function headOf(quest) {
  return [
    h("h2", {}, userText(quest.title)),
    h(
      "p",
      { class: "quiet" },
      badge(statuses[quest.status]),
      " offered by ",
      personOf(quest.creator),
      ` · ${ago(quest.created_at)}`,
      quest.performer && [" · performed by ", personOf(quest.performer)],
      quest.expires_at && ` · open until ${dateTime(quest.expires_at)}`,
      quest.round > 1 && ` · round ${quest.round}`,
    ),
    h("p", { class: "prose", dir: "auto" }, quest.description),
    quest.requirements.length > 0 && [
      h("h3", {}, "Requirements"),
      h("ul", {}, quest.requirements.map((text) => h("li", { dir: "auto" }, text))),
    ],
    quest.tags.length > 0 && h("p", { class: "tags" }, quest.tags.map((tag) => badge(userText(tag)))),
    h("div", { class: "figures" }, quest.rewards.map(({ type, amount }) => figure(rewards[type], amount))),
  ];
}

function figure(label, value) {
  const total = h("span", { class: "big" }, number(value));
  return h("div", { class: "figure" }, h("span", { class: "label" }, label), total);
}

function workOf(quest) {
  if (!quest.submission) return null;
  return [
    h("h3", {}, "Submitted work", quest.submitted_at && h("span", { class: "quiet" }, ` · ${ago(quest.submitted_at)}`)),
    h("p", { class: "prose", dir: "auto" }, quest.submission),
  ];
}

function attestationsOf({ attestations, attestations_required: required, min_rating: least }) {
  const needed = `${number(attestations.length)} of ${number(required)}, with an average of at least ${least}`;
  if (!attestations.length) return h("p", { class: "quiet" }, `Attestations: ${needed}.`);
  return [
    h("h3", {}, "Attestations", h("span", { class: "quiet" }, ` · ${needed}`)),
    h("ul", { class: "quests" }, attestations.map(attestationItem)),
  ];
}

function attestationItem({ attester, rating, comments, signature, signature_verified: isVerified, timestamp }) {
  return h(
    "li",
    {},
    h("p", {}, personOf(attester), `: ${rating} of 5`, h("span", { class: "quiet" }, ` · ${ago(timestamp)}`)),
    comments && h("p", { class: "prose", dir: "auto" }, comments),
    signature &&
      h("p", { class: "quiet" }, isVerified ? "signature " : "signature not verified ", h("code", {}, signature)),
  );
}

function rewardsOf(quest) {
  const decided = quest.rewards.filter(({ status }) => status);
  if (!decided.length) return null;
  return [
    h("h3", {}, "Rewards"),
    h(
      "ul",
      {},
      decided.map(({ type, amount, status }) => {
        return h("li", {}, `${number(amount)} ${rewards[type]}: ${rewardStates[status]}`);
      }),
    ),
  ];
}

function historyOf({ history }) {
  const done = Object.fromEntries(steps.map((step) => [step.name, step.done]));
  const item = ({ step, by, at, reason }) =>
    h(
      "li",
      {},
      done[step],
      by && [" by ", personOf(by)],
      h("span", { class: "quiet", title: dateTime(at) }, ` · ${ago(at)}`),
      reason && h("p", { class: "prose", dir: "auto" }, reason),
    );
  return [h("h3", {}, "History"), h("ol", { class: "history" }, history.map(item))];
}
