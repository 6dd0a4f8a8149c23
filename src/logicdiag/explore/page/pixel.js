// One pixel, drawn: the hierarchy with probabilities, the broken rules, the diagnoses, the choice and why. The elements
// are made once and written anew for each pixel, because the pointer moves faster than a page is built.

import { hide, make, write } from "./dom.js";
import { Tree } from "./tree.js";

export const LISTED = 12; // rules and diagnoses that are seen at once; of a pixel that is passed, no more are asked for

const NAMED = 6; // classes that are named of a diagnosis of a pixel that is passed

const percent = (share) => `${(100 * share).toFixed(1)}%`;
const listed = (names) => (names.length ? names.join(", ") : "nothing");
const counted = (count) => (count < 1e6 ? count.toLocaleString("en") : "over a million");

function inWords(flips, seen, most = Infinity) {
  const wrong = flips.filter((name) => seen.has(name)), missing = flips.filter((name) => !seen.has(name));
  const words = [...wrong.map((name) => `not ${name}`), ...missing.map((name) => `also ${name}`)];
  if (words.length > most + 1) words.splice(most, Infinity, `and ${words.length - most} more`);
  return words.join(", ") || "nothing is wrong";
}

export function spoken(pixel) {
  const what = pixel.broken.length
    ? `broken rules: ${pixel.broken.join("; ")}. Taken: ${inWords(pixel.taken.flips, new Set(pixel.observed))}`
    : "no rule is broken";
  return `Pixel ${pixel.at.join(", ")}: ${listed(pixel.observed)}; ${what}.`;
}

export class Panel {
  constructor(nodes, root) {
    this.tree = new Tree(nodes);
    this.left = new Text();
    this.others = make("p", { class: "note" }, this.left);
    this.key = new Text();
    this.broken = new Broken();
    this.diagnoses = new Diagnoses();
    this.why = new Text();
    this.revised = new Text();
    this.end = new Text();
    this.verdict = make("p", { class: "verdict" }, "No rule is broken; the observation is its own diagnosis.");
    this.conflict = make("div", {}, ...this.broken.parts, ...this.diagnoses.parts,
      make("p", { id: "why" }, make("strong", {}, "Why: "), this.why),
      make("p", { id: "revised" }, make("strong", {}, "Revised: "), this.revised));
    root.replaceChildren(this.tree.top, this.others,
      make("p", { class: "note key" }, this.key), this.verdict, this.conflict, make("p", { class: "note" }, this.end));
  }

  // `pixel.breaks` is there for a pixel that is passed, of which not everything is told.
  draw(pixel, whole) {
    const passing = pixel.breaks !== undefined;
    const left = this.tree.draw(pixel, whole, passing);
    hide(this.others, !left);
    if (left) write(this.left, `and ${left} other classes; click to see them`);
    write(this.key, "The bar is the probability, the tick 0.5." +
      (Object.keys(pixel.conflict_degrees).length ? " c: how far the rules about the class fail over the image." : ""));
    hide(this.verdict, pixel.broken.length > 0);
    hide(this.conflict, pixel.broken.length === 0);
    if (pixel.broken.length) {
      this.broken.draw(pixel.broken, pixel.breaks ?? pixel.broken.length);
      this.diagnoses.draw(pixel, passing);
      write(this.why, pixel.why);
      write(this.revised, listed(pixel.revised));
    }
    const counts = pixel.threshold.counts ? `takes ${pixel.chosen.leaf}, too` : "leaves the pixel out";
    write(this.end, `Inference takes the likeliest leaf: ${pixel.chosen.leaf} (${pixel.chosen.probability.toFixed(2)}). ` +
      `A threshold of ${pixel.threshold.threshold} ${counts}.`);
  }
}

// What does not fit: a line that says how much, or all of it to be opened.
class Rest {
  constructor(id, holder, around = holder) {
    this.line = new Text();
    this.note = make("p", { class: "note" }, this.line);
    this.holder = holder;
    this.summary = new Text();
    this.details = make("details", { id }, make("summary", {}, this.summary), around);
    this.parts = [this.note, this.details];
  }

