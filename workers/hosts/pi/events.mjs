// Pi's events without what repeats earlier events. Pi sends snapshots that grow with the answer; passed on
// as they are, traffic would grow with the square of it.

import { out, plain } from "../lib/wire.mjs";

const PARTIAL_LIMIT = 16 * 1024; // characters of a running tool's output: its tail
const RESULT_LIMIT = 1024 * 1024; // characters of one string in a tool's input or result
const SCALAR_LIMIT = 4096; // characters of a text beside a tool's output
const WHOLE_OUTPUT = ["output", "data", "content", "text"];

let heldSurrogate = ""; // first half of a character whose second half is in the next delta

/** Pi's event without what repeats earlier events; undefined for what a receiver has no use for. */
export function lean(event) {
  switch (event.type) {
    case "message_start":
      return leanMessage(event, false);
    case "message_end":
      return leanMessage(event, true);
    case "message_update":
      return leanUpdate(event);
    case "turn_end":
      return { type: event.type, stopReason: event.message?.stopReason, toolResults: event.toolResults?.length ?? 0 };
    case "agent_end":
      return { type: event.type, willRetry: event.willRetry === true };
    case "tool_execution_start":
      return plain(event, { string: RESULT_LIMIT });
    case "tool_execution_update":
      return out.congested ? undefined : leanPartial(event);
    case "tool_execution_end":
      return leanResult(event);
    case "entry_appended":
      return { type: event.type, entry: { type: event.entry?.type, id: event.entry?.id } };
    case "compaction_end": {
      const { summary, details, ...result } = event.result ?? {};
      return plain({ ...event, result: event.result && { ...result, summaryLength: summary?.length ?? 0 } });
    }
    default:
      return plain(event, { string: RESULT_LIMIT });
  }
}

function leanMessage(event, whole) {
  const { message } = event;
  if (message.role === "system") return undefined;
  if (message.role === "assistant" && !whole) {
    const { provider, model, stopReason, timestamp } = message;
    return { type: event.type, message: { role: "assistant", provider, model, stopReason, timestamp } };
  }
  if (message.role === "toolResult") {
    const { role, toolCallId, toolName, isError } = message;
    return { type: event.type, message: { role, toolCallId, toolName, isError } };
  }
  const { content, ...rest } = message;
  // A prompt can be long, and its start has shown it.
  if (message.role === "user" && whole) return { type: event.type, message: plain(rest) };
  return { type: event.type, message: plain({ ...message, content: withoutImages(content) }) };
}

const withoutImages = (content) =>
  Array.isArray(content)
    ? content.map((part) =>
        part?.type === "image" ? { type: "image", mimeType: part.mimeType, bytes: Math.floor(((part.data?.length ?? 0) * 3) / 4) } : part,
      )
    : content;

function leanUpdate(event) {
  const { type, contentIndex, delta, partial } = event.assistantMessageEvent;
  const kept = { type, contentIndex };
  if (typeof delta === "string") {
    kept.delta = heldSurrogate + delta;
    heldSurrogate = "";
    if (/[\uD800-\uDBFF]$/.test(kept.delta)) {
      heldSurrogate = kept.delta.slice(-1);
      kept.delta = kept.delta.slice(0, -1);
    }
  } else {
    heldSurrogate = "";
  }
  if (type === "toolcall_start" || type === "toolcall_end") {
    const call = event.assistantMessageEvent.toolCall ?? partial?.content?.[contentIndex];
    kept.toolCallId = call?.id;
    kept.toolName = call?.name;
  }
  return { type: event.type, assistantMessageEvent: kept };
}

function leanPartial(event) {
  const { type, toolCallId, toolName, parentToolCallId, partialResult } = event;
  const text = (partialResult?.content ?? []).map((part) => part?.text ?? "").join("");
  const truncated = text.length > PARTIAL_LIMIT;
  const tail = truncated ? text.slice(-PARTIAL_LIMIT) : text;
  return {
    type, toolCallId, toolName, ...(parentToolCallId ? { parentToolCallId } : {}),
    partialResult: { content: tail === "" ? [] : [{ type: "text", text: tail }] },
    ...(truncated ? { truncated } : {}),
  };
}

function leanResult(event) {
  const { content, structuredContent, details, ...rest } = event.result ?? {};
  const kept = { ...rest, content: withoutImages(content) };
  const structured = scalars(structuredContent);
  if (Object.keys(structured).length > 0) kept.structuredContent = structured;
  if (details !== undefined) {
    // What was cut off is noted; the kept text stands in the content already.
    const { truncation, ...others } = details ?? {};
    kept.details = truncation ? { ...others, truncation: scalars(truncation) } : others;
  }
  return plain({ ...event, result: kept }, { string: RESULT_LIMIT });
}

/** The small values of an object. Pi puts the whole output, without a limit, beside them. */
function scalars(object) {
  const entries = Object.entries(object && typeof object === "object" ? object : {});
  const small = ([key, value]) =>
    !WHOLE_OUTPUT.includes(key) && (typeof value !== "object" || value === null) && String(value).length <= SCALAR_LIMIT;
  return Object.fromEntries(entries.filter(small));
}
