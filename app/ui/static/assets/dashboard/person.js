// What is shown of a person: a name, and a picture or their initials.

import { h } from "./dom.js";

const PICTURE_PX = { small: 26, large: 56 };

export function personName(user) {
  return user.display_name ?? user.username ?? user.external_id ?? `User ${user.id.slice(0, 8)}`;
}

/** The initials stand in for a picture that is missing, cannot be loaded, or is not at an https address. */
export function picture(user, size = "small") {
  const name = personName(user);
  const style = `picture ${size}`;
  // Shown by the style sheet: they are no part of the text.
  const initials = h("span", { class: style, "aria-hidden": "true", "data-initials": initialsOf(name) });
  if (!/^https:\/\/[^\\]+$/i.test(user.avatar_url ?? "")) return initials;
  // The address comes last: from then on the browser loads it.
  return h("img", {
    class: style,
    alt: `Picture of ${name}`,
    width: PICTURE_PX[size],
    height: PICTURE_PX[size],
    loading: "lazy",
    decoding: "async",
    referrerpolicy: "no-referrer",
    onerror: (event) => event.target.replaceWith(initials),
    src: user.avatar_url,
  });
}

function initialsOf(name) {
  const words = name.split(/[^\p{L}\p{N}]+/u).filter(Boolean);
  return words.slice(0, 2).map((word) => [...word][0]).join("").toUpperCase() || "?";
}
