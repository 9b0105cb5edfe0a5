// The WebSocket to the console's own program: requests and their answers, events, terminal bytes.
//
// When it is lost, what was asked fails, and it is opened again after 0.5 s, then ever later up to 10 s.
// "up" is told each time; whoever follows something asks for it again then.

const FIRST_DELAY_MS = 500;
const LONGEST_DELAY_MS = 10_000;
const MOST_PENDING = 60; // the program answers 64 at a time
const MOST_UNSENT_BYTES = 4 * 1024 * 1024;

/** What could not be done: `message`, perhaps a `hint` how to mend it, and a `code`. */
export class CallError extends Error {
  constructor(message, hint = null, code = "failed") {
    super(message);
    this.hint = hint;
    this.code = code;
  }
}

export class Link extends EventTarget {
  #socket = null;
  #next = 1;
  #pending = new Map();
  #waiting = [];
  #delay = FIRST_DELAY_MS;

  get up() {
    return this.#socket?.readyState === WebSocket.OPEN;
  }

  /** Open it, and again whenever it is lost. */
  open() {
    const url = new URL("ws", document.baseURI);
    url.protocol = "ws:";
    url.hash = "";
    const socket = new WebSocket(url);
    socket.binaryType = "arraybuffer";
    socket.onopen = () => this.#opened();
    socket.onmessage = (message) => this.#received(message.data);
    socket.onclose = () => this.#lost();
    this.#socket = socket;
  }

  /** Ask for something; resolves to the result, fails with a CallError. */
  call(method, params = {}) {
    if (!this.up) return Promise.reject(new CallError("The console's program cannot be reached.", null, "unreachable"));
    return new Promise((resolve, reject) => {
      this.#waiting.push({ method, params, resolve, reject });
      this.#sendWaiting();
    });
  }

  /** Send bytes to a terminal; false if they cannot be sent now. */
  sendBytes(channel, data) {
    if (!this.up || this.#socket.bufferedAmount > MOST_UNSENT_BYTES) return false;
    const message = new Uint8Array(4 + data.length);
    new DataView(message.buffer).setUint32(0, channel);
    message.set(data, 4);
    this.#socket.send(message);
    return true;
  }

  #sendWaiting() {
    while (this.#waiting.length > 0 && this.#pending.size < MOST_PENDING) {
      const asked = this.#waiting.shift();
      const id = this.#next++;
      this.#pending.set(id, asked);
      this.#socket.send(JSON.stringify({ id, method: asked.method, params: asked.params }));
    }
  }

  #opened() {
    this.#delay = FIRST_DELAY_MS;
    this.dispatchEvent(new Event("up"));
  }

  #received(data) {
    if (typeof data !== "string") {
      const channel = new DataView(data).getUint32(0);
      this.dispatchEvent(new CustomEvent("bytes", { detail: { channel, data: new Uint8Array(data, 4) } }));
      return;
    }
    const message = JSON.parse(data);
    if ("event" in message) this.dispatchEvent(new CustomEvent(message.event, { detail: message }));
    else this.#answered(message);
  }

  #answered({ id, result, error }) {
    const asked = this.#pending.get(id);
    if (!asked) return;
    this.#pending.delete(id);
    if (error) asked.reject(new CallError(error.message, error.hint ?? null, error.code ?? "failed"));
    else asked.resolve(result);
    this.#sendWaiting();
  }

  #lost() {
    const failed = [...this.#pending.values(), ...this.#waiting];
    this.#pending.clear();
    this.#waiting = [];
    for (const asked of failed) {
      asked.reject(new CallError("The console's program went away before it answered.", null, "unreachable"));
    }
    this.dispatchEvent(new CustomEvent("down", { detail: { delay_ms: this.#delay } }));
    setTimeout(() => this.open(), this.#delay);
    this.#delay = Math.min(LONGEST_DELAY_MS, this.#delay * 2);
  }
}
