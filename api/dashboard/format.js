// Numbers, times and elements, as the page writes them.

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const BRIEF = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const TIME = { hour: "2-digit", minute: "2-digit" }; // a format is made once: making one takes longer than using it
const CLOCK = new Intl.DateTimeFormat("en-GB", { ...TIME, second: "2-digit" });
const MINUTE = new Intl.DateTimeFormat("en-GB", TIME);
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const BYTE_UNITS = ["B", "kB", "MB", "GB", "TB"];

export const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

export function count(value) {
  if (!isNumber(value)) return "–";
  return Math.abs(value) < 10_000 ? WHOLE.format(value) : BRIEF.format(value);
}

/** A number at the side of a chart: all of one axis in the same form. */
export const tick = (value) => (Math.abs(value) < 1000 ? WHOLE.format(value) : BRIEF.format(value));

export function decimal(value, digits) {
  return isNumber(value) ? value.toFixed(digits) : "–";
}

/** α, with a third digit if it has one: halves of halves are common. */
export const alphaText = (value) => decimal(value, 3).replace(/0$/, "");

export function percent(share, digits = 1) {
  return isNumber(share) ? `${(100 * share).toFixed(digits)} %` : "–";
}

export function bytes(value, per = "") {
  if (!isNumber(value)) return "–";
  let unit = 0;
  while (Math.abs(value) >= 1000 && unit < BYTE_UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${Number(value.toPrecision(3))} ${BYTE_UNITS[unit]}${per}`;
}

export function milliseconds(value) {
  if (!isNumber(value)) return "–";
  return value >= 1000 ? `${(value / 1000).toFixed(2)} s` : `${value.toFixed(value !== 0 && value < 10 ? 1 : 0)} ms`;
}

export function seconds(value) {
  if (!isNumber(value)) return "–";
  if (value === 0) return "0 s";
  if (value < 1) return milliseconds(1000 * value);
  if (value < 90) return `${value.toFixed(value < 10 ? 1 : 0)} s`;
  if (value < 5400) return `${Math.round(value / 60)} min`;
  if (value < 172_800) return `${(value / 3600).toFixed(1)} h`;
  return `${Math.round(value / 86_400)} days`;
}

export function clock(at) {
  return at ? CLOCK.format(1000 * at) : "–";
}

/** A time of day without seconds. */
export const minute = (at) => MINUTE.format(1000 * at);

export const day = (at) => DAY.format(1000 * at);

/** The form of a time that an input of type datetime-local takes. */
export function localTime(at) {
  const date = new Date(1000 * at);
  return new Date(date.getTime() - 60_000 * date.getTimezoneOffset()).toISOString().slice(0, 19);
}

export const byId = (id) => document.getElementById(id);

/** Creates an element; text is never read as HTML. */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "class") made.className = value;
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const colours = new Map();

/** A colour of the theme that is in force now; asking the browser takes long, so each is asked for once a theme. */
export function colour(name) {
  const key = `${document.documentElement.dataset.theme} ${name}`;
  if (!colours.has(key)) colours.set(key, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
  return colours.get(key);
}

/** A colour between two of the theme, each written as #rrggbb or #rgb; share: how much of the first. */
export function mixed(one, other, share) {
  const parts = [one, other].map((name) => {
    const hex = colour(name).slice(1);
    const whole = hex.length === 3 ? [...hex].map((digit) => digit + digit).join("") : hex;
    return [0, 2, 4].map((at) => parseInt(whole.slice(at, at + 2), 16));
  });
  return `rgb(${parts[0].map((value, at) => Math.round(share * value + (1 - share) * parts[1][at])).join(" ")})`;
}
