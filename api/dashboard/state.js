// What every part of the page looks at: the run that is shown, what is known about it, and who is looking.

import { Records } from "./records.js";
import { View } from "./view.js";

export const view = new View();

export const page = {
  session: null,
  runs: [], // all of them, as in the list
  details: null, // the run as the API describes it
  status: null, // its newest status
  workers: [], // as the dispatcher answers
  past: null,
  records: new Records(),
  feed: null,
  isLost: false, // whether the connection to the API is lost
  isComparing: false, // whether several runs are shown side by side
  isTouched: false, // whether somebody has moved the slider of α and not set it yet
  shards: 1,
  timers: [],
  turn: 0, // raised when a run or a window is left, so that what was begun for it ends
};

export const canControl = () => page.session.scopes.includes("control");
