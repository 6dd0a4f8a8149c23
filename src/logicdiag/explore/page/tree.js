// The hierarchy with probabilities. Rows are made once; a pixel only changes what differs from the one before.

import { hide, make, swatch, write } from "./dom.js";

const LIKELY = 0.05; // classes at least this likely are drawn, and those that were observed or revised
const ROWS = 16; // of a pixel that is passed: so many at most, unless the revised ones are more

export class Tree {
  constructor(nodes) {
    this.nodes = nodes;
    this.top = make("ul", { id: "tree", "aria-label": "The hierarchy with probabilities" });
    this.rows = nodes.map((node) => new Row(node));
    nodes.forEach((node, index) => (node.parent === null ? this.top : this.rows[node.parent].below).append(this.rows[index].item));
  }

  // Returns how many classes were left out although they would be drawn of a pinned pixel.
  draw(pixel, whole, passing) {
    const observed = new Set(pixel.observed), revised = new Set(pixel.revised);
    const wanted = whole ? this.nodes.map((_, index) => index) : this.near(pixel, observed, revised);
    const every = this.withAbove(wanted);
    const shown = passing && !whole ? this.first(wanted, pixel, revised) : every;
    const opened = new Set([...shown].map((index) => this.nodes[index].parent));
    this.nodes.forEach(({ name }, index) => {
      const row = this.rows[index];
      hide(row.item, !shown.has(index));
      hide(row.below, !opened.has(index));
      if (shown.has(index)) row.draw(pixel.probabilities[name], observed.has(name), revised.has(name), pixel.conflict_degrees[name]);
    });
    return every.size - shown.size;
  }

  near({ probabilities }, observed, revised) {
    const found = [];
    this.nodes.forEach(({ name }, index) => {
      if (probabilities[name] >= LIKELY || observed.has(name) || revised.has(name)) found.push(index);
    });
    return found;
  }

  withAbove(indices) {
    const found = new Set();
    for (const index of indices) for (let at = index; at !== null && !found.has(at); at = this.nodes[at].parent) found.add(at);
    return found;
  }

  // The revised ones, then the likeliest, as long as they fit with all that is above them.
  first(wanted, { probabilities }, revised) {
    const rank = ({ name }) => (revised.has(name) ? 2 : probabilities[name]);
    const found = new Set();
    for (const index of wanted.sort((a, b) => rank(this.nodes[b]) - rank(this.nodes[a]) || a - b)) {
      if (found.size >= ROWS && !revised.has(this.nodes[index].name)) break;
      for (let at = index; at !== null; at = this.nodes[at].parent) found.add(at);
    }
    return found;
  }
}

class Row {
  constructor(node) {
    this.fill = make("span", { class: "bar-fill" });
    this.probability = new Text();
    this.state = new Text();
    this.degree = new Text();
    this.line = make("div", { class: "node" },
      make("span", { class: "name" }, node.colour ? swatch(node.colour) : null, node.name),
      make("span", { class: "gauge", "aria-hidden": "true" }, this.fill),
      make("span", { class: "number" }, this.probability),
      make("span", { class: "state" }, this.state),
      make("span", { class: "degree", title: "how far the rules about it fail over the image" }, this.degree));
    this.below = make("ul");
    this.item = make("li", { "data-name": node.name }, this.line, this.below);
  }

  draw(probability, before, after, distrust) {
    const kind = before !== after ? "node flipped" : before ? "node held" : "node";
    if (this.line.className !== kind) this.line.className = kind;
    this.fill.style.transform = `scaleX(${probability.toFixed(3)})`;
    write(this.probability, probability.toFixed(2));
    write(this.state, before === after ? (before ? "true" : "") : `${before} → ${after}`);
    write(this.degree, distrust === undefined ? "" : `c ${distrust.toFixed(2)}`);
  }
}
