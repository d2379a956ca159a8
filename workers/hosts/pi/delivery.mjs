// Whether a message that is to be sent again was delivered before: what the session file says of it.
//
// The broker marks the end of the file before it sends a message for the first time. Entries behind the
// mark are of that turn, whatever they say; the same text before it is an earlier message. Without a mark
// that fits, nobody can tell the two apart, and then nothing is done twice: in doubt it was delivered.

import { createHash } from "node:crypto";
import fs from "node:fs";

const TAIL = 4096; // bytes before the mark by which a file is known again; the broker's number

/** What stands for a line that is no entry: half of one, from a process that was killed as it wrote it. */
const TORN = { type: "torn" };

function readLine(line) {
  try {
    const entry = JSON.parse(line);
    return typeof entry?.type === "string" ? entry : TORN;
  } catch {
    return TORN;
  }
}

const fits = (bytes, file, mark) =>
  mark?.sessionFile === file &&
  Number.isSafeInteger(mark.bytes) &&
  mark.bytes <= bytes.length &&
  createHash("sha256").update(bytes.subarray(Math.max(0, mark.bytes - TAIL), mark.bytes)).digest("hex") === mark.tail;

/** The entries that may be of the turn, in the file's order, and whether that is certain: a mark fits. */
export function entriesOfTurn(file, mark) {
  let bytes;
  try {
    bytes = fs.readFileSync(file);
  } catch (error) {
    if (error.code !== "ENOENT") throw error;
    // Nothing was ever said in it.
    return { entries: [], certain: true };
  }
  const certain = fits(bytes, file, mark);
  const lines = bytes.subarray(certain ? mark.bytes : 0).toString("utf8").split("\n");
  return { entries: lines.filter((line) => line.trim() !== "").map(readLine), certain };
}

const isOf = (entry, role) => entry.type === "message" && entry.message?.role === role;

const hasContent = (message) =>
  (Array.isArray(message.content) ? message.content : [message.content]).some(
    (part) => part && (typeof part === "string" || part.type === "toolCall" || part.text || part.thinking),
  );

/** Whether an entry shows that the agent went on. A request that failed or was aborted before its first word is none. */
const isWork = (entry) =>
  isOf(entry, "toolResult") ||
  (isOf(entry, "assistant") && (!["aborted", "error"].includes(entry.message.stopReason) || hasContent(entry.message)));

const isEnd = (entry) => isOf(entry, "assistant") && ["stop", "length"].includes(entry.message.stopReason);

function says(entry, prompt) {
  const { content } = entry.message;
  const text = typeof content === "string" ? content : content?.find?.((part) => part.type === "text")?.text;
  // Pi appends what it did to attached images behind an empty line.
  return text === prompt || text?.startsWith(`${prompt}\n\n[`) === true;
}

/** What the agent did behind a message: on its branches, for others may have written to the file. */
function workBehind(message, entries) {
  const below = new Set([message.id]);
  return entries.slice(entries.indexOf(message) + 1).filter((entry) => {
    // Nobody knows where half a line belongs.
    if (entry === TORN) return true;
    if (!below.has(entry.parentId)) return false;
    below.add(entry.id);
    return isWork(entry);
  });
}

/**
 * What the entries say of a message that is sent again; `onBranch` says whether an entry is part of the
 * context. `again`: the id of the user message to branch before, when nothing follows it. `delivered`: the
 * agent went on after it; `finished`: to its end. Neither: it is not there.
 */
export function earlierDelivery({ entries, certain }, prompt, onBranch) {
  const users = entries.filter((entry) => isOf(entry, "user"));
  const same = users.filter((entry) => says(entry, prompt));
  // Templates and extensions change a message: behind the mark it is this one all the same.
  const messages = same.length === 0 && certain ? users : same;
  if (messages.length === 0 && certain && entries.some(isWork)) return { delivered: true, finished: false, certain };
  for (const message of messages) {
    const work = workBehind(message, entries);
    if (work.length > 0) return { delivered: true, finished: isEnd(work.at(-1)), certain };
  }
  const again = messages.find((message) => onBranch(message.id))?.id;
  return again === undefined ? {} : { again };
}

/** Why a message that was delivered is not sent a second time. */
export function whyNot({ finished, certain }) {
  if (!certain) {
    return "the session holds this message and work behind it, which may be of this turn or of an earlier one; it is not sent a second time";
  }
  return finished
    ? "the agent had finished its work on this message, and its answer stands in the session; it is not sent a second time"
    : "the agent had begun to work on this message; it is not sent a second time";
}
