// Elements of the page.

export const get = (id) => document.getElementById(id);

export function make(tag, attributes = {}, ...content) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...content.filter((part) => part !== null));
  return element;
}

export function swatch(rgb) {
  const mark = make("span", { class: "swatch", "aria-hidden": "true" });
  mark.style.background = `rgb(${rgb.join(",")})`;
  return mark;
}

// What is there already is not written again, so that the browser has nothing to do.
export function write(text, words) {
  if (text.data !== words) text.data = words;
}

export function hide(element, hidden) {
  if (element.hidden !== hidden) element.hidden = hidden;
}