  draw(count, what, elements, open = false) {
    hide(this.note, !count || elements.length > 0);
    hide(this.details, !elements.length);
    if (count && !elements.length) write(this.line, `and ${counted(count)} ${what}; click to see them`);
    if (elements.length) write(this.summary, `and ${counted(elements.length)} ${what}`);
    if (elements.length || this.holder.firstChild) this.holder.replaceChildren(...elements);
    if (this.details.open !== open) this.details.open = open;
  }
}

class Broken {
  constructor() {
    this.title = new Text();
    this.lines = Array.from({ length: LISTED }, () => new Text());
    this.items = this.lines.map((line) => make("li", {}, make("code", {}, line)));
    this.rest = new Rest("more-broken", make("ul", { class: "rules" }));
    this.parts = [make("h3", {}, this.title), make("ul", { id: "broken", class: "rules" }, ...this.items), ...this.rest.parts];
  }

  draw(rules, total) {
    write(this.title, `Broken rules (${total})`);
    this.lines.forEach((line, i) => {
      hide(this.items[i], i >= rules.length);
      if (i < rules.length) write(line, rules[i]);
    });
    this.rest.draw(Math.max(0, total - LISTED), "more", rules.slice(LISTED).map((rule) => make("li", {}, make("code", {}, rule))));
  }
}

class Diagnoses {
  constructor() {
    this.title = new Text();
    this.rows = Array.from({ length: LISTED }, () => new Line());
    this.late = new Line(); // the one taken, where it is not among those listed
    const body = make("tbody");
    this.rest = new Rest("more-diagnoses", body, make("table", {}, body));
    this.after = make("table", { id: "taken-late" }, make("tbody", {}, this.late.row));
    this.parts = [make("h3", {}, this.title), make("table", { id: "diagnoses" }, make("tbody", {}, ...this.rows.map(({ row }) => row))),
                  ...this.rest.parts, this.after];
  }

  draw(pixel, passing) {
    const { diagnoses, exhaustive, total, strategy } = pixel;
    const of = total === null ? "" : ` of ${counted(total)}`;
    const many = exhaustive || (passing && of) ? counted(total) : `the likeliest ${diagnoses.length}${of}`;
    write(this.title, `Minimal diagnoses (${many})`);
    const seen = new Set(pixel.observed), taken = pixel.taken.flips.join("\n");
    const isTaken = (one) => one.flips.join("\n") === taken;
    const draw = (line, one) => line.draw(one.probability, inWords(one.flips, seen, passing ? NAMED : Infinity), isTaken(one) ? ` taken (${strategy})` : "");
    this.rows.forEach((line, i) => {
      hide(line.row, i >= diagnoses.length);
      if (i < diagnoses.length) draw(line, diagnoses[i]);
    });
    const rest = diagnoses.slice(LISTED);
    const made = rest.map((one) => { const line = new Line(); draw(line, one); return line.row; });
    const left = total === null ? 0 : total - Math.min(LISTED, diagnoses.length);
    this.rest.draw(passing ? left : 0, "less likely", made, rest.some(isTaken));
    hide(this.after, diagnoses.some(isTaken));
    if (!this.after.hidden) draw(this.late, pixel.taken);
  }
}

// A diagnosis with its probability.
class Line {
  constructor() {
    this.share = make("span", { class: "share", "aria-hidden": "true" });
    this.probability = new Text();
    this.words = new Text();
    this.mark = new Text();
    this.row = make("tr", {}, make("td", { class: "number" }, this.share, this.probability),
      make("td", {}, this.words, make("em", {}, this.mark)));
  }

  draw(probability, words, mark) {
    this.share.style.transform = `scaleX(${Math.max(0.01, probability).toFixed(3)})`;
    write(this.probability, percent(probability));
    write(this.words, words);
    write(this.mark, mark);
    const kind = mark ? "taken" : "";
    if (this.row.className !== kind) this.row.className = kind;
  }
}
