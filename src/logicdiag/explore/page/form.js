// The form with the rules: what it says, and what is wrong with it.

import { get } from "./dom.js";

export function setting() {
  const families = [...document.querySelectorAll("#families input:checked")].map((box) => box.value).join("");
  return { rules: get("rules").value, families, strategy: get("strategy").value, seed: Number(get("seed").value) };
}

export function fill({ rules, families, strategy, seed }) {
  get("rules").value = rules;
  document.querySelectorAll("#families input").forEach((box) => (box.checked = families.includes(box.value)));
  get("strategy").value = strategy;
  get("seed").value = seed;
}

export function complain(message) {
  get("problem").textContent = message ?? "";
  get("problem").hidden = message === null;
  get("rules").setAttribute("aria-invalid", message !== null);
}
