// Requests to the API. The session is a cookie that scripts cannot read; its secret is never in this page.

export class ApiError extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

/** Sends a request; throws ApiError with status 0 if the API cannot be reached. */
export async function ask(method, path, body) {
  let answer;
  try {
    answer = await fetch(path, {
      method,
      headers: { "X-Freshet-Page": "1", ...(body === undefined ? {} : { "Content-Type": "application/json" }) },
      body: body === undefined ? undefined : JSON.stringify(body),
      cache: "no-store",
      credentials: "same-origin",
    });
  } catch {
    throw new ApiError(0, "the API cannot be reached");
  }
  const text = await answer.text();
  const read = text && answer.headers.get("content-type")?.includes("json") ? JSON.parse(text) : null;
  if (!answer.ok) throw new ApiError(answer.status, read?.detail ?? `the API answered ${answer.status}`);
  return read;
}

export const get = (path) => ask("GET", path);

/** The path of a run's resource. */
export const ofRun = (run, path = "") => `/v1/runs/${encodeURIComponent(run)}${path}`;

const KINDS = ["command", "alpha", "set", "generation", "checkpoint", "fault", "redecided", "stopped", "ended", "begun"];
const LONGEST_PAUSE_MS = 5000;

/** Follows the events of a run after a cursor, and connects again, where it was, whenever the connection breaks. */
export class EventFeed {
  constructor(run, cursor, { onStatus, onRecord, onOpen, onLost }) {
    this.path = ofRun(run, "/events");
    this.cursor = cursor;
    this.calls = { onStatus, onRecord, onOpen, onLost };
    this.pause = 500;
    this.connect();
  }

  connect() {
    this.source = new EventSource(`${this.path}?after=${this.cursor}`);
    this.source.onopen = () => {
      this.pause = 500;
      this.calls.onOpen();
    };
    this.source.onerror = () => {
      this.source.close();
      this.calls.onLost();
      this.timer = setTimeout(() => this.connect(), this.pause);
      this.pause = Math.min(LONGEST_PAUSE_MS, 2 * this.pause);
    };
    this.source.addEventListener("status", (event) => this.calls.onStatus(JSON.parse(event.data)));
    for (const kind of KINDS) {
      this.source.addEventListener(kind, (event) => {
        const { cursor, at, ...body } = JSON.parse(event.data);
        this.cursor = Math.max(0, cursor - 1); // the rest of this record's frame may not have come yet
        this.calls.onRecord({ cursor, place: Number(event.lastEventId.split(".")[1]), at, kind, body });
      });
    }
  }

  close() {
    clearTimeout(this.timer);
    this.source.close();
  }
}
