// Who takes part: a picture of the links, the table of workers, and the time that each spends in each phase.

import { byId, bytes, colour, count, element, milliseconds, mixed, percent, setText, svg } from "./format.js";
import { TRAFFIC } from "./history.js";

export const PHASES = [
  ["push", "s6"],
  ["pull", "s0"],
  ["forward", "s2"],
  ["backward", "s3"],
  ["reduce", "s1"],
  ["rows", "s5"],
];
const LOOKS = {
  training: ["good", "training"],
  parked: ["", "parked"],
  starting: ["warn", "starting"],
  waiting: ["warn", "joins next"],
  draining: ["warn", "draining"],
  lost: ["bad", "lost"],
  left: ["bad", "left"],
  away: ["bad", "away"],
  unknown: ["warn", "not known"],
};
const REASONS = {
  parked: "the others are faster without it",
  starting: "its process is being started",
  waiting: "joins with the next generation",
  draining: "leaves after a checkpoint",
  lost: "does not answer",
  left: "was drained, removed or lost",
  away: "takes no part now",
};
const ROW = 46;

/** Workers by what the dispatcher publishes each second, what it answers when asked, and a fault not recovered from. */
export function merged(status, listed, last, fault) {
  const asked = new Map(listed.map((worker) => [worker.name, worker]));
  const published = new Map(status.workers.map((worker) => [worker.name, worker]));
  const names = new Set([...published.keys(), ...asked.keys()]);
  const total = Object.values(last?.traffic ?? {}).reduce((sum, each) => sum + each.samples, 0);
  return [...names].sort((one, other) => one.localeCompare(other, "en", { numeric: true })).map((name) => {
    const worker = published.get(name);
    const answer = asked.get(name);
    const now = last?.traffic?.[name];
    const moved = now ? TRAFFIC.reduce((sum, kind) => sum + now[kind], 0) : null;
    const gbit = answer?.link_gbit ?? worker?.link_gbit ?? null;
    return {
      name,
      state: isNamed(fault, name) ? "lost" : stateOf(worker, answer),
      process: answer?.process ?? null,
      gbit,
      uplink: (answer ? answer.uplink_gbit : worker?.uplink_gbit) ?? null,
      measured: worker?.measured_gbit ?? null,
      measuredUp: worker?.measured_uplink_gbit ?? null,
      share: now && total ? now.samples / total : null,
      moved,
      load: moved !== null && gbit ? (8 * moved) / (gbit * 1e9) : null,
      seconds: worker?.seconds ?? null,
      hits: worker?.traffic.lookups ? worker.traffic.hits / worker.traffic.lookups : null,
    };
  });
}

const isNamed = (fault, name) => fault !== null && fault.split(/[^\w.-]+/).some((word) => word.replace(/\.+$/, "") === name);

function stateOf(worker, answer) {
  const process = answer?.process;
  if (["failed", "pausing"].includes(process)) return "lost";
  if (["starting", "waiting"].includes(process)) return "starting";
  if (answer && !["training", "parked", "unknown", "away"].includes(answer.state)) return answer.state;
  if (worker?.has_left || (answer?.state === "away" && !worker)) return "left";
  if (answer?.state === "away") return "away";
  return worker?.is_parked ? "parked" : "training";
}

const isOut = (worker) => ["lost", "left", "away"].includes(worker.state);

