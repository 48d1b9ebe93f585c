// Signing in. The session is in a cookie that no script can read; only the tenant's name is remembered here.

import { send } from "./api.js";
import { h, replace } from "./dom.js";
import { recall, remember } from "./memory.js";
import { form } from "./parts.js";

export function signIn(root, { signedIn, said }) {
  const remembered = recall("tenant") ?? "";
  const fields = [
    { name: "tenant", label: "Tenant", value: remembered, required: true, autocomplete: "organization" },
    { name: "username", label: "Username", required: true, autocomplete: "username" },
    { name: "password", label: "Password", type: "password", required: true, autocomplete: "current-password" },
  ];
  const submit = async (values) => {
    await send("POST", "/dashboard/login", { ...values, tenant: values.tenant.trim(), username: values.username.trim() });
    remember("tenant", values.tenant.trim());
    signedIn();
  };
  const card = form({ fields, submit, action: "Sign in" });
  replace(root, h("main", { class: "signin", id: "main" }, h("div", { class: "card" }, h("h1", {}, h("span", { class: "mark", "aria-hidden": "true" }), "Plaudit"), h("p", { class: "quiet" }, said ?? "What matters, where, and who contributed."), card)));
  card.querySelector(remembered ? "[autocomplete=username]" : "input").focus();
}
