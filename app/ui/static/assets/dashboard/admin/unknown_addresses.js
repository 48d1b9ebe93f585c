// Addresses of refused views that no page has: an admin makes them pages, or dismisses them.

import { getAll, send, withQuery } from "../api.js";
import { empty, failure, loading } from "../components.js";
import { h, replace, userText, viewLink } from "../dom.js";
import { form } from "../form.js";
import { ago, dateTime, number } from "../format.js";
import { names } from "../names.js";
import { card, dataTable, numberCell, numbers, unfold } from "./components.js";

const UNKNOWN = "/api/v1/ingest/unknown";
const MAX_SHOWN = 100;

export function unknownAddressesCard() {
  const done = h("p", { class: "notice", role: "status", hidden: true });
  const body = h("div", { tabindex: "-1" }, loading(3));
  const read = async () => {
    try {
      const { items, hasMore } = await getAll(UNKNOWN, { max: MAX_SHOWN });
      const table = items.length ? tableOf(items, onDone) : nothing();
      replace(body, table, hasMore && h("p", { class: "quiet" }, `The ${MAX_SHOWN} most viewed ones are shown.`));
    } catch (error) {
      replace(body, failure(error, read));
    }
  };
  /** After a change: says what was done, and keeps the keyboard's place in the list. */
  const onDone = async (place, ...text) => {
    replace(done, ...text).hidden = false;
    await read();
    const buttons = body.querySelectorAll("button.make");
    (buttons[Math.min(place, buttons.length - 1)] ?? body).focus();
  };
  read();
  const explanation = "Views of addresses that no page has, in the last 7 days";
  return card("Unknown addresses", explanation, done, body);
}

function nothing() {
  return empty(
    "There are no unknown addresses",
    "If a browser sends a view of an address that no page has, the address is listed here.",
  );
}

function tableOf(items, onDone) {
  const heads = ["Address", numbers("Views"), "Last seen", ""];
  return dataTable(heads, items.map((item, place) => row(item, (...text) => onDone(place, ...text))));
}

function row(item, onDone) {
  const wrong = h("p", { class: "wrong", role: "alert" });
  const makePage = async (changes) => {
    const page = await send("POST", `${UNKNOWN}/pages`, { url: item.url, ...changes });
    const link = viewLink(withQuery("/dashboard", { page: page.external_id }), {}, userText(page.title));
    await onDone(link, ` is a page now, in the space ${page.space}: ${page.url}. Its views count from now on.`);
  };
  const dismiss = async () => {
    await send("DELETE", withQuery(UNKNOWN, { url: item.url }));
    await onDone("Dismissed ", userText(item.url));
  };
  const button = (attributes, text, act) => {
    const described = { type: "button", "aria-label": `${text}: ${item.url}`, ...attributes };
    const element = h("button", described, text);
    element.addEventListener("click", async () => {
      element.disabled = true;
      wrong.textContent = "";
      try {
        await act();
      } catch (error) {
        wrong.textContent = error.message;
        element.disabled = false;
      }
    });
    return element;
  };
  const about = [
    item.title && userText(item.title),
    item.title && " · ",
    `would be in ${item.space}, ${item.visibility}`,
  ];
  return h(
    "tr",
    {},
    h(
      "td",
      {},
      h("code", {}, userText(item.url)),
      h("div", { class: "quiet" }, about),
      unfold("Change title, space or visibility first", pageForm(item, makePage)),
      wrong,
    ),
    numberCell(number(item.count), h("span", { class: "unit" }, item.count === 1 ? " view" : " views")),
    h("td", { class: "when", title: `First seen ${dateTime(item.first_seen)}` }, ago(item.last_seen)),
    h(
      "td",
      { class: "acts" },
      button({ class: "make" }, "Make this a page", () => makePage({})),
      button({ class: "bare" }, "Dismiss", dismiss),
    ),
  );
}

function pageForm(item, makePage) {
  return form({
    action: "Make a page with these",
    fields: [
      { name: "title", label: "Title", value: item.title, placeholder: "The end of the address" },
      { name: "space", label: "Space", value: item.space, required: true },
      { name: "visibility", label: "Who sees it", type: "select", value: item.visibility, options: names.visibilities },
    ],
    submit: ({ title, ...others }) => makePage(title ? { title, ...others } : others),
  });
}
