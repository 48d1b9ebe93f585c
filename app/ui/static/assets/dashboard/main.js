// The frame around the views: who is signed in, which view the address names, and the state of the live connection.

import { get, onScopeRefused, onSignedOut, send } from "./api.js";
import { failure, loading } from "./components.js";
import { ContentView } from "./content.js";
import { h, icons, replace, viewLink } from "./dom.js";
import { Live } from "./live.js";
import { PeopleView } from "./people.js";
import { showSignIn } from "./signin.js";
import { SpacesView } from "./spaces.js";
import { saveSetting } from "./storage.js";

const RESTART_AFTER_MS = 1000;
const CONNECTION_STATES = {
  live: ["Live", "Changes appear as they happen"],
  polling: ["Polling", "There is no live connection at the moment: asking every few seconds instead"],
  connecting: ["Connecting", "Opening the live connection"],
};
const VIEWS = new Map([
  ["", { label: "Content", load: () => ContentView }],
  ["people", { label: "People", load: () => PeopleView }],
  // Loaded when it is needed, as the admin's part is.
  ["quests", { label: "Quests", load: async () => (await import("./quests.js")).QuestsView }],
  ["spaces", { label: "Spaces", load: () => SpacesView }],
  // Few people open it, so it is loaded when it is needed.
  ["admin", { label: "Admin", load: async () => (await import("./admin/admin.js")).AdminView, isForAdmins: true }],
]);

const root = document.getElementById("app");
let frame = null;

class Frame {
  constructor(me) {
    this.me = me;
    this.isAdmin = me.roles.includes("admin");
    this.publicOnly = me.sees === "public";
    this.main = h("main", { id: "main", tabindex: "-1" });
    this.dot = h("span", { class: "live", role: "status" });
    this.views = new Map([...VIEWS].filter(([, view]) => !view.isForAdmins || this.isAdmin));
    const linkTo = (name, { label }) => viewLink(name ? `/dashboard/${name}` : "/dashboard", {}, label);
    this.links = new Map([...this.views].map(([name, view]) => [name, linkTo(name, view)]));
    const footer = h("footer", {}, h("span", {}, "Plaudit"), h("a", { href: "/api/docs" }, "API"));
    replace(root, this.header(), this.main, footer);
    this.live = new Live({
      onChange: (topic, version) => this.view?.onChange(topic, version),
      onState: (state) => this.showConnection(state),
    });
    this.context = this.contextOfViews();
    this.show();
    this.hideQuestsIfDisabled();
  }

  async hideQuestsIfDisabled() {
    try {
      await get("/api/v1/quests?limit=1");
    } catch (error) {
      this.links.get("quests").hidden = error.code === "quests_disabled";
    }
  }

  header() {
    const mark = h("span", { class: "mark", "aria-hidden": "true" });
    const brand = viewLink("/dashboard", { class: "brand" }, mark, h("bdi", {}, this.me.tenant_name ?? this.me.tenant));
    const theme = h("button", {
      type: "button",
      class: "bare",
      "aria-label": "Switch between light and dark",
      title: "Light or dark",
      onclick: switchTheme,
    }, icons.theme());
    const signOut = h("button", {
      type: "button",
      class: "bare",
      title: `Signed in as ${this.me.user.username}`,
      onclick: () => this.signOut(),
    }, "Sign out");
    return h(
      "header",
      { class: "top" },
      brand,
      h("nav", { "aria-label": "Views" }, ...this.links.values()),
      h("div", { class: "tools" }, this.dot, theme, signOut),
    );
  }

  /** What a view may use of the frame. */
  contextOfViews() {
    return {
      me: this.me,
      isAdmin: this.isAdmin,
      publicOnly: this.publicOnly,
      live: this.live,
      go: (path, options) => this.go(path, options),
      scopeOf: (space) => this.scopeOf(space),
      setTitle: (text) => {
        document.title = `${text} · Plaudit`;
      },
    };
  }

  /** The scope of all pages, or of a space's pages, that the signed-in user may see. */
  scopeOf(space) {
    if (this.publicOnly) return space ? `public:${space}` : "public";
    return space ? `space:${space}` : "tenant";
  }

