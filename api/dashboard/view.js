// What is being looked at: the run and the window of time, or several runs side by side. It is kept in the address, so a link shows the same.

export const WINDOWS = [
  ["5 min", 300],
  ["15 min", 900],
  ["1 h", 3600],
  ["6 h", 21_600],
  ["All", 0],
];
const USUAL_SECONDS = 300;
const MOST_OTHERS = 5;

export class View {
  constructor() {
    const asked = new URLSearchParams(location.search);
    this.run = asked.get("run") ?? "";
    const last = asked.get("last");
    this.seconds = last !== null && Number(last) >= 0 ? Number(last) : USUAL_SECONDS;
    const from = Number(asked.get("from"));
    const to = Number(asked.get("to"));
    this.fixed = from > 0 && to > from ? [from, to] : null;
    this.others = asked.getAll("with").filter((run) => run !== this.run).slice(0, MOST_OTHERS);
    this.by = asked.get("by") === "step" ? "step" : "time";
    const range = [asked.get("begin"), asked.get("end")].map(Number);
    this.range = asked.has("end") && range[1] > range[0] ? range : null;
  }

  get isComparison() {
    return this.others.length > 0;
  }

  /** Shows the runs side by side, over the steps or the time since their start; no others: the run alone. */
  compare(others, by) {
    Object.assign(this, { others: others.slice(0, MOST_OTHERS), by, range: null });
    this.write();
  }

  /** The part of a comparison that is shown, in steps or seconds; null: all of it. */
  zoom(range) {
    this.range = range;
    this.write();
  }

  get isLive() {
    return this.fixed === null;
  }

  /** The window in seconds since 1970; it begins at null if it is the whole run. */
  span(now) {
    if (this.fixed) return this.fixed;
    return [this.seconds ? now - this.seconds : null, now];
  }

  follow(seconds) {
    this.seconds = seconds;
    this.fixed = null;
    this.write();
  }

  fix(from, to) {
    this.fixed = [from, to];
    this.write();
  }

  choose(run) {
    this.run = run;
    this.write();
  }

  address() {
    const asked = new URLSearchParams();
    if (this.run) asked.set("run", this.run);
    if (this.isComparison) {
      this.others.forEach((run) => asked.append("with", run));
      asked.set("by", this.by);
      if (this.range) {
        asked.set("begin", this.range[0].toFixed(1));
        asked.set("end", this.range[1].toFixed(1));
      }
    } else if (this.fixed) {
      asked.set("from", this.fixed[0].toFixed(1));
      asked.set("to", this.fixed[1].toFixed(1));
    } else {
      asked.set("last", String(this.seconds));
    }
    return `${location.pathname}?${asked}`;
  }

  write() {
    history.replaceState(null, "", this.address());
  }
}
