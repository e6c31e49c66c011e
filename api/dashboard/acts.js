// Commands: each is asked about once, sent once, and followed from pending to its record in the journal.

import { ask, get, ofRun } from "./requests.js";
import { byId, element } from "./format.js";

const LOOK_MS = 700;
const KEPT = 6;
const TOAST_MS = 8000;

/** Asks a person; returns the reason, or null if they leave it. */
function confirmed(title, text, yes) {
  const dialog = byId("ask");
  byId("ask-title").textContent = title;
  byId("ask-text").textContent = text;
  byId("ask-yes").textContent = yes;
  byId("ask-reason").value = "";
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((done) => {
    dialog.addEventListener("close", () => done(dialog.returnValue === "yes" ? byId("ask-reason").value.trim() : null), { once: true });
  });
}

/** One line in the list of commands. */
class Followed {
  constructor(title) {
    this.state = element("span", { class: "pill warn" }, "pending");
    this.text = element("span", { class: "muted" }, "");
    this.node = element("li", {}, element("strong", {}, title), " ", this.state, " ", this.text);
    const list = byId("commands");
    list.prepend(this.node);
    while (list.children.length > KEPT) list.lastChild.remove();
  }

  show(look, state, text) {
    this.state.className = `pill ${look}`;
    this.state.textContent = state;
    this.text.textContent = text;
    const toast = byId("toast");
    toast.replaceChildren(...[...this.node.childNodes].map((node) => node.cloneNode(true)));
    toast.hidden = false;
    clearTimeout(Followed.timer);
    if (look !== "warn") Followed.timer = setTimeout(() => { toast.hidden = true; }, TOAST_MS);
  }
}

/** Carries out one act after a question: {title, text, yes, method, path, body, takesReason}. */
export async function act(run, wanted) {
  const reason = await confirmed(wanted.title, wanted.text, wanted.yes);
  if (reason === null) return;
  const line = new Followed(wanted.title);
  try {
    const body = wanted.method === "DELETE" ? undefined : { ...wanted.body, reason };
    await follow(run, line, await ask(wanted.method, ofRun(run, wanted.path), body));
  } catch (error) {
    line.show("bad", "refused", error.message);
  }
}

async function follow(run, line, command) {
  if (!command?.id || command.snapshot) {
    line.show("good", "done", command?.snapshot ? `checkpoint ${command.snapshot.id.checkpoint} is served` : "");
    return;
  }
  while (command.state === "pending") {
    line.show("warn", "pending", "waits for the dispatcher");
    await new Promise((done) => setTimeout(done, LOOK_MS));
    try {
      command = await get(ofRun(run, `/commands/${command.id}`));
    } catch (error) {
      if (error.status) throw error;
    }
  }
  const isDone = command.state === "done";
  const where = command.cursor === null ? "done" : `journalled at ${command.cursor}`;
  line.show(isDone ? "good" : "bad", isDone ? where : command.outcome ?? "refused", command.text);
}
