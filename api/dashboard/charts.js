// Charts over time, all with the same window, the same cursor and the same marks; drawn by uPlot.

import { byId, clock, colour, day, element, isNumber, minute, mixed, setText } from "./format.js";

const SYNC = "window";
const ACROSS = "across";
const HEIGHT = 170;
const SIDE = 66; // pixels for the numbers at a side
const STEPS = [1, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 432_000, 864_000]; // seconds between two labels
const LABEL = 54; // pixels of a time with seconds
const MOST_MARKS = 30; // of one kind on one chart
export const MARKED = { fault: "danger", command: "s3", alpha: "s1", generation: "s0" };

export class Chart {
  /**
   * series: [{name, colour, value: (text of a number), scale?, fill?, stepped?}]
   * options: {id, title, axis: (number) => text, axis2?, range?, range2?, stacked?, height?, width?, onSelect, across?}
   * width: that of its place, if it is known: to ask for it makes the browser lay out the page
   * across: (number) => text, for charts over something else than the time of day
   */
  constructor(options, series) {
    this.options = options;
    this.series = series;
    this.place = byId(options.id);
    this.legend = element("div", { class: "legend" });
    this.plot = element("div", { class: "plot", role: "img" });
    this.place.replaceChildren(this.legend, this.plot);
    this.values = [];
    this.times = [];
    this.marks = [];
    this.span = [0, 1];
    this.watcher = new ResizeObserver(() => this.fit());
    this.watcher.observe(this.plot);
    this.build();
  }

  /** Makes the chart again, because the theme or the series have changed. */
  build(series = this.series) {
    this.series = series;
    this.chart?.destroy();
    this.chart = new uPlot(this.configuration(), this.drawn(), this.plot);
    this.entries = series.map((each) => {
      const swatch = element("span", { class: "swatch" });
      swatch.style.background = colour(each.colour);
      const value = element("b");
      return { value, node: element("span", {}, swatch, `${each.name} `, value) };
    });
    this.legend.replaceChildren(...this.entries.map((entry) => entry.node));
    this.explain(null);
  }

  update(times, values, span, marks) {
    this.times = times;
    this.values = values;
    this.span = span;
    this.marks = marks;
    this.chart.setData(this.drawn(), false);
    this.chart.setScale("x", { min: span[0], max: span[1] });
    this.explain(this.chart.cursor.idx);
  }

  configuration() {
    const { axis, axis2, range, range2, onSelect, across, width } = this.options;
    const ink = colour("muted");
    const grid = { stroke: colour("grid"), width: 1 };
    const font = "11.5px system-ui, sans-serif";
    const side = (scale, text, place) => ({
      scale,
      side: place,
      stroke: ink,
      font,
      size: SIDE,
      gap: 4,
      space: 34,
      grid: place === 3 ? grid : { show: false },
      ticks: { show: false },
      values: (_, found) => found.map((value) => (value === null ? "" : text(value))),
    });
    return {
      width: Math.max(200, this.chart || !width ? this.plot.clientWidth : width),
      height: this.options.height ?? HEIGHT,
      legend: { show: false },
      padding: [8, axis2 ? 0 : 10, 0, 0],
      cursor: { sync: { key: across ? ACROSS : SYNC }, y: false, drag: { x: true, y: false, setScale: false }, points: { size: 6 } },
      scales: { x: { time: !across, auto: false, range: () => this.span }, y: { range }, ...(axis2 ? { y2: { range: range2 } } : {}) },
      axes: [
        { stroke: ink, font, grid, ticks: { show: false }, space: 58, ...(across ? {} : { incrs: STEPS }), size: 30, gap: 9, values: (chart, found) => found.map((at) => (this.hasRoom(chart, at) ? (across ? across(at) : this.hour(at, found[1] - found[0] < 60)) : "")) },
        side("y", axis, 3),
        ...(axis2 ? [side("y2", axis2, 1)] : []),
      ],
      series: [
        {},
        ...this.series.map((each) => ({
          label: each.name,
          scale: each.scale ?? "y",
          stroke: colour(each.colour),
          width: 1.6,
          fill: each.fill ? mixed(each.colour, "card", each.fill) : undefined,
          points: { show: false },
          paths: each.stepped ? uPlot.paths.stepped({ align: 1 }) : uPlot.paths.linear(),
        })),
      ],
      hooks: {
        draw: [(chart) => this.drawMarks(chart)],
        setCursor: [(chart) => this.explain(chart.cursor.idx)],
        setSelect: [
          (chart) => {
            const from = chart.posToVal(chart.select.left, "x");
            const to = chart.posToVal(chart.select.left + chart.select.width, "x");
            chart.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
            if (to - from > 1) onSelect(from, to);
          },
        ],
      },
    };
  }

