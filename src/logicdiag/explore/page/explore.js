// Asks the server and shows what it says. What depends on rules is asked with the rules, so pages do not disturb each other.

import { ask, newestOnly, Refused } from "./ask.js";
import { get, hide, make, swatch } from "./dom.js";
import { complain, fill, setting } from "./form.js";
import { indented, MAPS } from "./maps.js";
import { LISTED, Panel, spoken } from "./pixel.js";

const TYPING = 350; // milliseconds without a key until rules are applied

let facts; // of the run
let size = [1, 1]; // of the image
let applied; // the setting that is shown; the form may hold one that cannot be used
let shown = "repair"; // which map
let at = null; // the pixel that is explained
let pinned = false;
let last = null; // its explanation
let panel; // where it is drawn
const chosen = { conflict: "any", probability: null }; // rule and class of those maps
const addresses = new Map(); // of the pictures that are shown

function notice(sentence) {
  get("notice").textContent = sentence ?? "";
  get("notice").hidden = !sentence;
}

// ---- the image and its maps ---------------------------------------------------------------------------------------

const apply = newestOnly(async (outdated) => {
  working(true);
  await quietly(async () => {
    let question = { image: get("image").value, setting: setting() }, found;
    try {
      found = await ask("api/repair", question);
      complain(null);
    } catch (error) {
      if (!error.ofRules) throw error;
      complain(error.message);
      if (applied?.image === question.image) return; // what is shown stays
      question = { ...question, setting: applied?.setting ?? facts.setting };
      found = await ask("api/repair", question);
    }
    if (!outdated()) await display(question, found, outdated);
  });
  working(false);
});

async function display(question, found, outdated) {
  applied = question;
  size = found.size;
  notice(null);
  tell(found);
  offerRules(found);
  if (at) explain(...at);
  await showMaps(outdated);
}

async function quietly(work) {
  try {
    await work();
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    notice(error.message);
    if (applied) get("image").value = applied.image; // the one that is still shown
  }
}

function working(now) {
  get("waiting").hidden = !now;
  if (now) document.body.setAttribute("aria-busy", "true");
  else document.body.removeAttribute("aria-busy");
}

async function picture(what) {
  if (what === "photo") return ask(`api/image/${encodeURIComponent(applied.image)}`);
  return ask("api/map", { ...applied, what, of: chosen[what] ?? "" });
}

async function showMaps(outdated) {
  const [width, height] = size;
  get("stage").style.aspectRatio = `${width} / ${height}`;
  get("stage").style.maxWidth = `${(72 * width) / height}vh`;
  get("stage").setAttribute("aria-label", `The image, ${width} by ${height} pixels`);
  const others = Object.keys(MAPS).filter((what) => what !== "photo" && what !== shown);
  await Promise.all(["photo", shown].map((what) => showMap(what)));
  await Promise.all(others.map((what) => (outdated() ? null : showMap(what))));
}

async function showMap(what) {
  const asked = applied, of = chosen[what];
  const blob = await picture(what);
  if (asked !== applied || of !== chosen[what]) return; // a newer one is on its way
  if (addresses.has(what)) URL.revokeObjectURL(addresses.get(what));
  addresses.set(what, URL.createObjectURL(blob));
  get(`small-${what}`).src = addresses.get(what);
  place();
}

function place() {
  get("photo").src = addresses.get("photo") ?? "";
  get("map").hidden = shown === "photo";
  if (shown !== "photo" && addresses.has(shown)) get("map").src = addresses.get(shown);
  get("map").alt = MAPS[shown][1];
  get("map").style.opacity = get("opacity").value / 100;
  get("of-label").hidden = !(shown in chosen);
  get("opacity-label").hidden = shown === "photo";
  get("scale").hidden = shown !== "probability";
}

function offer() {
  const select = get("of");
  const names = shown === "probability" ? facts.nodes.map((node) => [node.name, indented(node, facts.nodes)]) : rulesInForce;
  if (!names.some(([name]) => name === chosen[shown])) chosen[shown] = names[0][0];
  select.replaceChildren(...names.map(([value, text]) => make("option", { value }, text)));
  select.value = chosen[shown];
}

