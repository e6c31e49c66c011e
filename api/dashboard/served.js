// The served model: which snapshots there are, and a form that predicts with the one that is served.

import { ask, get, ofRun } from "./requests.js";
import { act } from "./acts.js";
import { byId, count, element, percent, seconds, setText } from "./format.js";

const SHOWN = 6;

/** Reads the snapshots of the run's server; shows nothing if it has none. */
export async function showSnapshots(run, canControl) {
  let items = [];
  try {
    items = (await get(ofRun(run, "/served/snapshots"))).items;
  } catch (error) {
    if (error.status === 401 || error.status === 0) throw error;
    byId("served-card").hidden = error.status === 404;
    byId("try-card").hidden = error.status === 404;
    setText(byId("served-why"), error.message);
    return;
  }
  byId("served-card").hidden = byId("try-card").hidden = false;
  const served = items.find((each) => each.is_served);
  const pinned = items.find((each) => each.is_pinned);
  const shown = [...items.slice(0, SHOWN)];
  for (const extra of [served, pinned]) if (extra && !shown.includes(extra)) shown.push(extra);
  setText(byId("served-why"), pinned ? `Checkpoint ${pinned.id.checkpoint} is pinned: newer ones are not served.` : "The newest good snapshot is served.");
  byId("unpin").disabled = !pinned;
  const table = byId("snapshots");
  const key = JSON.stringify([shown.map((each) => [each.id, each.is_served, each.is_pinned]), canControl]);
  if (table.dataset.key === key) return;
  table.dataset.key = key;
  const focused = document.activeElement?.dataset?.act;
  table.replaceChildren(
    element("thead", {}, element("tr", {}, ...["checkpoint", "step", "age", "rows", "state"].map((name, at) => element("th", { scope: "col", class: ["", "number", "number", "number wide", ""][at] }, name)), canControl ? element("td") : null)),
    element("tbody", {}, ...shown.map((each) => snapshotRow(run, each, canControl))));
  if (focused) table.querySelector(`[data-act="${CSS.escape(focused)}"]`)?.focus();
}

function snapshotRow(run, each, canControl) {
  const held = each.reasons.length && !each.is_released;
  const states = [each.is_served ? ["good", "served"] : null, each.is_pinned ? ["warn", "pinned"] : null, held ? ["bad", `held: ${each.reasons.join(", ")}`] : null].filter(Boolean);
  const pin = element("button", {
    type: "button", class: "small", "data-act": `pin-${each.id.checkpoint}`, "aria-label": `Pin checkpoint ${each.id.checkpoint}`,
    onclick: () => act(run, {
      title: `Pin checkpoint ${each.id.checkpoint}`, text: "It is served, whatever comes later, until it is unpinned.", yes: "Pin it",
      method: "PUT", path: "/served/snapshots/pin", body: { checkpoint: each.id.checkpoint },
    }),
  }, "Pin");
  return element("tr", {},
    element("th", { scope: "row" }, String(each.id.checkpoint)),
    element("td", { class: "number" }, count(each.id.step)),
    element("td", { class: "number" }, seconds(each.age_seconds)),
    element("td", { class: "number wide" }, count(each.rows)),
    element("td", {}, ...states.map(([look, word]) => element("span", { class: `pill ${look}` }, word))),
    canControl ? element("td", { class: "acts" }, pin) : null);
}

/** Makes one input a field of the schema, once the fields are known. */
export function showFields(names, absent) {
  const place = byId("try-fields");
  if (place.dataset.names === names.join(" ") || !names.length) return;
  place.dataset.names = names.join(" ");
  place.replaceChildren(...names.map((name) => element("label", {}, absent.includes(name) ? `${name} (no event has it)` : name,
    element("input", { name, autocomplete: "off", spellcheck: "false", maxlength: 200 }))));
}

/** What was typed: a number if it is one, several values if there are commas. */
function typed(text) {
  const parts = text.split(",").map((part) => part.trim()).filter(Boolean).map((part) => (/^-?\d+(\.\d+)?$/.test(part) ? Number(part) : part));
  return text.includes(",") ? parts : parts[0];
}

export async function predict(run) {
  const answer = byId("try-answer");
  const inputs = [...byId("try-fields").querySelectorAll("input")].filter((input) => input.value.trim());
  const fields = Object.fromEntries(inputs.map((input) => [input.name, typed(input.value)]));
  try {
    const found = await ask("POST", ofRun(run, "/served/predict"), { fields });
    answer.replaceChildren(percent(found.probabilities[0], 1), " ", element("small", {}, `by checkpoint ${found.snapshot.checkpoint}, step ${count(found.snapshot.step)}, ${seconds(found.age_seconds)} old`));
  } catch (error) {
    answer.replaceChildren(element("small", {}, error.message));
  }
}
