// The form for a user whose password was issued by somebody else: they choose their own before anything else.

import { Problem, send } from "./api.js";
import { h, replace } from "./dom.js";
import { form } from "./form.js";

export function showPasswordChange(root, { onChanged }) {
  const chosen = { type: "password", required: true, autocomplete: "new-password" };
  const fields = [
    { name: "old", label: "Present password", type: "password", required: true, autocomplete: "current-password" },
    { name: "new", label: "New password", ...chosen, hint: "At least 10 characters, such as several uncommon words." },
    { name: "again", label: "New password, again", ...chosen },
  ];
  const submit = async (values) => {
    if (values.new !== values.again) throw new Problem(422, { errors: { again: ["differs from the one above"] } });
    await send("POST", "/api/v1/auth/password", { old: values.old, new: values.new });
    onChanged();
  };
  document.title = "Choose a password · Plaudit";
  const text = "Your password was issued by somebody else, who may still have it. Choose your own to continue.";
  const changeForm = form({ fields, submit, action: "Change password" });
  const card = h(
    "div",
    { class: "card" },
    h("h1", {}, "Choose a password"),
    h("p", { class: "quiet" }, text),
    changeForm,
  );
  replace(root, h("main", { class: "signin", id: "main" }, card));
  changeForm.querySelector("input").focus();
}
