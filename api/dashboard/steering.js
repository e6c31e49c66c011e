// The controls of a run: what each asks before it acts, and which command it gives.

import { act } from "./acts.js";
import { alphaText, byId } from "./format.js";
import { page } from "./state.js";

const run = () => page.past.run;

export function showAlpha(status) {
  byId("alpha").value = status.alpha ?? 1;
  byId("alpha-auto").checked = status.alpha_mode === "auto";
  byId("alpha").disabled = byId("alpha-auto").checked;
  byId("alpha-value").textContent = alphaText(status.alpha ?? 1);
}

async function setAlpha(event) {
  event.preventDefault();
  const isAuto = byId("alpha-auto").checked;
  const value = isAuto ? "auto" : Number(byId("alpha").value);
  await act(run(), {
    title: isAuto ? "Have α follow contention" : `Set α to ${alphaText(value)}`,
    text: isAuto ? "The dispatcher lowers α while the machine is contended, and raises it again." : "In force from the next decision on, until somebody changes it.",
    yes: "Set it", method: "PUT", path: "/alpha", body: { value },
  });
  page.isTouched = false;
}

export async function actOnWorker(verb, worker) {
  const isDrain = verb === "drain";
  await act(run(), {
    title: `${isDrain ? "Drain" : "Remove"} ${worker}`,
    text: isDrain ? "It leaves after a checkpoint, at a step boundary; nothing is lost." : "It is excluded at once: the others go back to the last checkpoint and train those steps again.",
    yes: isDrain ? "Drain it" : "Remove it",
    method: isDrain ? "POST" : "DELETE", path: `/workers/${encodeURIComponent(worker)}${isDrain ? "/drain" : ""}`,
  });
}

async function addWorker(event) {
  event.preventDefault();
  const link = byId("add-link").value;
  await act(run(), {
    title: "Add a worker", text: `It is started on the run's machine${link ? `, behind a link of ${link} Gbit/s` : ""}, and joins at a step boundary.`, yes: "Add it",
    method: "POST", path: "/workers", body: link ? { link_gbit: Number(link) } : {},
  });
}

export function listenToControls() {
  for (const id of ["alpha", "alpha-auto"]) {
    byId(id).addEventListener("input", () => {
      page.isTouched = true;
      byId("alpha").disabled = byId("alpha-auto").checked;
      byId("alpha-value").textContent = alphaText(Number(byId("alpha").value));
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
}