export function drawPicture(workers, shards) {
  const place = byId("picture");
  const width = Math.max(280, place.clientWidth);
  const height = Math.max(96, ROW * workers.length + 12);
  const hub = { left: 4, width: Math.min(128, 0.3 * width), top: height / 2 - 34, height: 68 };
  const right = width - Math.min(210, 0.5 * width);
  const picture = svg("svg", { width: "100%", height, viewBox: `0 0 ${width} ${height}`, role: "img" });
  picture.setAttribute("aria-label", `Links: ${workers.map(inWords).join("; ")}`);
  workers.forEach((worker, number) => drawLink(picture, worker, hub, right, 6 + ROW * (number + 0.5)));
  picture.append(svg("rect", { x: hub.left, y: hub.top, width: hub.width, height: hub.height, rx: 10, fill: colour("accent") }));
  const middle = hub.left + hub.width / 2;
  const label = (text, y, size, weight) => {
    const made = svg("text", { x: middle, y, "text-anchor": "middle" }, text);
    made.style.fill = colour("accent-ink");
    made.style.fontSize = `${size}px`;
    made.style.fontWeight = weight;
    picture.append(made);
  };
  label("dispatcher", height / 2 - 5, 12.5, 650);
  label(`and ${shards} ${shards === 1 ? "shard" : "shards"}`, height / 2 + 13, 11.5, 500);
  place.replaceChildren(picture);
}

function inWords(worker) {
  return `${worker.name} ${LOOKS[worker.state]?.[1] ?? worker.state}, ${worker.gbit ? `${worker.gbit} Gbit/s` : "link not limited"}, ${bytes(worker.moved, "/s")}`;
}

function drawLink(picture, worker, hub, right, y) {
  const begin = hub.left + hub.width;
  const from = hub.top + hub.height / 2 + Math.max(-24, Math.min(24, (y - (hub.top + hub.height / 2)) / 4));
  const bend = (right - begin) / 2;
  const speed = worker.gbit ?? 10;
  const thickness = Math.max(1.5, Math.min(11, 4.2 + 2.6 * Math.log10(speed)));
  const line = svg("path", {
    d: `M${begin} ${from} C${begin + bend} ${from} ${right - bend} ${y} ${right} ${y}`,
    fill: "none",
    stroke: linkColour(worker),
    "stroke-width": thickness,
    "stroke-linecap": "round",
    ...(worker.state === "training" ? {} : { "stroke-dasharray": isOut(worker) ? "2 8" : "7 7" }),
  });
  picture.append(line, svg("circle", { cx: right, cy: y, r: 9, fill: worker.state === "training" ? linkColour(worker) : colour("card"), stroke: linkColour(worker), "stroke-width": 2.5 }));
  if (isOut(worker)) {
    picture.append(svg("path", { d: `M${right - 5} ${y - 5}l10 10m0 -10l-10 10`, stroke: colour("danger"), "stroke-width": 2.5 }));
  }
  const name = svg("text", { x: right + 16, y: y - 3 }, worker.name);
  name.style.fontWeight = 600;
  const speedText = worker.gbit ? `${worker.gbit} Gbit/s` : "no limit";
  const state = LOOKS[worker.state]?.[1] ?? worker.state;
  const note = worker.state === "training" ? `${percent(worker.share, 0)}${right < 250 ? "" : " of samples"} · ${bytes(worker.moved, "/s")}` : `${state} · ${speedText}`;
  picture.append(name, svg("text", { x: right + 16, y: y + 13, class: "muted" }, note));
}

/** From calm to full: the share of the link that is in use, on a logarithmic scale from a thousandth to all. */
function linkColour(worker) {
  if (isOut(worker)) return colour("danger");
  if (worker.state !== "training") return colour("s5");
  if (worker.load === null || worker.load < 0.001) return colour("s2");
  const heat = Math.min(1, 1 + Math.log10(worker.load) / 3);
  return heat < 0.5 ? mixed("s6", "s2", 2 * heat) : mixed("danger", "s6", 2 * heat - 1);
}

