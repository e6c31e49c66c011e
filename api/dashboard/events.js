// What the events are like: which fields they have, and examples of those that were rejected.

import { byId, clock, count, element, percent, setText } from "./format.js";
import { get, ofRun } from "./requests.js";
import { canControl, page } from "./state.js";

const MOST_FIELDS = 40;
const SHOWN = 10;

/** Draws the share of the latest events that have each field, the rarest first. */
export function showPresence({ present, absent, unknown }) {
  const fields = Object.entries(present).sort((one, other) => one[1] - other[1] || one[0].localeCompare(other[0]));
  const others = unknown.length ? ` Not in the schema: ${unknown.slice(0, 8).join(", ")}.` : "";
  const more = fields.length > MOST_FIELDS ? ` The rarest ${MOST_FIELDS} of ${fields.length}.` : "";
  setText(byId("fields-why"), fields.length ? `Share of the latest events that have them.${more}${others}` : "No event was read yet.");
  const place = byId("fields");
  const shown = fields.slice(0, MOST_FIELDS);
  const key = JSON.stringify([shown, absent]);
  if (place.dataset.key === key) return;
  place.dataset.key = key;
  place.replaceChildren(...shown.map(([name, share]) => {
    const bar = element("i", { class: "present" });
    bar.style.width = `${100 * share}%`;
    return element("div", { class: absent.includes(name) ? "field-row absent" : "field-row" },
      element("span", {}, name), element("div", { class: "phase-bar" }, bar), element("span", {}, percent(share, share > 0.9995 || share === 0 ? 0 : 1)));
  }));
}

export function showLetterCount(letters) {
  document.body.classList.toggle("clean", !letters);
  const example = canControl() ? "" : " Examples need the scope control, because events hold what users did.";
  setText(byId("letters-why"), letters ? `${count(letters)} rejected so far.${example}` : "No event was rejected so far.");
}

/** Reads the newest dead letters whenever there are more. */
export async function showLetters(run, letters) {
  const place = byId("letters");
  const key = `${run} ${letters}`;
  if (place.dataset.key === key) return;
  place.dataset.key = key;
  const found = letters && canControl() ? (await get(ofRun(run, `/dead-letters?limit=${SHOWN}`))).items : [];
  if (page.past?.run !== run) return;
  place.hidden = !found.length;
  place.replaceChildren(...found.map((letter) => element("li", {},
    element("time", {}, clock(letter.at)), ` ${letter.reason}`,
    element("code", {}, letter.payload + (letter.bytes > letter.payload.length ? " …" : "")))));
}
