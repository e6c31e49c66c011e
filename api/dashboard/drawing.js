// Everything that is drawn from what is known: figures, charts, members, the journal, and what is wrong.

import { Chart, MARKED } from "./charts.js";
import { showLetterCount, showPresence } from "./events.js";
import { alphaText, byId, bytes, colour, count, decimal, element, isNumber, localTime, milliseconds, percent, seconds, setText, tick } from "./format.js";
import { column, TRAFFIC } from "./history.js";
import { drawPhases, drawPicture, drawWorkers, merged } from "./members.js";
import { chosen, drawLog, drawTimeline } from "./records.js";
import { showFields } from "./served.js";
import { canControl, page, view } from "./state.js";
import { actOnWorker, showAlpha } from "./steering.js";

const MEMBERS_MS = 60;
const STATES = { training: "good", waiting: "warn", paused: "warn", draining: "warn", replaying: "warn", starting: "warn", silent: "bad" };
const MEMORY_HUES = ["s0", "s1", "s2", "s3", "s4", "s6", "s7", "s5"];
const TRAFFIC_HUES = ["s0", "s6", "s1", "s3", "s5"];

let charts = {};

function showMarks() {
  const words = { fault: "fault", command: "command", alpha: "change of α", generation: "change of members" };
  byId("marks").replaceChildren("Marks on the charts:", ...Object.entries(MARKED).map(([kind, hue]) => {
    const swatch = element("span", { class: "swatch" });
    swatch.style.background = colour(hue);
    return element("span", {}, swatch, words[kind]);
  }), element("span", { class: "hover" }, "Drag across a chart to look closer."));
}

/** Makes the charts; onSelect: what to do with a window that somebody has marked. */
export function buildCharts(onSelect) {
  showMarks();
  const shared = { onSelect };
  const above0 = (_, low, high) => [0, isNumber(high) && high > 0 ? 1.1 * high : 1];
  const around = (_, low, high) => {
    if (!isNumber(low)) return [0, 1];
    const room = Math.max(0.004, 0.15 * (high - low));
    return [low - room, high + room];
  };
  const share = () => [0, 1.04];
  const widths = Object.fromEntries([...document.querySelectorAll('[id^="c-"]')].map((place) => [place.id, place.clientWidth]));
  const make = (id, title, options, series) => new Chart({ ...shared, id, title, width: widths[id], ...options }, series);
  const whole = (value) => `${Math.round(100 * value)} %`;
  charts = {
    rate: make("c-rate", "Throughput", { axis: tick, range: above0 }, [
      { name: "samples/s", colour: "s2", value: count, fill: 0.16 }]),
    quality: make("c-quality", "Quality of the latest samples", { axis: (value) => value.toFixed(3), axis2: (value) => value.toFixed(3), range: around, range2: around }, [
      { name: "AUC", colour: "s0", value: (value) => decimal(value, 4) },
      { name: "logloss (right)", colour: "s1", value: (value) => decimal(value, 4), scale: "y2" }]),
    alpha: make("c-alpha", "α and contention", { axis: (value) => value.toFixed(1), range: share, height: 132 }, [
      { name: "α", colour: "s1", value: alphaText, stepped: true },
      { name: "waiting for a processor", colour: "s5", value: whole },
      { name: "pressure", colour: "s3", value: whole }]),
    traffic: make("c-traffic", "Traffic by kind", { axis: (value) => bytes(value, "/s"), range: above0, stacked: true }, [...TRAFFIC].map((kind, at) => (
      { name: kind, colour: TRAFFIC_HUES[at], value: (value) => bytes(value, "/s"), fill: 0.45 }))),
    hits: make("c-hits", "Cache hits", { axis: whole, range: share }, [
      { name: "rows found in the caches", colour: "s2", value: (value) => percent(value), fill: 0.12 }]),
    lag: make("c-lag", "Lag", { axis: tick, range: above0 }, [
      { name: "events waiting", colour: "s0", value: count, fill: 0.14 },
      { name: "dead letters", colour: "danger", value: count }]),
    fresh: make("c-fresh", "Freshness of the served model", { axis: seconds, range: above0 }, [
      { name: "median", colour: "s0", value: seconds },
      { name: "99th percentile", colour: "s4", value: seconds }]),
    time: make("c-time", "Step and decision time", { axis: milliseconds, range: above0 }, [
      { name: "a step", colour: "s3", value: milliseconds },
      { name: "a decision", colour: "s6", value: milliseconds }]),
    memory: make("c-memory", "Memory by process", { axis: bytes, range: above0, stacked: true }, []),
  };
}

