// The sign-in form. The session is in a cookie that no script can read; only the tenant's name is saved here.

import { send } from "./api.js";
import { h, replace } from "./dom.js";
import { form } from "./form.js";
import { readSetting, saveSetting } from "./storage.js";

export function showSignIn(root, { onSignedIn, message = "What matters, where, and who contributed." }) {
  const savedTenant = readSetting("tenant") ?? "";
  const fields = [
    { name: "tenant", label: "Tenant", value: savedTenant, required: true, autocomplete: "organization" },
    { name: "username", label: "Username", required: true, autocomplete: "username" },
    { name: "password", label: "Password", type: "password", required: true, autocomplete: "current-password" },
  ];
  const submit = async ({ tenant, username, password }) => {
    await send("POST", "/dashboard/login", { tenant: tenant.trim(), username: username.trim(), password });
    saveSetting("tenant", tenant.trim());
    onSignedIn();
  };
  const signInForm = form({ fields, submit, action: "Sign in" });
  const title = h("h1", {}, h("span", { class: "mark", "aria-hidden": "true" }), "Plaudit");
  const card = h("div", { class: "card" }, title, h("p", { class: "quiet" }, message), signInForm);
  replace(root, h("main", { class: "signin", id: "main" }, card));
  signInForm.querySelector(savedTenant ? "[autocomplete=username]" : "input").focus();
}
