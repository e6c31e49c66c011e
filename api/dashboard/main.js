// The page: signs in, follows one run, and draws it again whenever something is new.

import { buildComparison, chosenRuns, endComparison, fillChoices, showComparison } from "./compare.js";
import { banner, buildCharts, drawAll, redraw, showMembers, showStatus, showTroubles, showWindows } from "./drawing.js";
import { showLetters } from "./events.js";
import { byId, element, setText } from "./format.js";
import { Past } from "./history.js";
import { fillKinds, Records } from "./records.js";
import { ask, EventFeed, get, ofRun } from "./requests.js";
import { predict, showSnapshots } from "./served.js";
import { canControl, page, view } from "./state.js";
import { listenToControls } from "./steering.js";
import { View, WINDOWS } from "./view.js";

const WORKERS_MS = 2000;
const SNAPSHOTS_MS = 4000;
const RUNS_MS = 10_000;
const RUNS = "/v1/runs?limit=1000";
const OVER = ["stopped", "ended", "silent"];

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

async function start(runs) {
  byId("signin").hidden = true;
  byId("app").hidden = false;
  for (const node of document.querySelectorAll(".control")) node.hidden = !canControl();
  byId("signout").title = `signed in as ${page.session.name}, with ${page.session.scopes.join(", ")}`;
  const listed = listRuns(runs); // what it asks for is on its way while the charts are made
  buildCharts((from, to) => {
    view.fix(from, to);
    guarded(loadWindow);
  });
  await listed;
}

// ── which run, which window ────────────────────────────────────────────────────────────────────────────────────────
async function listRuns(found = null) {
  const { items } = found ?? (await get(RUNS));
  page.runs = items;
  const live = items.filter((run) => !OVER.includes(run.state));
  const select = byId("run");
  const options = items.map((run) => element("option", { value: run.name }, live.includes(run) ? run.name : `${run.name} (${run.state})`));
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
  if (view.run !== wanted) view.choose(wanted);
  fillChoices(names);
  if (view.isComparison) {
    if (!page.isComparing) await compareRuns();
    return;
  }
  if (page.past?.run !== wanted) await followRun(items.find((run) => run.name === wanted));
}

/** Follows a run of the list. Its cursor is older than what is loaded next, so no record is missed in between. */
async function followRun({ name: run, cursor, state, is_here: isHere }) {
  stopFollowing();
  view.choose(run);
  Object.assign(page, { past: new Past(run), records: new Records(), workers: [], status: null, details: null });
  document.title = `${run} · Freshet`;
  if (isHere) guarded(pollWorkers);
  if (isHere) guarded(async () => {
    page.shards = (await get(ofRun(run, "/settings"))).started_with.ps?.shards ?? 1;
  });
  if (view.isLive && OVER.includes(state)) view.follow(0); // there is nothing new to see, so all of it
  document.body.classList.toggle("gone", !isHere);
  await Promise.all([refreshRun(), loadWindow()]);
  if (page.past.run !== run) return; // somebody has chosen another one meanwhile
  page.timers = [setInterval(() => guarded(() => listRuns()), RUNS_MS)];
  if (isHere) followEvents(run, cursor);
  tick();
}

/** Keeps what only a run whose folder is here has up to date. */
function followEvents(run, cursor) {
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
  page.timers.push(
    setInterval(() => guarded(pollWorkers), WORKERS_MS),
    setInterval(() => guarded(() => showSnapshots(run, canControl())), SNAPSHOTS_MS),
    setInterval(() => guarded(refreshRun), RUNS_MS),
  );
  guarded(() => showSnapshots(run, canControl()));
}

/** Shows several runs side by side until one of them is chosen again. */
async function compareRuns() {
  stopFollowing();
  page.isComparing = true;
  page.past = null;
  buildComparison();
  banner("");
  document.body.classList.add("comparing");
  byId("comparison").hidden = false;
  document.title = `${[view.run, ...view.others].join(", ")} · Freshet`;
  const goesOn = await showComparison();
  performance.mark("charts drawn");
  page.timers = [setInterval(() => guarded(() => listRuns()), RUNS_MS)];
  if (goesOn) page.timers.push(setInterval(() => guarded(showComparison), RUNS_MS));
}

function leaveComparison() {
  if (!page.isComparing) return;
  page.isComparing = false;
  endComparison();
  document.body.classList.remove("comparing");
  byId("comparison").hidden = true;
}

