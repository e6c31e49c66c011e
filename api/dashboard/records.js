// Records of the journal: as a list with reasons, as marks on the charts, and as a time line.

import { alphaText, byId, clock, colour, element, milliseconds, svg } from "./format.js";

export const KINDS = ["command", "alpha", "set", "generation", "checkpoint", "fault", "redecided", "stopped", "ended", "begun"];
const NAMES = {
  command: "command",
  alpha: "α",
  set: "takes part",
  generation: "members",
  checkpoint: "checkpoint",
  fault: "fault",
  redecided: "went back",
  stopped: "stopped",
  ended: "ended",
  begun: "begun",
};
const LANES = [
  ["faults", ["fault", "redecided"], "danger"],
  ["commands", ["command", "stopped", "ended"], "s3"],
  ["α", ["alpha"], "s1"],
  ["members", ["generation", "begun"], "s0"],
  ["takes part", ["set"], "s7"],
  ["checkpoints", ["checkpoint"], "s2"],
];
const MOST = 5000;

const idOf = (record) => `${record.cursor}.${record.place}`;

export class Records {
  constructor() {
    this.items = [];
    this.keys = new Set();
  }

  /** Adds records that are not there yet; the newest come first. */
  add(records) {
    for (const record of records) {
      const key = idOf(record);
      if (this.keys.has(key)) continue;
      this.keys.add(key);
      this.items.push(record);
    }
    this.items.sort((one, other) => other.cursor - one.cursor || other.place - one.place);
    for (const gone of this.items.splice(MOST)) this.keys.delete(idOf(gone));
  }

  newest(kind, where = () => true) {
    return this.items.find((record) => record.kind === kind && where(record.body));
  }
}

/** What a record says, in a sentence. */
export function sentence({ kind, body }) {
  switch (kind) {
    case "command":
      return `${body.text || `${body.verb} ${body.worker ?? ""}`}${body.actor ? `, by ${body.actor}` : ""}${body.reason ? `: ${body.reason}` : ""}`;
    case "alpha":
      return `α is ${alphaText(body.alpha)}${body.backend ? ` on ${body.backend}` : ""}: ${body.reason}`;
    case "set":
      return `${chosen(body)}: ${body.reason}${faster(body)}`;
    case "generation":
      return `generation ${body.number} of ${body.members.length} workers: ${body.reason}`;
    case "checkpoint":
      return `checkpoint ${body.number} at step ${body.step}`;
    case "fault":
      return `${body.kind} at step ${body.step}: ${body.text}`;
    case "redecided":
      return `the run went back to checkpoint ${body.base} and decides again from step ${body.step} on`;
    default:
      return body.reason ?? "";
  }
}

export function chosen(body) {
  const { members } = body;
  if (members.length === 1) return `${members[0]} trains alone`;
  return `${members.slice(0, 6).join(", ")}${members.length > 6 ? ` and ${members.length - 6} more` : ""} train`;
}

function faster(body) {
  if (!body.expected_seconds) return "";
  const before = body.before_seconds ? ` instead of ${milliseconds(1000 * body.before_seconds)}` : "";
  return ` (${milliseconds(1000 * body.expected_seconds)} a step${before})`;
}

const SHOWN = 300;

export function drawLog(records, span, kind) {
  const list = byId("log");
  const inside = records.items.filter((record) => (kind ? record.kind === kind : record.kind !== "checkpoint")
    && (record.at ?? 0) >= span[0] && (record.at ?? 0) <= span[1]).slice(0, SHOWN);
  const key = `${inside.length} ${inside[0]?.cursor} ${inside.at(-1)?.cursor} ${kind}`;
  if (list.dataset.key === key) return;
  list.dataset.key = key;
  list.replaceChildren(...inside.map((record) => element("li", { "data-kind": record.kind },
    element("time", {}, clock(record.at)),
    element("span", { class: `kind ${record.kind}` }, NAMES[record.kind] ?? record.kind),
    element("span", {}, sentence(record)))));
  if (!inside.length) list.replaceChildren(element("li", { class: "empty" }, "nothing in this window"));
}

export function fillKinds(select) {
  select.replaceChildren(element("option", { value: "" }, "all but checkpoints"), ...KINDS.map((kind) => element("option", { value: kind }, NAMES[kind])));
}

export function drawTimeline(records, span) {
  const place = byId("timeline");
  const width = Math.max(280, place.clientWidth);
  const left = 92;
  const row = 22;
  const height = LANES.length * row + 24;
  const x = (at) => left + ((at - span[0]) / Math.max(1, span[1] - span[0])) * (width - left - 8);
  const picture = svg("svg", { width: "100%", height, viewBox: `0 0 ${width} ${height}`, role: "img" });
  const words = [];
  LANES.forEach(([name, kinds, hue], lane) => {
    const y = 12 + lane * row;
    const inside = records.items.filter((record) => kinds.includes(record.kind) && record.at >= span[0] && record.at <= span[1]);
    words.push(`${inside.length} ${name}`);
    picture.append(
      svg("text", { x: 0, y: y + 4, class: "muted" }, name),
      svg("line", { x1: left, x2: width - 8, y1: y, y2: y, stroke: colour("line") }));
    if (name === "checkpoints") {
      picture.append(svg("path", { d: inside.map((record) => `M${x(record.at).toFixed(1)} ${y - 6}v12`).join(""), stroke: colour(hue), "stroke-width": 1.5 }));
      return;
    }
    for (const record of inside.slice(0, 400)) {
      const dot = svg("circle", { cx: x(record.at).toFixed(1), cy: y, r: 4.5, fill: colour(hue) }, svg("title", {}, `${clock(record.at)} ${sentence(record)}`));
      picture.append(dot);
    }
  });
  const ticks = width < 600 ? 2 : 4;
  for (let tick = 0; tick <= ticks; tick += 1) {
    const at = span[0] + (tick / ticks) * (span[1] - span[0]);
    picture.append(svg("text", { x: x(at), y: height - 4, class: "muted", "text-anchor": tick === 0 ? "start" : tick === ticks ? "end" : "middle" }, clock(at)));
  }
  picture.setAttribute("aria-label", `Time line of the window: ${words.join(", ")}`);
  place.replaceChildren(picture);
}