let rulesInForce = [["any", "any rule"]];

function offerRules(found) {
  const families = found.parts.map(({ name }) => [name, facts.families[name] ? `${name} (${facts.families[name]})` : name]);
  const single = found.broken.map(({ rule }) => [rule, rule]).filter(([rule]) => !families.some(([name]) => name === rule));
  rulesInForce = [["any", "any rule"], ...families, ...single];
  if (!rulesInForce.some(([name]) => name === chosen.conflict)) chosen.conflict = "any";
  if (shown in chosen) offer();
}

// ---- the rules ----------------------------------------------------------------------------------------------------

function tell(found) {
  const pixels = size[0] * size[1];
  const share = (count) => `${((100 * count) / pixels).toFixed(1)} %`;
  const facts_ = [["in conflict", found.conflict], ["unlike the prediction", found.unlike_prediction],
                  ["unlike the run's repair", found.unlike_run], ["without a single leaf", found.without_leaf]];
  const list = make("dl", {}, ...facts_.flatMap(([name, count]) => [make("dt", {}, name), make("dd", {}, share(count))]));
  if (found.certainty !== null) list.append(make("dt", {}, "mean probability of the diagnosis"), make("dd", {}, `${(100 * found.certainty).toFixed(1)} %`));
  const rows = found.broken.map(({ rule, pixels: count }) => {
    const button = make("button", { type: "button", class: "link" }, rule);
    button.addEventListener("click", () => { chosen.conflict = rule; select("conflict"); quietly(() => showMap("conflict")); });
    return make("tr", {}, make("td", {}, button), make("td", { class: "number" }, share(count)));
  });
  const table = rows.length ? make("table", {}, make("caption", {}, "Rules broken most"), make("tbody", {}, ...rows)) : null;
  get("repair").replaceChildren(list, ...found.notes.map((text) => make("p", { class: "note" }, text)), ...(table ? [table] : []));
  const { strategy } = applied.setting;
  get("strategy-help").textContent = `${strategy}: ${facts.strategies[strategy]}`;
}

// ---- the pixel ----------------------------------------------------------------------------------------------------

const explain = newestOnly(async (outdated, x, y) => {
  const under = applied;
  try {
    const pixel = await ask("api/pixel", { ...under, x, y, ...(pinned ? {} : { most: LISTED }) });
    if (under === applied && !outdated()) show(pixel);
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    notice(error.message);
  }
});

function show(pixel) {
  last = pixel;
  get("pixel-title").textContent = `Pixel ${pixel.at[0]}, ${pixel.at[1]}`;
  panel.draw(pixel, get("whole").checked);
  hide(get("none"), true);
  hide(get("explanation"), false);
  get("explanation").dataset.at = pixel.at.join(",");
  mark(pixel.at);
  if (pinned) get("spoken").textContent = spoken(pixel);
}

// Drawn with the explanation and not before it, so that one frame holds both.
function mark(place) {
  const cross = get("cross");
  const [left, top] = place.map((pixel, axis) => (100 * (pixel + 0.5)) / size[axis]);
  cross.style.transform = `translate(${left}cqw, ${top}cqh)`;
  cross.toggleAttribute("data-pinned", pinned);
  hide(cross, false);
  hide(get("pinned"), !pinned);
}

function point(x, y) {
  at = [Math.min(Math.max(x, 0), size[0] - 1), Math.min(Math.max(y, 0), size[1] - 1)];
  explain(...at);
}

function under(event) {
  const box = get("photo").getBoundingClientRect();
  return [Math.floor(((event.clientX - box.left) / box.width) * size[0]), Math.floor(((event.clientY - box.top) / box.height) * size[1])];
}

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

function key(event) {
  if (event.key === "Escape") {
    pinned = false;
    if (at) point(...at);
  } else if (event.key in ARROWS) {
    event.preventDefault();
    const [x, y] = at ?? size.map((side) => Math.floor(side / 2));
    const step = event.shiftKey ? 10 : 1;
    pinned = true;
    point(x + step * ARROWS[event.key][0], y + step * ARROWS[event.key][1]);
  }
}

