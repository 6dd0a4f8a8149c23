// One pixel, drawn: the hierarchy with probabilities, the broken rules, the diagnoses, the choice and why.

import { make, swatch } from "./dom.js";

const LISTED = 12; // diagnoses that are seen at once
const LIKELY = 0.05; // classes at least this likely are drawn, and those that were observed or revised

const percent = (share) => `${(100 * share).toFixed(1)}%`;

function inWords(flips, observed) {
  const seen = new Set(observed);
  const parts = [...flips.filter((name) => seen.has(name)).map((name) => `not ${name}`),
                 ...flips.filter((name) => !seen.has(name)).map((name) => `also ${name}`)];
  return parts.length ? parts.join(", ") : "nothing is wrong";
}

const listed = (names) => (names.length ? names.join(", ") : "nothing");

export function spoken(pixel) {
  const what = pixel.broken.length
    ? `broken rules: ${pixel.broken.join("; ")}. Taken: ${inWords(pixel.taken.flips, pixel.observed)}`
    : "no rule is broken";
  return `Pixel ${pixel.at.join(", ")}: ${listed(pixel.observed)}; ${what}.`;
}

export function draw(pixel, nodes, whole) {
  const counts = pixel.threshold.counts ? `takes ${pixel.chosen.leaf}, too` : "leaves the pixel out";
  const parts = [tree(pixel, nodes, whole), make("p", { class: "note key" },
    "The bar is the probability, the tick 0.5. ",
    Object.keys(pixel.conflict_degrees).length ? "c: how far the rules about the class fail over the image." : "")];
  if (!pixel.broken.length) {
    parts.push(make("p", { class: "verdict" }, "No rule is broken; the observation is its own diagnosis."));
  } else {
    parts.push(
      make("h3", {}, `Broken rules (${pixel.broken.length})`),
      make("ul", { id: "broken", class: "rules" }, ...pixel.broken.map((rule) => make("li", {}, make("code", {}, rule)))),
      ...diagnoses(pixel),
      make("p", { id: "why" }, make("strong", {}, "Why: "), pixel.why),
      make("p", { id: "revised" }, make("strong", {}, "Revised: "), listed(pixel.revised)),
    );
  }
  parts.push(
    make("p", { class: "note" },
      `Inference takes the likeliest leaf: ${pixel.chosen.leaf} (${pixel.chosen.probability.toFixed(2)}). `,
      `A threshold of ${pixel.threshold.threshold} ${counts}.`));
  return parts;
}

function diagnoses(pixel) {
  const many = pixel.exhaustive ? `${pixel.diagnoses.length}` : `the likeliest ${pixel.diagnoses.length}`;
  const taken = pixel.taken.flips.join("\n");
  const rows = pixel.diagnoses.map((one) => {
    const mine = one.flips.join("\n") === taken;
    const bar = make("span", { class: "share", "aria-hidden": "true" });
    bar.style.width = `${Math.max(1, 100 * one.probability)}%`;
    return make("tr", { class: mine ? "taken" : null },
      make("td", { class: "number" }, bar, percent(one.probability)),
      make("td", {}, inWords(one.flips, pixel.observed), mine ? make("em", {}, ` taken (${pixel.strategy})`) : null));
  });
  const parts = [make("h3", {}, `Minimal diagnoses (${many})`),
                 make("table", { id: "diagnoses" }, make("tbody", {}, ...rows.slice(0, LISTED)))];
  const rest = rows.slice(LISTED);
  if (rest.length) {
    const late = rest.some((row) => row.className === "taken");
    parts.push(make("details", { open: late }, make("summary", {}, `and ${rest.length} less likely`),
      make("table", {}, make("tbody", {}, ...rest))));
  }
  return parts;
}

function tree(pixel, nodes, whole) {
  const observed = new Set(pixel.observed), revised = new Set(pixel.revised);
  const shown = new Set();
  nodes.forEach((node, index) => {
    const near = observed.has(node.name) || revised.has(node.name) || pixel.probabilities[node.name] >= LIKELY;
    for (let at = near || whole ? index : null; at !== null; at = nodes[at].parent) shown.add(at);
  });
  const top = make("ul", { id: "tree", "aria-label": "The hierarchy with probabilities" });
  const lists = nodes.map(() => make("ul")); // of the children of each class
  nodes.forEach((node, index) => {
    if (!shown.has(index)) return;
    const drawn = row(node, pixel.probabilities[node.name], observed.has(node.name), revised.has(node.name),
                      pixel.conflict_degrees[node.name]);
    (node.parent === null ? top : lists[node.parent]).append(make("li", { "data-name": node.name }, drawn, lists[index]));
  });
  top.querySelectorAll("ul:empty").forEach((list) => list.remove());
  return top;
}

function row(node, probability, before, after, distrust) {
  const bar = make("span", { class: "bar-fill" });
  bar.style.width = `${100 * probability}%`;
  const state = before === after ? (before ? "true" : "") : `${before ? "true" : "false"} → ${after ? "true" : "false"}`;
  const kind = before !== after ? "flipped" : before ? "held" : "";
  return make("div", { class: `node ${kind}` },
    make("span", { class: "name" }, node.colour ? swatch(node.colour) : null, node.name),
    make("span", { class: "gauge", "aria-hidden": "true" }, bar),
    make("span", { class: "number" }, probability.toFixed(2)),
    make("span", { class: "state" }, state),
    make("span", { class: "degree", title: "how far the rules about it fail over the image" },
      distrust === undefined ? "" : `c ${distrust.toFixed(2)}`));
}