export function drawAll() {
  if (!page.past) return;
  const points = page.past.points();
  const now = page.past.now();
  let [first, last] = view.span(now);
  if (first === null) {
    first = points[0]?.at ?? last - 300;
    if (points.length && !page.details?.is_live) last = points.at(-1).at;
    if (last - first < 60) first = last - 60;
  } else if (view.isLive && points.length && points[0].at > first) {
    first = Math.min(points[0].at, last - 60); // a young run fills the charts, too
  }
  const span = [first, last];
  const times = points.map((point) => point.at);
  const marks = page.records.items;
  const draw = (chart, ...reads) => chart.update(times, reads.map((read) => column(points, read)), span, marks);
  draw(charts.rate, (point) => point.samples_per_second);
  draw(charts.quality, (point) => point.auc, (point) => point.logloss);
  draw(charts.alpha, (point) => point.alpha, (point) => point.contention?.wait_share, (point) => point.contention?.pressure);
  draw(charts.hits, (point) => point.hits);
  draw(charts.lag, (point) => point.lag, (point) => point.dead_letters);
  draw(charts.fresh, (point) => point.freshness_p50, (point) => point.freshness_p99);
  draw(charts.time, (point) => point.step_ms, (point) => point.decide_ms);
  drawTraffic(points, draw);
  drawMemory(points, draw);
  drawLog(page.records, span, byId("kind").value);
  drawTimeline(page.records, span);
  page.lastPoint = page.past.lately();
  showMembers();
}

function drawTraffic(points, draw) {
  const names = [...new Set(points.flatMap((point) => Object.keys(point.workers ?? {})))].sort();
  const select = byId("link");
  if (select.dataset.names !== names.join(" ")) {
    const kept = select.value;
    select.dataset.names = names.join(" ");
    select.replaceChildren(element("option", { value: "" }, "all links"), ...names.map((name) => element("option", { value: name }, name)));
    select.value = names.includes(kept) ? kept : "";
  }
  const chosenLink = select.value;
  draw(charts.traffic, ...TRAFFIC.map((kind) => (point) => {
    if (!point.traffic) return null;
    if (chosenLink) return point.traffic[chosenLink]?.[kind];
    const found = Object.values(point.traffic);
    return found.length ? found.reduce((sum, each) => sum + each[kind], 0) : null;
  }));
}

function drawMemory(points, draw) {
  const newest = [...points].reverse().find((point) => Object.keys(point.memory ?? {}).length)?.memory ?? {};
  const group = (name) => name.replace(/-\d+$/, "");
  const names = [...new Set(Object.keys(newest).map(group))].sort();
  if (charts.memory.names !== names.join(" ")) {
    charts.memory.names = names.join(" ");
    const counted = (name) => Object.keys(newest).filter((each) => group(each) === name).length;
    const named = (name) => (counted(name) > 1 ? `${counted(name)} × ${name}` : name);
    charts.memory.values = [];
    charts.memory.times = [];
    charts.memory.build(names.map((name, at) => ({ name: named(name), colour: MEMORY_HUES[at % MEMORY_HUES.length], value: bytes, fill: 0.4 })));
  }
  draw(charts.memory, ...names.map((name) => (point) => {
    const found = Object.entries(point.memory ?? {}).filter(([each]) => group(each) === name);
    return found.length ? found.reduce((sum, [, value]) => sum + value, 0) : null;
  }));
}

/** Shows the members soon: three sources tell of them, and one picture is enough. */
export function showMembers() {
  page.members ??= setTimeout(() => {
    page.members = null;
    if (page.status && !document.hidden) drawMembers(page.status);
  }, MEMBERS_MS);
}

function drawMembers(status) {
  const fault = page.records.newest("fault");
  const since = page.records.newest("generation")?.cursor ?? 0;
  const workers = merged(status, page.workers, page.lastPoint, fault && fault.cursor > since ? fault.body.text : null);
  drawPicture(workers, page.shards ?? 1);
  drawWorkers(workers, canControl(), actOnWorker);
  drawPhases(workers, status);
  const set = page.records.newest("set");
  const generation = page.records.newest("generation");
  const because = set ? [element("strong", {}, chosen(set.body)), ` since step ${count(set.body.step)}: ${set.body.reason}.`]
    : generation ? [element("strong", {}, `All ${generation.body.members.length} workers train`), `, since: ${generation.body.reason}.`] : [];
  const text = because.map((part) => part.textContent ?? part).join("");
  if (byId("why").textContent !== text) byId("why").replaceChildren(...because);
  const alpha = status.alpha_reason || page.records.newest("alpha")?.body.reason;
  const modes = { fixed: "as the policy says", manual: "set by a person", auto: "follows contention" };
  setText(byId("alpha-why"), `${alphaText(status.alpha)}, ${modes[status.alpha_mode]}${alpha ? `: ${alpha}` : ""}.`);
}

