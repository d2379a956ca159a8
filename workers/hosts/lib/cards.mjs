// Cards: questions that a turn blocks on, and notices, which nobody answers.
//
// A card is settled once: by an answer, by its abort signal, by its time limit, or by `drain` and
// `close`. Everything but a positive answer settles it with null, and null means no.

import { randomUUID } from "node:crypto";

import { out, plain } from "./wire.mjs";

const NOTICE_LIMIT = 64 * 1024; // characters of one text of a notice

export const cards = {
  open: new Map(),
  closed: false,
  turnId: undefined, // of the running turn, which its cards are bound to

  /** Asks and waits. Resolves to the answer's value, or null for anything but a positive answer. */
  ask(payload, { signal, timeout } = {}) {
    return new Promise((resolve) => {
      let aborted;
      try {
        aborted = signal?.aborted === true;
      } catch {
        aborted = true;
      }
      if (this.closed || aborted) return resolve(null);
      const requestId = randomUUID();
      let timer;
      const withdraw = () => settle(null, true);
      const settle = (value, cancel) => {
        if (!this.open.delete(requestId)) return;
        clearTimeout(timer);
        try {
          signal?.removeEventListener("abort", withdraw);
        } catch {
          // A foreign signal object that cannot be left: it then only fires into nothing.
        }
        if (cancel) out.send("ui_cancel", { requestId });
        resolve(value);
      };
      this.open.set(requestId, { origin: payload.origin, settle });
      try {
        signal?.addEventListener("abort", withdraw, { once: true });
      } catch {
        this.open.delete(requestId);
        return resolve(null);
      }
      if (Number.isFinite(timeout) && timeout > 0) timer = setTimeout(withdraw, timeout);
      const bound = this.turnId === undefined ? {} : { turnId: this.turnId };
      out.send("ui_request", { requestId, ...bound, payload });
    });
  },

  answer(frame) {
    const card = this.open.get(frame.requestId);
    if (card === undefined) return false;
    const value = frame.ok === true ? (typeof frame.value === "string" ? frame.value : "") : null;
    card.settle(value, false);
    return true;
  },

  drain() {
    for (const card of [...this.open.values()]) card.settle(null, true);
  },

  close() {
    this.closed = true;
    for (const card of [...this.open.values()]) card.settle(null, false);
  },

  notice(payload) {
    if (!this.closed) out.send("ui_notice", { payload: plain(payload, { string: NOTICE_LIMIT }) });
  },
};
