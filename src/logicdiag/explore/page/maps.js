// What can be shown over the image: name and meaning of each map.

export const MAPS = {
  photo: ["image", "The image itself"],
  prediction: ["prediction", "The likeliest leaf, as inference takes it"],
  before: ["outputs", "The leaf that the outputs above 0.5 say; striped where they break a rule, pale where they say none"],
  repair: ["repair", "The leaf after repair; pale where not exactly one is true"],
  conflict: ["conflicts", "Marked: the outputs break a rule"],
  probability: ["probability", "The probability of one class"],
  threshold: ["threshold", "The likeliest leaf where it is likely enough; pale elsewhere"],
  changed: ["changed", "Marked: other labels than under the run's own rules"],
};

// A class, further to the right the deeper it is.
export function indented(node, nodes) {
  let depth = 0;
  for (let above = node.parent; above !== null; above = nodes[above].parent) depth += 1;
  return "\u00a0\u00a0\u00a0".repeat(depth) + node.name;
}