export function drawWorkers(workers, canControl, onAct) {
  const table = byId("workers");
  const shown = JSON.stringify([workers.map(({ seconds: _, ...rest }) => rest), canControl]);
  if (table.dataset.shown === shown) return;
  table.dataset.shown = shown;
  const focused = document.activeElement?.dataset?.act;
  const head = ["worker", "state", "link", "measured", "samples", "hits", ...(canControl ? [""] : [])];
  const rows = workers.map((worker) => {
    const [look, word] = LOOKS[worker.state] ?? ["warn", worker.state];
    const why = worker.state === "training" ? "" : REASONS[worker.state] ?? "";
    return element("tr", { "data-worker": worker.name, "data-state": worker.state },
      element("th", { scope: "row" }, worker.name),
      element("td", {}, element("span", { class: `pill ${look}`, title: why }, word), worker.process && worker.process !== "ready" ? element("span", { class: "wide" }, ` process ${worker.process}`) : ""),
      element("td", { class: "number wide" }, worker.gbit ? `${bothWays(worker.gbit, worker.uplink)} Gbit/s` : "no limit"),
      element("td", { class: "number wide" }, worker.measured ? `${bothWays(worker.measured.toPrecision(2), worker.measuredUp?.toPrecision(2))} Gbit/s` : "–"),
      element("td", { class: "number" }, worker.state === "left" ? "–" : percent(worker.share, 0)),
      element("td", { class: "number wide" }, percent(worker.hits, 0)),
      canControl ? actsOf(worker, onAct) : null);
  });
  table.replaceChildren(
    element("thead", {}, element("tr", {}, ...head.map((name) => (name ? element("th", { scope: "col", class: `${head.indexOf(name) > 1 ? "number" : ""}${["link", "measured", "hits"].includes(name) ? " wide" : ""}` }, name) : element("td"))))),
    element("tbody", {}, ...rows));
  if (focused) table.querySelector(`[data-act="${CSS.escape(focused)}"]`)?.focus();
}

/** The speeds of both directions of a link, down first; once if they are equal. */
const bothWays = (down, up) => (up && up !== down ? `${down} / ${up}` : `${down}`);

function actsOf(worker, onAct) {
  if (worker.state === "left") return element("td", { class: "acts" });
  const button = (verb, text, look) => element("button", {
    type: "button", class: `small ${look}`, "aria-label": `${text} ${worker.name}`, "data-act": `${verb}-${worker.name}`,
    onclick: () => onAct(verb, worker.name),
  }, text);
  return element("td", { class: "acts" }, button("drain", "Drain", ""), " ", button("remove", "Remove", "danger"));
}

export function drawPhases(workers, status) {
  const place = byId("phases");
  const shown = workers.filter((worker) => worker.seconds && worker.state !== "left");
  const longest = Math.max(1e-6, ...shown.map((worker) => total(worker)));
  setText(byId("step-facts"), `A step ends every ${milliseconds(status.step_ms)}; a decision takes ${milliseconds(status.decisions.mean_ms)}.`
    + (status.decisions.deadline_misses ? ` ${count(status.decisions.deadline_misses)} decisions were late.` : ""));
  const key = element("div", { class: "legend" }, ...PHASES.map(([phase, hue]) => {
    const swatch = element("span", { class: "swatch" });
    swatch.style.background = colour(hue);
    return element("span", {}, swatch, phase);
  }));
  const rows = shown.map((worker) => {
    const bar = element("div", { class: "phase-bar" }, ...PHASES.map(([phase, hue]) => {
      const part = element("i");
      part.style.width = `${(100 * worker.seconds[phase]) / longest}%`;
      part.style.background = colour(hue);
      return part;
    }));
    const words = PHASES.map(([phase]) => `${phase} ${milliseconds(1000 * worker.seconds[phase])}`).join(", ");
    bar.setAttribute("role", "img");
    bar.setAttribute("aria-label", `${worker.name}: ${words}`);
    bar.title = words;
    return element("div", { class: "phase-row" }, element("span", {}, worker.name), bar, element("span", {}, milliseconds(1000 * total(worker))));
  });
  place.replaceChildren(key, ...rows);
}

const total = (worker) => PHASES.reduce((sum, [phase]) => sum + worker.seconds[phase], 0);