  /** Whether a label there is whole: the edge of the chart would cut one that is too far on the right. */
  hasRoom(chart, at) {
    const room = this.options.axis2 ? SIDE : 10;
    return room + ((this.span[1] - at) / (this.span[1] - this.span[0])) * (chart.width - SIDE - room) > LABEL / 2;
  }

  hour(at, hasSeconds) {
    if (this.span[1] - this.span[0] > 172_800) return day(at);
    return hasSeconds ? clock(at) : minute(at);
  }

  /** What is drawn: with stacked series, sums from the last series up. */
  drawn() {
    if (!this.times.length) return [[], ...this.series.map(() => [])];
    if (!this.options.stacked) return [this.times, ...this.values];
    const sums = this.values.map((each) => [...each]);
    for (let row = sums.length - 2; row >= 0; row -= 1) {
      for (let at = 0; at < sums[row].length; at += 1) {
        if (sums[row + 1][at] !== null && sums[row][at] !== null) sums[row][at] += sums[row + 1][at];
      }
    }
    return [this.times, ...sums];
  }

  drawMarks(chart) {
    const { ctx, bbox } = chart;
    ctx.save();
    ctx.lineWidth = devicePixelRatio;
    const inside = this.marks.filter((mark) => MARKED[mark.kind] && mark.at >= this.span[0] && mark.at <= this.span[1]);
    const counts = Object.groupBy(inside, (mark) => mark.kind);
    for (const mark of inside) {
      if (counts[mark.kind].length > MOST_MARKS) continue; // they would hide the lines; the time line has them all
      const left = Math.round(chart.valToPos(mark.at, "x", true));
      ctx.strokeStyle = ctx.fillStyle = colour(MARKED[mark.kind]);
      ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
      ctx.globalAlpha = mark.kind === "fault" ? 0.9 : 0.55;
      ctx.beginPath();
      ctx.moveTo(left, bbox.top);
      ctx.lineTo(left, bbox.top + bbox.height);
      ctx.stroke();
      ctx.globalAlpha = 1;
      ctx.beginPath();
      ctx.arc(left, bbox.top, 3 * devicePixelRatio, 0, 2 * Math.PI);
      ctx.fill();
    }
    ctx.restore();
  }

  /** Writes the values under the cursor, or else the newest, and the same in words for those who do not see. */
  explain(index) {
    const at = index ?? this.times.length - 1;
    const { across } = this.options;
    const words = [];
    this.series.forEach((each, number) => {
      const value = across && !isNumber(index) ? this.values[number]?.findLast(isNumber) : this.values[number]?.[at];
      const text = isNumber(value) ? each.value(value) : "–";
      setText(this.entries[number].value, text);
      this.entries[number].node.hidden = this.series.length > 1 && this.values.length > 0 && this.values[number].every((found) => found === null);
      words.push(`${each.name} ${text}`);
    });
    const when = index === null || index === undefined ? (across ? "at the end" : "now") : `at ${across ? across(this.times[at]) : clock(this.times[at])}`;
    this.plot.setAttribute("aria-label", `${this.options.title}, ${when}: ${words.join(", ")}`);
  }

  close() {
    this.watcher.disconnect();
    this.chart.destroy();
  }

  fit() {
    const width = this.plot.clientWidth;
    if (width > 0 && Math.abs(width - this.chart.width) > 1) this.chart.setSize({ width, height: this.chart.height });
  }
}
