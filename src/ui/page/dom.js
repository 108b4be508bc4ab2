/** Elements, made without ever reading text as HTML: what tenants write into names, messages and logs stays text. */

/**
 * @param {string} tag
 * @param {Record<string, unknown>} properties attributes, `class`, and listeners as `onclick`; undefined and false are left out
 */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== undefined && child !== false && child !== ""));
  return element;
}

export function byId(id) {
  return document.getElementById(id);
}

/** Sets the text only where it differs, so that what a reader has selected stays selected. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** The shape and word of a pod's phase; colour only repeats them. */
export const SHAPES = { Pending: "○", Running: "●", Succeeded: "✓", Failed: "✕", Unknown: "?" };

export function stateMark(phase, { status = phase, deleting = false } = {}) {
  const kind = deleting ? "Deleting" : phase;
  return [
    h("span", { class: "mark", "data-phase": kind, "aria-hidden": "true" }, deleting ? "◌" : (SHAPES[phase] ?? "?")),
    h("span", { class: "status" }, status),
  ];
}
