// What is being looked at: the run and the window of time. It is kept in the address, so a link shows the same.

export const WINDOWS = [
  ["5 min", 300],
  ["15 min", 900],
  ["1 h", 3600],
  ["6 h", 21_600],
  ["All", 0],
];
const USUAL_SECONDS = 300;

export class View {
  constructor() {
    const asked = new URLSearchParams(location.search);
    this.run = asked.get("run") ?? "";
    const last = asked.get("last");
    this.seconds = last !== null && Number(last) >= 0 ? Number(last) : USUAL_SECONDS;
    const from = Number(asked.get("from"));
    const to = Number(asked.get("to"));
    this.fixed = from > 0 && to > from ? [from, to] : null;
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
    if (this.fixed) {
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
