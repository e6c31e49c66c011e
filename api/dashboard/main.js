// The page: signs in, follows one run, and draws it again whenever something is new.

import { act } from "./acts.js";
import { ask, EventFeed, get, ofRun } from "./requests.js";
import { Chart, MARKED } from "./charts.js";
import { byId, bytes, colour, count, decimal, element, isNumber, localTime, milliseconds, percent, seconds, setText } from "./format.js";
import { column, Past, TRAFFIC } from "./history.js";
import { drawPhases, drawPicture, drawWorkers, merged } from "./members.js";
import { chosen, drawLog, drawTimeline, fillKinds, Records } from "./records.js";
import { predict, showFields, showSnapshots } from "./served.js";
import { View, WINDOWS } from "./view.js";

const WORKERS_MS = 1000;
const MEMBERS_MS = 250;
const SNAPSHOTS_MS = 4000;
const RUNS_MS = 10_000;
const RUNS = "/v1/runs?limit=1000";
const STATES = { training: "good", waiting: "warn", paused: "warn", draining: "warn", replaying: "warn", starting: "warn", silent: "bad" };
const MEMORY_HUES = ["s0", "s1", "s2", "s3", "s4", "s6", "s7", "s5"];
const TRAFFIC_HUES = ["s0", "s6", "s1", "s3", "s5"];

const view = new View();
const page = { session: null, status: null, details: null, workers: [], past: null, records: new Records(), feed: null, isLost: false, timers: [], turn: 0 };
let charts = {};

