// The past of a run: readings of the API's own memory and, from before it, steps out of the database.

import { get, ofRun } from "./requests.js";
import { isNumber } from "./format.js";

const POINTS = 250;
const MARKS = 150;
const LATELY_SECONDS = 10;
export const TRAFFIC = ["pulled rows", "pushed rows", "dense up", "dense down", "orders"];

export class Past {
  constructor(run) {
    this.run = run;
    this.readings = [];
    this.before = [];
    this.offset = 0;
  }

  /** The time by the clock of the API, which may differ from that of this machine. */
  now() {
    return Date.now() / 1000 + this.offset;
  }

  /** Marks of one kind that a chart can show beside each other. */
  static get marks() {
    return MARKS;
  }

  get newest() {
    return this.readings.at(-1)?.at ?? 0;
  }

  /** Seconds between two points that are worth drawing in a window. */
  static pace(seconds) {
    return Math.min(60, Math.max(1, seconds / POINTS));
  }

  /** Reads everything in a window; null as its beginning is the whole run. */
  async load(first, last, isLive) {
    const until = isLive ? "" : `&last=${last}`;
    const [found, steps] = await Promise.all([
      get(ofRun(this.run, `/readings?first=${first ?? 0}${until}&points=${POINTS}`)),
      first === null ? this.steps("") : null,
    ]);
    this.offset = found.now - Date.now() / 1000;
    this.readings = found.items;
    const oldest = this.readings[0]?.at ?? last;
    if (steps) this.before = readingsOfSteps(steps.filter((point) => point.last_at < oldest));
    else this.before = oldest - first > Math.max(15, (last - first) / 20) ? await this.loadSteps(first, oldest) : [];
  }

  /** Reads what is new since; span: seconds that are shown. */
  async extend(span) {
    const found = await get(ofRun(this.run, `/readings?first=${this.newest}&points=1`));
    this.offset = found.now - Date.now() / 1000;
    this.readings.push(...found.items);
    if (span) {
      const first = this.now() - span - 5;
      while (this.readings.length && this.readings[0].at < first) this.readings.shift();
      while (this.before.length && this.before[0].at < first) this.before.shift();
    } else if (this.readings.length > 4 * POINTS) {
      this.readings = this.readings.filter((_, at) => at % 2 === 1);
    }
  }

  async steps(range, points = POINTS) {
    return (await get(ofRun(this.run, `/steps?points=${points}${range}`))).items;
  }

  /** Steps of a period as readings: what the database does not know is absent. */
  async loadSteps(first, last) {
    const all = await this.steps("", 1000);
    const inside = all.filter((point) => point.last_at >= first && point.first_at <= last);
    if (!inside.length) return [];
    const fine = inside.length < all.length ? await this.steps(`&first=${inside[0].first_step}&last=${inside.at(-1).last_step}`) : inside;
    return readingsOfSteps(fine.filter((point) => point.last_at >= first && point.last_at <= last));
  }

  /** Rates over the latest ten seconds: who trains may change with every step. */
  lately() {
    const newest = this.readings.at(-1);
    const before = this.readings.findLast((reading) => newest.at - reading.at >= LATELY_SECONDS) ?? this.readings[0];
    return newest && before !== newest ? rates(before, newest) : null;
  }

  /** All points in order, with what is derived from two in a row. */
  points() {
    const all = [...this.before, ...this.readings];
    return all.map((reading, at) => ({ ...reading, ...(reading.workers ? rates(all[at - 1], reading) : {}) }));
  }
}

const readingsOfSteps = (points) => points.map((point, at) => readingOfSteps(point, points[at - 1]));

function readingOfSteps(point, before) {
  const passed = point.last_at - (before?.last_at ?? point.first_at); // steps overlap: their own times add up to more
  return {
    at: point.last_at,
    step: point.last_step,
    samples_per_second: passed > 0 ? point.samples / passed : null,
    step_ms: (1000 * point.seconds) / Math.max(1, point.steps),
    decide_ms: (1000 * point.decide_seconds) / Math.max(1, point.steps),
    logloss: point.loss,
    alpha: point.alpha,
  };
}

/** Traffic a second by worker and kind, and cache hits, between two readings. */
function rates(earlier, later) {
  const traffic = {};
  let hits = 0;
  let lookups = 0;
  const gap = earlier?.workers ? later.at - earlier.at : 0;
  for (const [name, worker] of Object.entries(later.workers)) {
    const before = earlier?.workers?.[name];
    if (!before || gap <= 0 || worker.samples < before.samples) continue;
    traffic[name] = { samples: (worker.samples - before.samples) / gap };
    for (const kind of TRAFFIC) traffic[name][kind] = Math.max(0, (worker.bytes[kind] - before.bytes[kind]) / gap);
    hits += worker.hits - before.hits;
    lookups += worker.lookups - before.lookups;
  }
  return { traffic, hits: lookups > 0 ? hits / lookups : null };
}

/** One column of a chart: a value a point, null where there is none. */
export function column(points, read) {
  return points.map((point) => {
    const value = read(point);
    return isNumber(value) ? value : null;
  });
}