/** Shows the run of the address, alone or with others. */
async function showChosen() {
  leaveComparison();
  fillChoices(page.runs.map((run) => run.name));
  if (view.isComparison) await compareRuns();
  else await followRun(page.runs.find((run) => run.name === view.run));
}

function stopFollowing() {
  page.feed?.close();
  page.feed = null;
  page.timers.forEach(clearInterval);
  page.timers = [];
  stopTick();
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
  const details = await get(ofRun(page.past.run));
  const listed = page.runs.find((run) => run.name === details.name); // it knows whether a silent run was stopped
  page.details = details.state === "silent" && listed ? { ...details, state: listed.state } : details;
  if (page.details.status) page.status = page.details.status;
  showStatus();
  if (page.status) await showLetters(details.name, page.status.events.dead_letters).catch(ignoreConflict);
}

/** A run on Kafka has its dead letters there. */
function ignoreConflict(error) {
  if (error.status !== 409) throw error;
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
    `kind=set&kind=checkpoint&points=${Past.marks}`,
  ];
  const [, ...found] = await Promise.all([
    past.load(first, last, view.isLive),
    ...asked.map((query) => get(ofRun(past.run, `/journal?${query}${window}`))),
  ]);
  if (page.past !== past) return;
  page.records.add(found.flatMap(({ items }) => items));
  if (!page.records.newest("set")) guarded(() => loadChoice(past)); // it was made before the window
  showWindows();
  drawAll();
  performance.mark("charts drawn"); // how long the page takes to open is measured by it
}

async function loadChoice(past) {
  const { items } = await get(ofRun(past.run, "/journal?kind=set&kind=alpha&limit=20"));
  if (page.past !== past) return;
  page.records.add(items);
  showMembers();
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

/** Ends the movement of the window; returns the turn that has begun. */
function stopTick() {
  clearTimeout(page.next);
  page.turn += 1;
  return page.turn;
}

// ── what people do ─────────────────────────────────────────────────────────────────────────────────────────────────
function listen() {
  const run = () => page.past.run;
  byId("signin-form").addEventListener("submit", signIn);
  byId("signout").addEventListener("click", async () => {
    await ask("DELETE", "/v1/session").catch(() => null);
    location.reload();
  });
  byId("run").addEventListener("change", (event) => {
    view.choose(event.target.value);
    view.compare(view.others.filter((run) => run !== view.run), view.by);
    guarded(showChosen);
  });
  byId("compare-form").addEventListener("submit", (event) => {
    event.preventDefault();
    byId("compare").open = false;
    view.compare(chosenRuns(), event.target.elements.by.value);
    guarded(showChosen);
  });
  byId("compare-end").addEventListener("click", () => {
    view.compare([], view.by);
    guarded(showChosen);
  });
  byId("compare-all").addEventListener("click", () => {
    view.zoom(null);
    guarded(showComparison);
  });
  byId("windows").replaceChildren(...WINDOWS.map(([name, length]) => element("button", {
    type: "button", "data-seconds": length, onclick: () => {
      view.follow(length);
      const turn = stopTick();
      guarded(loadWindow).then(() => turn === page.turn && tick());
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
    const [first, last] = view.span(page.past?.now() ?? 0);
    const link = new View();
    Object.assign(link, view, { fixed: first === null ? null : [first, last] });
    const isCopied = await navigator.clipboard?.writeText(location.origin + link.address()).then(() => true, () => false);
    if (!isCopied) history.replaceState(null, "", link.address()); // browsers copy over HTTPS or on this machine alone
    setText(event.target, isCopied ? "Copied" : "In the address");
    setTimeout(() => setText(event.target, "Copy link"), 1500);
  });
  byId("theme").addEventListener("click", () => {
    setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
    localStorage.setItem("freshet-theme", document.documentElement.dataset.theme);
    if (page.isComparing) guarded(showComparison);
    redraw();
  });
  listenToControls();
  fillKinds(byId("kind"));
  byId("kind").addEventListener("change", drawAll);
  byId("link").addEventListener("change", drawAll);
  byId("try-form").addEventListener("submit", (event) => {
    event.preventDefault();
    guarded(() => predict(run()));
  });
  addEventListener("resize", () => page.status && drawAll());
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden && page.past) guarded(loadWindow);
    else if (!document.hidden && page.isComparing) guarded(showComparison);
  });
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  byId("theme").textContent = theme === "dark" ? "Light" : "Dark";
}

listen();
begin();
