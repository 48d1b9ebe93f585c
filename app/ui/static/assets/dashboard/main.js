// The frame: who is signed in, which view the address names, and the live dot.

import { get, onRefusedScope, onSignedOut, send } from "./api.js";
import { ContentView } from "./content.js";
import { h, icons, replace } from "./dom.js";
import { Live } from "./live.js";
import { remember } from "./memory.js";
import { failure, loading } from "./parts.js";
import { PeopleView } from "./people.js";
import { signIn } from "./signin.js";
import { SpacesView } from "./spaces.js";

const root = document.getElementById("app");
const STATES = {
  live: ["Live", "Changes appear as they happen"],
  polling: ["Polling", "There is no live connection at the moment: asking every few seconds instead"],
  connecting: ["Connecting", "Opening the live connection"],
};
let frame = null;

class Frame {
  constructor(me) {
    this.me = me;
    this.isAdmin = me.roles.includes("admin");
    this.main = h("main", { id: "main", tabindex: "-1" });
    this.dot = h("span", { class: "live", role: "status" });
    const views = [["", "Content"], ["people", "People"], ["spaces", "Spaces"], ...(this.isAdmin ? [["admin", "Admin"]] : [])];
    this.links = new Map(views.map(([path, text]) => [path, h("a", { href: path ? `/dashboard/${path}` : "/dashboard", "data-route": "" }, text)]));
    replace(
      root,
      h(
        "header",
        { class: "top" },
        h("a", { class: "brand", href: "/dashboard", "data-route": "" }, h("span", { class: "mark", "aria-hidden": "true" }), h("bdi", {}, me.tenant_name ?? me.tenant)),
        h("nav", { "aria-label": "Views" }, ...this.links.values()),
        h("div", { class: "tools" }, this.dot, h("button", { type: "button", class: "bare", "aria-label": "Switch between light and dark", title: "Light or dark", onclick: switchTheme }, icons.theme()), h("button", { type: "button", class: "bare", title: `Signed in as ${me.user.username}`, onclick: () => this.signOut() }, "Sign out")),
      ),
      this.main,
      h("footer", {}, h("span", {}, "Plaudit"), h("a", { href: "/api/docs" }, "API")),
    );
    this.live = new Live({ changed: (topic, version) => this.view?.changed(topic, version), state: (name) => this.showState(name) });
    this.publicOnly = me.sees === "public";
    this.context = { go: (to, how) => this.go(to, how), live: this.live, me, isAdmin: this.isAdmin, publicOnly: this.publicOnly, scopeOf: (space) => this.scopeOf(space), title: (text) => (document.title = `${text} · Plaudit`) };
    this.show();
  }

  /** The scope of all pages, or of a space's, that whoever is signed in may see. */
  scopeOf(space) {
    if (this.publicOnly) return space ? `public:${space}` : "public";
    return space ? `space:${space}` : "tenant";
  }

  showState(name) {
    if (this.state === name) return;
    this.state = name;
    const [text, explained] = STATES[name];
    this.dot.dataset.state = name;
    this.dot.title = explained;
    this.dot.textContent = text;
  }

  async show() {
    const [, , name = "", ...rest] = location.pathname.split("/");
    if (this.name !== name) {
      this.view?.stop();
      this.view = null;
      this.name = name;
      for (const [path, link] of this.links) link.toggleAttribute("aria-current", path === name);
      this.links.get(name)?.setAttribute("aria-current", "page");
      this.live.follow([]);
      replace(this.main, h("section", { class: "card" }, loading(6)));
      try {
        const View = await this.viewNamed(name);
        if (this.name !== name) return; // somebody was quicker
        this.view = View ? new View(this.main, this.context) : null;
      } catch {
        this.name = null;
        replace(this.main, h("section", { class: "card" }, failure(new Error("A part of the dashboard did not come. Check your connection."), () => this.show())));
        return;
      }
    }
    this.remember(name);
    if (this.view) this.view.show(new URLSearchParams(location.search), rest.join("/"));
    else replace(this.main, h("div", { class: "card empty" }, h("p", { class: "strong" }, name === "admin" ? "This part is for admins" : "There is nothing at this address"), h("p", {}, h("a", { href: "/dashboard", "data-route": "" }, "Back to the content"))));
  }

  /** A view that is come back to shows what it showed. */
  remember(name) {
    const query = new URLSearchParams(location.search);
    for (const opened of ["page", "user"]) query.delete(opened);
    const link = this.links.get(name);
    if (link && name !== "admin") link.search = query.toString();
  }

  async viewNamed(name) {
    if (name === "admin" && this.isAdmin) return (await import("./admin.js")).AdminView;
    return new Map([["", ContentView], ["people", PeopleView], ["spaces", SpacesView]]).get(name);
  }

  go(to, { replace: inPlace } = {}) {
    history[inPlace ? "replaceState" : "pushState"](null, "", to.endsWith("?") ? to.slice(0, -1) : to);
    this.show();
  }

  async signOut() {
    try {
      await send("POST", "/dashboard/logout");
    } catch (error) {
      if (error.status !== 401) alert(`You are still signed in: ${error.message}`);
      return; // of a session that had ended, the frame has heard
    }
    this.leave();
    history.replaceState(null, "", "/dashboard");
    askToSignIn();
  }

  leave() {
    this.view?.stop();
    this.live.stop();
    frame = null;
  }
}

function switchTheme() {
  const dark = getComputedStyle(document.documentElement).colorScheme === "dark" || (!document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  remember("theme", document.documentElement.dataset.theme);
}

function askToSignIn(said) {
  document.title = "Sign in · Plaudit";
  signIn(root, { signedIn: begin, said });
}

async function begin() {
  try {
    frame = new Frame(await get("/api/v1/me"));
  } catch (error) {
    if (error.status === 401) askToSignIn();
    else replace(root, h("main", { class: "signin" }, h("div", { class: "card" }, failure(error, begin))));
  }
}

onSignedOut(() => {
  if (!frame) return;
  frame.leave();
  askToSignIn("Your session has ended. Sign in again to go on.");
});
// An admin took their right to see private pages away while they look: begin again with what they see now.
onRefusedScope(() => {
  if (!frame || frame.publicOnly) return;
  frame.leave();
  setTimeout(begin, 1000);
});
if (root.dataset.wasHere === undefined) askToSignIn();
else begin();
addEventListener("popstate", () => frame?.show());
document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[data-route]");
  if (!link || !frame || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  frame.go(link.pathname + link.search);
});