// ── signing in ─────────────────────────────────────────────────────────────────────────────────────────────────────
async function begin() {
  setTheme(localStorage.getItem("freshet-theme") ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
  const link = new URLSearchParams(location.hash.slice(1)).get("signin");
  let trouble = "";
  if (link) {
    history.replaceState(null, "", location.pathname + location.search);
    try {
      await ask("POST", "/v1/session", { secret: link });
    } catch (error) {
      trouble = error.message;
    }
  }
  let runs;
  try {
    [page.session, runs] = await Promise.all([get("/v1/session"), get(RUNS)]);
  } catch (error) {
    showSignIn(trouble || (error.status === 401 ? "" : error.message));
    return;
  }
  await start(runs);
}

function showSignIn(trouble = "") {
  stopFollowing();
  byId("app").hidden = true;
  byId("signin").hidden = false;
  byId("signin-error").textContent = trouble;
  byId("secret").focus();
}

async function signIn(event) {
  event.preventDefault();
  try {
    page.session = await ask("POST", "/v1/session", { secret: byId("secret").value.trim() });
    if (!page.session.scopes.includes("read")) throw new Error("the token lacks the scope read; expected one with it");
    byId("secret").value = "";
    await start();
  } catch (error) {
    byId("signin-error").textContent = error.message;
  }
}

const canControl = () => page.session.scopes.includes("control");

async function start(runs) {
  byId("signin").hidden = true;
  byId("app").hidden = false;
  for (const node of document.querySelectorAll(".control")) node.hidden = !canControl();
  byId("signout").title = `signed in as ${page.session.name}, with ${page.session.scopes.join(", ")}`;
  buildCharts();
  await listRuns(runs);
}

// ── which run, which window ────────────────────────────────────────────────────────────────────────────────────────
async function listRuns(found = null) {
  const { items } = found ?? (await get(RUNS));
  const live = items.filter((run) => !["stopped", "ended", "silent"].includes(run.state));
  const select = byId("run");
  const options = items.map((run) => element("option", { value: run.name, "data-live": live.includes(run) }, live.includes(run) ? run.name : `${run.name} (${run.state})`));
  const text = options.map((option) => option.textContent).join("\n");
  if (select.dataset.text !== text) {
    select.dataset.text = text;
    select.replaceChildren(...options);
  }
  if (!items.length) {
    banner("No run is here yet. Start one with 'freshet up'.");
    setTimeout(() => guarded(() => listRuns()), RUNS_MS);
    return;
  }
  const names = items.map((run) => run.name);
  const wanted = names.includes(view.run) ? view.run : (live.at(-1) ?? items.at(-1)).name;
  select.value = wanted;
  if (page.past?.run !== wanted) await followRun(wanted, live.some((run) => run.name === wanted));
}

async function followRun(run, isLive) {
  stopFollowing();
  view.choose(run);
  Object.assign(page, { past: new Past(run), records: new Records(), workers: [], status: null, details: null });
  document.title = `${run} · Freshet`;
  guarded(pollWorkers);
  guarded(async () => {
    page.shards = (await get(ofRun(run, "/settings"))).started_with.ps?.shards ?? 1;
  });
  if (view.isLive && !isLive) view.follow(0); // there is nothing new to see, so all of it
  await refreshRun();
  const { cursor } = page.details; // what comes after it, while the window is loaded, is told by the events
  await loadWindow();
  page.feed = new EventFeed(run, cursor, {
    onStatus: (status) => {
      page.status = status;
      page.details = { ...page.details, state: status.state, is_live: true };
      showStatus();
    },
    onRecord: (record) => {
      page.records.add([record]);
      if (["fault", "generation"].includes(record.kind)) showMembers();
    },
    onOpen: () => {
      if (!page.isLost) return;
      page.isLost = false;
      guarded(async () => {
        page.session = await get("/v1/session");
        await refreshRun();
        await loadWindow();
      });
    },
    onLost: () => {
      page.isLost = true;
      showTroubles();
      guarded(() => get("/v1/session"));
    },
  });
  page.timers = [
    setInterval(() => guarded(pollWorkers), WORKERS_MS),
    setInterval(() => guarded(() => showSnapshots(run, canControl())), SNAPSHOTS_MS),
    setInterval(() => guarded(() => listRuns()), RUNS_MS),
    setInterval(() => guarded(refreshRun), RUNS_MS),
  ];
  guarded(() => showSnapshots(run, canControl()));
  tick();
}

function stopFollowing() {
  page.feed?.close();
  page.timers.forEach(clearInterval);
  clearTimeout(page.next);
  page.timers = [];
  page.turn += 1;
}

/** Runs something that asks the API; a session that has ended leads back to signing in. */
async function guarded(work) {
  if (document.hidden) return;
  try {
    await work();
  } catch (error) {
    if (error.status === 401) showSignIn("The session has ended; sign in again.");
    else if (error.status === undefined) throw error;
  }
}

async function refreshRun() {
  page.details = await get(ofRun(page.past.run));
  if (page.details.status) page.status = page.details.status;
  showStatus();
}

async function pollWorkers() {
  const { past } = page;
  const found = (await get(ofRun(past.run, "/workers"))).items;
  if (page.past === past) page.workers = found;
  showMembers();
}

async function loadWindow() {
  const { past } = page;
  const [first, last] = view.span(past.now());
  const since = first === null ? "" : `&first=${first}`;
  const window = `${since}${view.isLive ? "" : `&last=${last}`}`;
  const kinds = ["command", "alpha", "generation", "fault", "redecided", "stopped", "ended", "begun"];
  const asked = [
    `${kinds.map((kind) => `kind=${kind}`).join("&")}&limit=1000`,
    "kind=set&limit=500",
    "kind=checkpoint&limit=1000",
  ];
  const [, ...found] = await Promise.all([
    past.load(first, last, view.isLive),
    ...asked.map((query) => get(ofRun(past.run, `/journal?${query}${window}`))),
  ]);
  if (!page.records.newest("set")) found.push(await get(ofRun(past.run, "/journal?kind=set&kind=alpha&limit=20")));
  if (page.past !== past) return;
  found.forEach(({ items }) => page.records.add(items));
  showWindows();
  drawAll();
}

/** Keeps a live window moving. */
function tick() {
  const turn = page.turn;
  const pace = Past.pace(view.seconds || 3600);
  page.next = setTimeout(async () => {
    if (turn !== page.turn) return;
    if (view.isLive && !page.isLost) {
      await guarded(async () => {
        await page.past.extend(view.seconds);
        drawAll();
      });
    }
    if (turn === page.turn) tick();
  }, 1000 * pace);
}

// ── drawing ────────────────────────────────────────────────────────────────────────────────────────────────────────
function showMarks() {
  const words = { fault: "fault", command: "command", alpha: "change of α", generation: "change of members" };
  byId("marks").replaceChildren("Marks on the charts:", ...Object.entries(MARKED).map(([kind, hue]) => {
    const swatch = element("span", { class: "swatch" });
    swatch.style.background = colour(hue);
    return element("span", {}, swatch, words[kind]);
  }), element("span", {}, "Drag across a chart to look closer."));
}

function buildCharts() {
  showMarks();
  const onSelect = (from, to) => {
    view.fix(from, to);
    guarded(loadWindow);
  };
  const shared = { onSelect };
  const above0 = (_, low, high) => [0, isNumber(high) && high > 0 ? 1.1 * high : 1];
  const around = (_, low, high) => {
    if (!isNumber(low)) return [0, 1];
    const room = Math.max(0.004, 0.15 * (high - low));
    return [low - room, high + room];
  };
  const share = () => [0, 1.04];
  const make = (id, title, options, series) => new Chart({ ...shared, id, title, ...options }, series);
  const whole = (value) => `${Math.round(100 * value)} %`;
  charts = {
    rate: make("c-rate", "Throughput", { axis: count, range: above0 }, [
      { name: "samples/s", colour: "s2", value: count, fill: 0.16 }]),
    quality: make("c-quality", "Quality of the latest samples", { axis: (value) => value.toFixed(3), axis2: (value) => value.toFixed(3), range: around, range2: around }, [
      { name: "AUC", colour: "s0", value: (value) => decimal(value, 4) },
      { name: "logloss (right)", colour: "s1", value: (value) => decimal(value, 4), scale: "y2" }]),
    alpha: make("c-alpha", "α and contention", { axis: (value) => value.toFixed(1), range: share, height: 132 }, [
      { name: "α", colour: "s1", value: (value) => decimal(value, 2), stepped: true },
      { name: "waiting for a processor", colour: "s5", value: whole },
      { name: "pressure", colour: "s3", value: whole }]),
    traffic: make("c-traffic", "Traffic by kind", { axis: (value) => bytes(value, "/s"), range: above0, stacked: true }, [...TRAFFIC].map((kind, at) => (
      { name: kind, colour: TRAFFIC_HUES[at], value: (value) => bytes(value, "/s"), fill: 0.45 }))),
    hits: make("c-hits", "Cache hits", { axis: whole, range: share }, [
      { name: "rows found in the caches", colour: "s2", value: (value) => percent(value), fill: 0.12 }]),
    lag: make("c-lag", "Lag", { axis: count, range: above0 }, [
      { name: "events waiting", colour: "s1", value: count, fill: 0.14 },
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

function drawAll() {
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
function showMembers() {
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
  setText(byId("alpha-why"), `${decimal(status.alpha, 2)}, ${modes[status.alpha_mode]}${alpha ? `: ${alpha}` : ""}.`);
}

function showStatus() {
  const { status, details } = page;
  const state = byId("state");
  state.className = `pill ${STATES[details.state] ?? ""}`;
  setText(state, details.state);
  showTroubles();
  if (!status) {
    setText(byId("facts"), "");
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
    ["AUC", decimal(status.recent_quality.auc, 4), "", `whole run ${decimal(status.quality.auc, 4)}`],
    ["Logloss", decimal(status.recent_quality.logloss, 4), "", `calibration ${decimal(status.recent_quality.calibration, 3)}`],
    ["α", decimal(status.alpha, 2), "", { fixed: "as the policy says", manual: "set by a person", auto: "follows contention" }[status.alpha_mode]],
    ["Workers", String(training), `of ${status.workers.filter((worker) => !worker.has_left).length}`, "the others are parked"],
    ["Lag", count(status.events.lag), "", `${count(status.events.dead_letters)} dead letters`],
    ["Freshness", seconds(freshness.p50_seconds), "", status.served.step === null ? "nothing is served" : `step ${count(status.served.step)} is served`],
    ["Cache hits", percent(lookups ? hits / lookups : null, 1), "", `${count(status.keys.known)} keys, ${bytes(status.keys.shard_bytes)}`],
  ]);
  showFields(Object.keys(status.fields.present), status.fields.absent);
  setText(byId("pause"), status.is_paused ? "Resume the run" : "Pause the run");
  setText(byId("footer"), `Signed in as ${page.session.name} (${page.session.scopes.join(", ")}). Run folder ${details.folder}.`);
  if (!page.touched) showAlpha(status);
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

function showTroubles() {
  const said = [];
  if (page.isLost) said.push("The connection to the API is lost; trying again…");
  else if (page.details && !page.details.is_live) {
    said.push(page.details.state === "silent" ? "The run does not answer. What is shown is its last known state." : `The run is ${page.details.state}. What is shown is its history.`);
  }
  said.push(...(page.status && page.details?.is_live ? page.status.troubles : []));
  banner(said.join("\n"));
}

function banner(text) {
  const node = byId("banner");
  node.hidden = !text;
  setText(node, text);
}

function showWindows() {
  for (const button of byId("windows").children) {
    button.setAttribute("aria-pressed", String(view.isLive && Number(button.dataset.seconds) === view.seconds));
  }
  const [first, last] = view.span(page.past.now());
  byId("from").value = localTime(first ?? page.past.points()[0]?.at ?? last - 300);
  byId("to").value = localTime(last);
}

// ── acts ───────────────────────────────────────────────────────────────────────────────────────────────────────────
function showAlpha(status) {
  byId("alpha").value = status.alpha ?? 1;
  byId("alpha-auto").checked = status.alpha_mode === "auto";
  byId("alpha").disabled = byId("alpha-auto").checked;
  byId("alpha-value").textContent = decimal(Number(byId("alpha").value), 2);
}

async function setAlpha(event) {
  event.preventDefault();
  const isAuto = byId("alpha-auto").checked;
  const value = isAuto ? "auto" : Number(byId("alpha").value);
  await act(page.past.run, {
    title: isAuto ? "Have α follow contention" : `Set α to ${decimal(value, 2)}`,
    text: isAuto ? "The dispatcher lowers α while the machine is contended, and raises it again." : "In force from the next decision on, until somebody changes it.",
    yes: "Set it", method: "PUT", path: "/alpha", body: { value },
  });
  page.touched = false;
}

async function actOnWorker(verb, worker) {
  const isDrain = verb === "drain";
  await act(page.past.run, {
    title: `${isDrain ? "Drain" : "Remove"} ${worker}`,
    text: isDrain ? "It leaves after a checkpoint, at a step boundary; nothing is lost." : "It is excluded at once: the others go back to the last checkpoint and train those steps again.",
    yes: isDrain ? "Drain it" : "Remove it",
    method: isDrain ? "POST" : "DELETE", path: `/workers/${encodeURIComponent(worker)}${isDrain ? "/drain" : ""}`,
  });
}

async function addWorker(event) {
  event.preventDefault();
  const link = byId("add-link").value;
  await act(page.past.run, {
    title: "Add a worker", text: `It is started on the run's machine${link ? `, behind a link of ${link} Gbit/s` : ""}, and joins at a step boundary.`, yes: "Add it",
    method: "POST", path: "/workers", body: link ? { link_gbit: Number(link) } : {},
  });
}

function listen() {
  const run = () => page.past.run;
  byId("signin-form").addEventListener("submit", signIn);
  byId("signout").addEventListener("click", async () => {
    await ask("DELETE", "/v1/session").catch(() => null);
    location.reload();
  });
  byId("run").addEventListener("change", (event) => guarded(() => followRun(event.target.value, "live" in event.target.selectedOptions[0].dataset)));
  byId("windows").replaceChildren(...WINDOWS.map(([name, length]) => element("button", {
    type: "button", "data-seconds": length, onclick: () => {
      view.follow(length);
      stopTick();
      guarded(loadWindow).then(tick);
    },
  }, name)));
  byId("window-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const [from, to] = ["from", "to"].map((id) => new Date(byId(id).value).getTime() / 1000);
    if (!(to > from)) return;
    byId("custom").open = false;
    view.fix(from, to);
    guarded(loadWindow);
  });
  byId("copy").addEventListener("click", async (event) => {
    const [first, last] = view.span(page.past.now());
    const link = new View();
    Object.assign(link, { run: run(), seconds: view.seconds, fixed: first === null ? null : [first, last] });
    const isCopied = await navigator.clipboard?.writeText(location.origin + link.address()).then(() => true, () => false);
    if (!isCopied) history.replaceState(null, "", link.address()); // browsers copy over HTTPS or on this machine alone
    setText(event.target, isCopied ? "Copied" : "In the address");
    setTimeout(() => setText(event.target, "Copy link"), 1500);
  });
  byId("theme").addEventListener("click", () => {
    setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
    localStorage.setItem("freshet-theme", document.documentElement.dataset.theme);
    Object.values(charts).forEach((chart) => chart.build());
    showMarks();
    byId("workers").dataset.shown = "";
    drawAll();
  });
  fillKinds(byId("kind"));
  byId("kind").addEventListener("change", drawAll);
  byId("link").addEventListener("change", drawAll);
  for (const id of ["alpha", "alpha-auto"]) {
    byId(id).addEventListener("input", () => {
      page.touched = true;
      byId("alpha").disabled = byId("alpha-auto").checked;
      byId("alpha-value").textContent = decimal(Number(byId("alpha").value), 2);
    });
  }
  byId("alpha-form").addEventListener("submit", setAlpha);
  byId("add-form").addEventListener("submit", addWorker);
  byId("pause").addEventListener("click", () => act(run(), page.status?.is_paused
    ? { title: "Resume the run", text: "Training goes on with the events that have waited.", yes: "Resume it", method: "POST", path: "/resume" }
    : { title: "Pause the run", text: "Steps under way are completed; events wait in their topic.", yes: "Pause it", method: "POST", path: "/pause" }));
  byId("stop").addEventListener("click", () => act(run(), { title: "Stop the run", text: "It takes a checkpoint and ends; 'freshet up --run' resumes it later.", yes: "Stop it", method: "POST", path: "/stop" }));
  byId("rollback").addEventListener("click", () => act(run(), { title: "Roll back", text: "Pins the newest good snapshot that is older than the one served now.", yes: "Roll back", method: "POST", path: "/served/snapshots/rollback" }));
  byId("unpin").addEventListener("click", () => act(run(), { title: "Serve the newest again", text: "Ends the pin: the newest good snapshot is served from now on.", yes: "Unpin", method: "DELETE", path: "/served/snapshots/pin" }));
  byId("try-form").addEventListener("submit", (event) => {
    event.preventDefault();
    guarded(() => predict(run()));
  });
  addEventListener("resize", () => page.status && drawAll());
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden && page.past) guarded(loadWindow);
  });
}

function stopTick() {
  clearTimeout(page.next);
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  byId("theme").textContent = theme === "dark" ? "Light" : "Dark";
}

listen();
begin();