export function showStatus() {
  const { status, details } = page;
  const state = byId("state");
  state.className = `pill ${STATES[details.state] ?? ""}`;
  setText(state, details.state);
  document.body.classList.toggle("over", ["stopped", "ended"].includes(details.state));
  showTroubles();
  if (!status) {
    setText(byId("facts"), "");
    byId("figures").replaceChildren();
    setText(byId("why"), `Nobody: the run is ${details.state}.`);
    return;
  }
  setText(byId("facts"), `${status.policy} · generation ${status.generation} · step ${count(status.step)} · ${seconds(status.seconds)}`);
  const lookups = status.workers.reduce((sum, worker) => sum + worker.traffic.lookups, 0);
  const hits = status.workers.reduce((sum, worker) => sum + worker.traffic.hits, 0);
  const training = status.workers.filter((worker) => !worker.is_parked && !worker.has_left).length;
  const { freshness } = status.served;
  const rate = status.idle_seconds > 2 || !details.is_live ? 0 : status.samples_per_second;
  showFigures([
    ["Throughput", count(rate), "/s", `${count(status.samples)} samples so far`],
    ["AUC", decimal(status.recent_quality.auc, 4), "", isNumber(status.best_auc) ? `best possible ${decimal(status.best_auc, 4)}` : `whole run ${decimal(status.quality.auc, 4)}`],
    ["Logloss", decimal(status.recent_quality.logloss, 4), "", `calibration ${decimal(status.recent_quality.calibration, 3)}`],
    ["α", alphaText(status.alpha), "", { fixed: "as the policy says", manual: "set by a person", auto: "follows contention" }[status.alpha_mode]],
    ["Workers", String(training), `of ${status.workers.filter((worker) => !worker.has_left).length}`, "the others are parked"],
    ["Lag", count(status.events.lag), "", `${count(status.events.dead_letters)} dead letters`],
    ["Freshness", seconds(freshness.p50_seconds), "", status.served.step === null ? "nothing is served" : `step ${count(status.served.step)} is served`],
    ["Cache hits", percent(lookups ? hits / lookups : null, 1), "", `${count(status.keys.known)} keys, ${bytes(status.keys.shard_bytes)}`],
  ]);
  showFields(Object.keys(status.fields.present), status.fields.absent);
  showPresence(status.fields);
  showLetterCount(status.events.dead_letters);
  setText(byId("pause"), status.is_paused ? "Resume the run" : "Pause the run");
  setText(byId("footer"), `Signed in as ${page.session.name} (${page.session.scopes.join(", ")}). Run folder ${details.folder}.`);
  if (!page.isTouched) showAlpha(status);
  showMembers();
}

function showFigures(figures) {
  const place = byId("figures");
  if (place.children.length !== figures.length) {
    place.replaceChildren(...figures.map(([name]) => element("div", { class: "figure" }, element("div", { class: "name" }, name),
      element("div", { class: "value" }, element("span"), " ", element("small")), element("div", { class: "note" }))));
  }
  figures.forEach(([, value, unit, note], at) => {
    const node = place.children[at];
    setText(node.querySelector("span"), value);
    setText(node.querySelector("small"), unit);
    setText(node.querySelector(".note"), note);
  });
}

export function showTroubles() {
  const said = [];
  if (page.isLost) said.push("The connection to the API is lost; trying again…");
  else if (page.details && !page.details.is_live) {
    said.push(page.details.state === "silent" ? "The run does not answer. What is shown is its last known state." : `The run is ${page.details.state}. What is shown is its history.`);
  }
  said.push(...(page.status && page.details?.is_live ? page.status.troubles : []));
  banner(said.join("\n"));
}

export function banner(text) {
  const node = byId("banner");
  node.hidden = !text;
  setText(node, text);
}

export function showWindows() {
  for (const button of byId("windows").children) {
    button.setAttribute("aria-pressed", String(view.isLive && Number(button.dataset.seconds) === view.seconds));
  }
  const [first, last] = view.span(page.past.now());
  byId("from").value = localTime(first ?? page.past.points()[0]?.at ?? last - 300);
  byId("to").value = localTime(last);
}

/** Draws everything again in the colours of another theme. */
export function redraw() {
  Object.values(charts).forEach((chart) => chart.build());
  showMarks();
  byId("workers").dataset.shown = "";
  drawAll();
}