// ---- images dropped in --------------------------------------------------------------------------------------------

async function take(files) {
  for (const file of files) {
    try {
      const { id, name } = await ask("api/image", file, { "X-Name": encodeURIComponent(file.name), "Content-Type": "application/octet-stream" });
      get("image").append(make("option", { value: id }, `${name} (dropped in)`));
      get("image").value = id;
      turn();
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      notice(error.message);
    }
  }
}

function turn() {
  at = null;
  pinned = false;
  get("cross").hidden = get("pinned").hidden = true;
  get("pixel-title").textContent = "Pixel";
  get("none").hidden = false;
  get("explanation").hidden = true;
  apply();
}

// ---- the start ----------------------------------------------------------------------------------------------------

function select(what) {
  shown = what;
  document.querySelector(`#maps input[value=${what}]`).checked = true;
  if (what in chosen) offer();
  place();
}

function listen() {
  let typing;
  get("rules").addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(apply, TYPING); });
  get("setting").addEventListener("change", () => { clearTimeout(typing); apply(); });
  get("setting").addEventListener("submit", (event) => event.preventDefault());
  get("reset").addEventListener("click", () => { fill(facts.setting); apply(); });
  get("image").addEventListener("change", turn);
  for (const [id, step] of [["previous", -1], ["next", 1]]) {
    get(id).addEventListener("click", () => {
      const all = get("image").options.length;
      get("image").selectedIndex = (get("image").selectedIndex + step + all) % all;
      turn();
    });
  }
  get("maps").addEventListener("change", (event) => select(event.target.value));
  get("of").addEventListener("change", () => { chosen[shown] = get("of").value; quietly(() => showMap(shown)); });
  get("opacity").addEventListener("input", place);
  get("whole").addEventListener("change", () => last && at && show(last));
  document.addEventListener("pointerdown", () => notice(null));
  document.addEventListener("keydown", (event) => event.key === "Escape" && notice(null));
  const stage = get("stage");
  stage.addEventListener("pointermove", (event) => applied && !pinned && point(...under(event)));
  stage.addEventListener("click", (event) => { if (applied) { pinned = true; point(...under(event)); } });
  stage.addEventListener("keydown", (event) => applied && key(event));
  get("file").addEventListener("change", () => take(get("file").files));
  addEventListener("dragover", (event) => { event.preventDefault(); document.body.toggleAttribute("data-dropping", true); });
  addEventListener("dragleave", () => document.body.removeAttribute("data-dropping"));
  addEventListener("drop", (event) => {
    event.preventDefault();
    document.body.removeAttribute("data-dropping");
    take(event.dataTransfer.files);
  });
}

async function start() {
  facts = await ask("api/run");
  document.title = `${facts.run} – logicdiag explore`;
  get("run").textContent = `${facts.run}, ${facts.checkpoint} checkpoint, ${facts.nodes.length} classes, ${facts.images.length} images`;
  get("image").append(...facts.images.map(({ id, name }) => make("option", { value: id }, name)));
  get("strategy").append(...Object.keys(facts.strategies).map((name) => make("option", { value: name }, name)));
  for (const [letter, name] of Object.entries(facts.families)) {
    get("families").append(make("label", {}, make("input", { type: "checkbox", value: letter }), ` ${letter} ${name}`));
  }
  for (const [what, [name, title]] of Object.entries(MAPS)) {
    const radio = make("input", { type: "radio", name: "map", value: what, class: "hidden" });
    get("maps").append(make("label", { class: "small", title }, radio, make("img", { id: `small-${what}`, alt: "" }), name));
  }
  const leaves = facts.nodes.filter((node) => node.colour);
  get("colours").append(...leaves.map((node) => make("li", {}, swatch(node.colour), node.name)));
  get("example").textContent = facts.example;
  chosen.probability = facts.nodes[0].name;
  panel = new Panel(facts.nodes, get("explanation"));
  fill(facts.setting);
  listen();
  select(shown);
  await apply();
}

start().catch((error) => notice(error.message));