  showConnection(state) {
    if (this.connection === state) return;
    this.connection = state;
    const [text, explanation] = CONNECTION_STATES[state];
    this.dot.dataset.state = state;
    this.dot.title = explanation;
    this.dot.textContent = text;
  }

  /** Shows what the address names. */
  async show() {
    const [, , name = "", ...rest] = location.pathname.split("/");
    if (this.name !== name && !(await this.open(name))) return;
    this.keepQuery(name);
    if (this.view) this.view.show(new URLSearchParams(location.search), rest.join("/"));
    else this.showNothing(name);
  }

  /** Replaces the view by another; false if it could not be loaded or the user went elsewhere meanwhile. */
  async open(name) {
    this.view?.stop();
    this.view = null;
    this.name = name;
    for (const [path, link] of this.links) {
      if (path === name) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    this.live.follow([]);
    replace(this.main, h("section", { class: "card" }, loading(6)));
    try {
      const View = await this.views.get(name)?.load();
      if (this.name !== name) return false;
      this.view = View ? new View(this.main, this.context) : null;
      return true;
    } catch {
      this.name = null;
      const error = new Error("A part of the dashboard could not be loaded. Check your connection.");
      replace(this.main, h("section", { class: "card" }, failure(error, () => this.show())));
      return false;
    }
  }

  showNothing(name) {
    const text = VIEWS.get(name)?.isForAdmins ? "This part is for admins" : "There is nothing at this address";
    replace(
      this.main,
      h(
        "div",
        { class: "card empty" },
        h("p", { class: "strong" }, text),
        h("p", {}, viewLink("/dashboard", {}, "Back to the content")),
      ),
    );
  }

  /** The link to a view keeps its filters, so coming back to it shows the same. */
  keepQuery(name) {
    const link = this.links.get(name);
    if (!link || VIEWS.get(name).isForAdmins) return;
    const query = new URLSearchParams(location.search);
    for (const sheet of ["page", "user", "quest"]) query.delete(sheet);
    link.search = query.toString();
  }

  go(path, { replace: inPlace } = {}) {
    const url = path.endsWith("?") ? path.slice(0, -1) : path;
    if (inPlace) history.replaceState(null, "", url);
    else history.pushState(null, "", url);
    this.show();
  }

  async signOut() {
    try {
      await send("POST", "/dashboard/logout");
    } catch (error) {
      // 401: the session had ended before, and onSignedOut has shown the sign-in form.
      if (error.status !== 401) alert(`You are still signed in: ${error.message}`);
      return;
    }
    this.close();
    history.replaceState(null, "", "/dashboard");
    askToSignIn();
  }

  close() {
    this.view?.stop();
    this.live.stop();
    frame = null;
  }
}

function switchTheme() {
  const { dataset } = document.documentElement;
  const isSystemDark = matchMedia("(prefers-color-scheme: dark)").matches;
  const isDark = dataset.theme ? dataset.theme === "dark" : isSystemDark;
  dataset.theme = isDark ? "light" : "dark";
  saveSetting("theme", dataset.theme);
}

function askToSignIn(message) {
  document.title = "Sign in · Plaudit";
  showSignIn(root, { onSignedIn: start, message });
}

async function start() {
  try {
    const me = await get("/api/v1/me");
    if (me.must_change_password) {
      // Few people see it, and only once.
      const { showPasswordChange } = await import("./password.js");
      showPasswordChange(root, { onChanged: start });
      return;
    }
    frame = new Frame(me);
  } catch (error) {
    if (error.status === 401) askToSignIn();
    else replace(root, h("main", { class: "signin" }, h("div", { class: "card" }, failure(error, start))));
  }
}

onSignedOut(() => {
  if (!frame) return;
  frame.close();
  askToSignIn("Your session has ended. Sign in again to continue.");
});

// An admin withdrew the right to see private pages from the signed-in user: start again with what they may see.
onScopeRefused(() => {
  if (!frame || frame.publicOnly) return;
  frame.close();
  setTimeout(start, RESTART_AFTER_MS);
});

addEventListener("popstate", () => frame?.show());

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[data-route]");
  const opensElsewhere = event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey;
  if (!link || !frame || opensElsewhere) return;
  event.preventDefault();
  frame.go(link.pathname + link.search);
});

if (root.dataset.wasHere === undefined) askToSignIn();
else start();
