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
