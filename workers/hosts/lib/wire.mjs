// The wire of every host: frames of the worker protocol, version 2, one JSON object a line.
//
// Invariants
// - Nothing but frames goes to the protocol's descriptor. Importing this module hands file descriptor 1
//   to stderr, so import it before any foreign code: then neither `console.log` nor a child that inherits
//   stdout spoils the stream.
// - No frame of a turn is dropped: a slow reader makes `out.drained()` wait instead. Only notices, errors
//   and log lines are left out, and counted, while the reader is behind.
// - A line of any length or content never ends the process.

import fs from "node:fs";
import net from "node:net";
import os from "node:os";

export const PROTOCOL = 2;

const LINE_LIMIT = 16 * 1024 * 1024; // bytes of one line, both ways
const DEPTH_LIMIT = 48; // of a payload; the receiver's own limit is 64 for the whole frame
const OUT_HIGH = 1024 * 1024; // bytes not yet taken by the reader at which the agent is made to wait
const OUT_LOW = 256 * 1024; // and at which it goes on
const SIDE_FRAMES = ["ui_notice", "log", "error"]; // nobody can make their sender wait

/** An error whose code the receiver may act on. */
export class HostError extends Error {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

export const messageOf = (error) => {
  try {
    return String(error?.message ?? error);
  } catch {
    return "an error that cannot be shown";
  }
};

export const stackOf = (error) => {
  try {
    return String(error?.stack ?? error);
  } catch {
    return "an error that cannot be shown";
  }
};

export const bounded = (promise, ms) => {
  let timer;
  const limit = new Promise((resolve) => {
    timer = setTimeout(resolve, ms, "timeout");
  });
  return Promise.race([promise, limit]).finally(() => clearTimeout(timer));
};

/** Takes stdout for the protocol and returns the stream that reaches it. */
function takeOverStdout() {
  const stream = ownStdout() ?? plainStdout();
  process.stdout.write = (chunk, encoding, done) => process.stderr.write(chunk, encoding, done);
  return stream;
}

/**
 * Moves the protocol to a descriptor of its own, closed on exec, and puts another file behind 1: then
 * neither code that writes to descriptor 1 nor a child that inherits it can reach the protocol.
 */
function ownStdout() {
  const dir = process.platform === "linux" ? "/proc/self/fd" : "/dev/fd";
  const { O_WRONLY, O_APPEND } = fs.constants;
  let own;
  let other;
  try {
    own = fs.openSync(`${dir}/1`, O_WRONLY);
  } catch {
    return undefined; // a socket cannot be opened a second time
  }
  try {
    other = fs.openSync(`${dir}/2`, O_WRONLY | O_APPEND);
  } catch {
    other = fs.openSync(os.devNull, O_WRONLY);
  }
  fs.closeSync(1);
  // The lowest free descriptor is given out, which is 1 now.
  fs.openSync(`${dir}/${other}`, O_WRONLY | O_APPEND);
  fs.closeSync(other);
  return fs.fstatSync(own).isFIFO()
    ? new net.Socket({ fd: own, readable: false, writable: true })
    : fs.createWriteStream(null, { fd: own });
}

/** The stream as it is; only the language's own ways to write to it are closed. */
function plainStdout() {
  const stream = process.stdout;
  const write = stream.write.bind(stream);
  return { write: (line, done) => write(line, done), on: (event, listener) => stream.on(event, listener) };
}

export const out = {
  stream: takeOverStdout(),
  waiting: 0, // bytes handed to the stream that the reader has not taken
  broken: false,
  congested: false,
  released: false, // set while a run is being ended: it must not wait for a reader that may be stuck
  resume: [],
  unsaid: 0, // side frames that were left out for want of a reader

  send(type, fields) {
    // Whoever is behind learns what happened in the session, and how often something was said beside it.
    if (this.congested && SIDE_FRAMES.includes(type)) {
      this.unsaid += 1;
      return;
    }
    let line;
    try {
      line = encode({ protocolVersion: PROTOCOL, type, ...fields });
    } catch (error) {
      const about = fields.requestId === undefined ? {} : { requestId: fields.requestId };
      line = encode({
        protocolVersion: PROTOCOL,
        type: "error",
        operation: "send",
        error: `a ${type} frame could not be written: ${messageOf(error)}`,
        ...about,
      });
    }
    if (this.broken) return;
    const size = Buffer.byteLength(line);
    this.waiting += size;
    if (this.waiting > OUT_HIGH) this.congested = true;
    this.stream.write(line, () => {
      this.waiting -= size;
      if (this.congested && this.waiting <= OUT_LOW) this.wake();
    });
  },

  /** Resolves when the reader has caught up. An agent that awaits it makes the model's stream wait too. */
  drained() {
    if (!this.congested || this.broken || this.released) return undefined;
    return new Promise((resolve) => this.resume.push(resolve));
  },

  wake() {
    this.congested = false;
    if (this.unsaid > 0) {
      const message = `${this.unsaid} notices, errors and log lines were left out: the reader was behind`;
      this.unsaid = 0;
      log("warn", message);
    }
    for (const go of this.resume.splice(0)) go();
  },

  flushed() {
    if (this.broken) return Promise.resolve();
    return new Promise((resolve) => this.stream.write("", () => resolve()));
  },
};

out.stream.on("error", () => {
  // The reader is gone. The end of stdin, which comes with it, stops the host.
  out.broken = true;
  out.wake();
});

/** One line. Lone surrogates would be refused by strict readers, and a line has a limit. */
function encode(frame) {
  let text = JSON.stringify(frame);
  if (/\\ud[89a-f]/.test(text)) {
    text = JSON.stringify(frame, (_, value) => (typeof value === "string" ? value.toWellFormed() : value));
  }
  if (text.length * 3 > LINE_LIMIT && Buffer.byteLength(text) >= LINE_LIMIT) {
    text = JSON.stringify(plain(frame, { string: 64 * 1024, list: 1000 }));
    if (Buffer.byteLength(text) >= LINE_LIMIT) throw new Error("the frame is longer than 16 MiB");
  }
  return `${text}\n`;
}

/** A copy that JSON can carry: bounded in depth and, where asked, in the length of strings and lists. */
export function plain(value, limits = {}, depth = 0, above = []) {
  switch (typeof value) {
    case "string":
      if (limits.string === undefined || value.length <= limits.string) return value;
      return `${value.slice(0, limits.string)}… [${value.length - limits.string} more characters]`;
    case "bigint":
      return value.toString();
    case "function":
    case "symbol":
      return null;
    case "object":
      break;
    default:
      return value;
  }
  if (value === null) return null;
  if (above.includes(value)) return "[circular]";
  if (depth >= DEPTH_LIMIT) return "[truncated]";
  if (value instanceof Date) return Number.isNaN(value.getTime()) ? null : value.toISOString();
  if (value instanceof Error) return { name: value.name, message: value.message, stack: value.stack };
  const path = [...above, value];
  if (Array.isArray(value)) {
    const kept = limits.list === undefined ? value : value.slice(0, limits.list);
    return kept.map((item) => plain(item, limits, depth + 1, path));
  }
  const copy = {};
  for (const key of Object.keys(value)) {
    if (value[key] !== undefined) copy[key] = plain(value[key], limits, depth + 1, path);
  }
  return copy;
}

export const lifecycle = (event, fields = {}) => out.send("lifecycle", { event, ...fields });
export const log = (level, message, detail) => out.send("log", { level, message, ...(detail ? { detail } : {}) });
export const report = (operation, error, fields = {}) =>
  out.send("error", { operation, error: messageOf(error), ...fields });

function onLine(bytes, onFrame) {
  const end = bytes.at(-1) === 13 ? bytes.length - 1 : bytes.length;
  if (end === 0) return;
  let frame;
  try {
    frame = JSON.parse(bytes.toString("utf8", 0, end));
  } catch {
    report("receive", `a line of ${bytes.length} bytes is not JSON`);
    return;
  }
  if (frame === null || typeof frame !== "object" || Array.isArray(frame)) {
    report("receive", `a line of ${bytes.length} bytes is not an object`);
  } else if (frame.protocolVersion !== PROTOCOL) {
    const version = JSON.stringify(frame.protocolVersion) ?? "none";
    report("receive", `protocol version ${version.slice(0, 40)} was received; this host speaks ${PROTOCOL}`, {
      detail: { errorCode: "protocol_version" },
    });
  } else {
    // Requests run side by side: an abort must not wait for the send it ends.
    onFrame(frame).catch((error) => report("receive", error));
  }
}

/**
 * Reads frames from stdin until its end. Lines are split at line feeds only; a line that is too long is
 * skipped in constant memory. What is not a frame of this version is reported and passed over.
 */
export function readFrames(onFrame, onEnd) {
  let parts = [];
  let size = 0;
  let skipping = false;
  process.stdin.on("data", (chunk) => {
    let start = 0;
    for (let at = chunk.indexOf(10); at >= 0; at = chunk.indexOf(10, start)) {
      const piece = chunk.subarray(start, at);
      start = at + 1;
      if (!skipping && size + piece.length <= LINE_LIMIT) {
        onLine(parts.length === 0 ? piece : Buffer.concat([...parts, piece]), onFrame);
      } else if (!skipping) {
        report("receive", "a line longer than 16 MiB was skipped", { detail: { errorCode: "frame_too_long" } });
      }
      [parts, size, skipping] = [[], 0, false];
    }
    const rest = chunk.subarray(start);
    if (skipping || rest.length === 0) return;
    parts.push(rest);
    size += rest.length;
    if (size > LINE_LIMIT) {
      report("receive", "a line longer than 16 MiB is being skipped", { detail: { errorCode: "frame_too_long" } });
      [parts, size, skipping] = [[], 0, true];
    }
  });
  process.stdin.on("end", onEnd);
  process.stdin.on("error", onEnd);
}
