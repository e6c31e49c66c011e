// Several runs side by side: the same charts, each with a line a run, over the steps or the time since their start.

import { Chart } from "./charts.js";
import { alphaText, byId, bytes, colour, count, decimal, element, isNumber, milliseconds, percent, seconds } from "./format.js";
import { Past } from "./history.js";
import { page, view } from "./state.js";

const GRID_POINTS = 300;
const HUES = ["s0", "s1", "s2", "s3", "s4", "s6"];
const OVER = ["stopped", "ended", "silent"];
const sum = (values) => values.reduce((total, value) => total + value, 0);

const CHARTS = [
  ["k-auc", "AUC of the latest samples", (value) => decimal(value, 4), (point) => point.auc],
  ["k-logloss", "Logloss of the latest samples", (value) => decimal(value, 4), (point) => point.logloss],
  ["k-rate", "Throughput, samples a second", count, (point) => point.samples_per_second],
  ["k-time", "Step time", milliseconds, (point) => point.step_ms],
  ["k-decide", "Decision time", milliseconds, (point) => point.decide_ms],
  ["k-alpha", "α", alphaText, (point) => point.alpha],
  ["k-hits", "Cache hits", (value) => percent(value), (point) => point.hits],
  ["k-traffic", "Traffic over all links", (value) => bytes(value, "/s"), trafficOf],
  ["k-lag", "Lag, events waiting", count, (point) => point.lag],
  ["k-fresh", "Freshness of the served model, median", seconds, (point) => point.freshness_p50],
  ["k-memory", "Memory of all processes", bytes, (point) => (Object.keys(point.memory ?? {}).length ? sum(Object.values(point.memory)) : null)],
];
const ABOVE_0 = ["k-rate", "k-time", "k-decide", "k-alpha", "k-hits", "k-traffic", "k-lag", "k-fresh", "k-memory"];

let charts = [];

function trafficOf(point) {
  const links = Object.values(point.traffic ?? {});
  return links.length ? sum(links.map(({ samples, ...kinds }) => sum(Object.values(kinds)))) : null;
}

/** Fills the menu in which runs are chosen; runs: names of all. */
export function fillChoices(names) {
  const others = names.filter((name) => name !== view.run);
  byId("compare").hidden = !others.length;
  const text = `${view.run} ${others.join(" ")} ${view.others.join(" ")} ${view.by}`;
  const list = byId("compare-runs");
  if (list.dataset.text === text || byId("compare").open) return;
  list.dataset.text = text;
  list.replaceChildren(...others.map((name) => element("label", {},
    element("input", { type: "checkbox", value: name, checked: view.others.includes(name) }), ` ${name}`)));
  byId("compare-form").elements.by.value = view.by;
}

export const chosenRuns = () => [...byId("compare-runs").querySelectorAll("input:checked")].map((box) => box.value);

/** Loads the runs and draws them; returns whether any of them goes on. */
export async function showComparison() {
  const names = [view.run, ...view.others].filter((name) => page.runs.some((run) => run.name === name));
  const pasts = names.map((name) => new Past(name));
  await Promise.all(pasts.map((past) => past.load(null, past.now(), true)));
  if (!view.isComparison) return false;
  const runs = pasts.map((past, at) => {
    const points = past.points();
    const state = page.runs.find((run) => run.name === past.run).state;
    const start = points[0]?.at ?? 0;
    const across = points.map((point) => (view.by === "step" ? point.step : point.at - start));
    return { name: past.run, state, points, across, hue: HUES[at % HUES.length] };
  });
  drawRuns(runs);
  drawTable(runs);
  return runs.some((run) => !OVER.includes(run.state));
}

function drawRuns(runs) {
  const longest = Math.max(1, ...runs.map((run) => run.across.at(-1) ?? 0));
  const span = view.range ?? [0, longest];
  const grid = Array.from({ length: GRID_POINTS + 1 }, (_, at) => span[0] + (at / GRID_POINTS) * (span[1] - span[0]));
  const across = view.by === "step" ? count : (value) => seconds(Math.round(value));
  charts.forEach((chart) => chart.close());
  charts = CHARTS.map(([id, title, text, read]) => {
    const range = ABOVE_0.includes(id) ? (_, low, high) => [0, high > 0 ? 1.1 * high : 1] : undefined;
    const series = runs.map((run) => ({ name: run.name, colour: run.hue, value: text }));
    const chart = new Chart({ id, title, axis: text, range, across, onSelect: (from, to) => zoom(runs, [from, to]) }, series);
    chart.update(grid, runs.map((run) => resampled(run, read, grid)), span, []);
    return chart;
  });
  byId("compare-all").hidden = !view.range;
  byId("compare-by").textContent = view.by === "step" ? "Over the steps." : "Over the time since the start of each run.";
}

function zoom(runs, range) {
  view.zoom(range);
  drawRuns(runs);
}

/** The values of a run at the places of a grid: between two points, by a straight line; null outside of them. */
function resampled(run, read, grid) {
  const known = [];
  run.points.forEach((point, at) => {
    const value = read(point);
    if (isNumber(value) && isNumber(run.across[at])) known.push([run.across[at], value]);
  });
  let next = 0;
  return grid.map((place) => {
    while (next < known.length && known[next][0] < place) next += 1;
    if (next === known.length || (next === 0 && known[0][0] > place)) return null;
    if (next === 0) return known[0][1];
    const [left, low] = known[next - 1];
    const [right, high] = known[next];
    return right > left ? low + ((place - left) / (right - left)) * (high - low) : high;
  });
}

function drawTable(runs) {
  const newest = (run, read) => read(run.points.findLast((point) => isNumber(read(point))) ?? {});
  const head = ["run", "state", "began", "lasted", "steps", "samples/s, median", "AUC", "logloss"];
  const rows = runs.map((run) => {
    const first = run.points[0]?.at;
    const last = run.points.at(-1)?.at;
    const rates = run.points.map((point) => point.samples_per_second).filter(isNumber).sort((one, other) => one - other);
    const swatch = element("span", { class: "swatch" });
    swatch.style.background = colour(run.hue);
    const cells = [
      run.state,
      first ? new Date(1000 * first).toLocaleString("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" }) : "–",
      seconds(last - first), count(newest(run, (point) => point.step)), count(rates[Math.floor(rates.length / 2)]),
      decimal(newest(run, (point) => point.auc), 4), decimal(newest(run, (point) => point.logloss), 4),
    ];
    return element("tr", { "data-run": run.name }, element("th", { scope: "row" }, swatch, run.name),
      ...cells.map((text, at) => element("td", at > 1 ? { class: "number" } : {}, text)));
  });
  byId("compared").replaceChildren(
    element("thead", {}, element("tr", {}, ...head.map((text, at) => element("th", { scope: "col", class: at > 2 ? "number" : "" }, text)))),
    element("tbody", {}, ...rows));
}

/** Makes the places of the charts, once. */
export function buildComparison() {
  byId("compare-charts").replaceChildren(...CHARTS.map(([id, title], at) => element("section", { class: `card ${at < 2 ? "w6" : "w4"}`, "aria-labelledby": `h-${id}` },
    element("h2", { id: `h-${id}` }, title), element("div", { id }))));
}

export function endComparison() {
  charts.forEach((chart) => chart.close());
  charts = [];
}
