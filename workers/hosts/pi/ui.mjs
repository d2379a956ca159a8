// What Pi's extensions may show and ask: their UI calls become cards and notices.

import { cards } from "../lib/cards.mjs";

/** Pi's extension UI as far as the wire can carry it. What needs a terminal does nothing, and says so once. */
export function extensionUi() {
  const said = new Map();
  const warned = new Set();
  const notice = (level, message, sourceId) =>
    cards.notice({ origin: "extension", level, message: String(message), ...(sourceId ? { sourceId } : {}) });
  const changed = (key, text) => {
    if (text === undefined || text === "" || said.get(key) === text) return false;
    said.set(key, text);
    return true;
  };
  const ask = (payload, options) => cards.ask({ origin: "extension", ...payload }, options);
  const known = {
    async select(title, labels, options) {
      const shown = distinct(labels.map(String));
      const wire = shown.map((label, index) => ({ value: String(index), label }));
      const answer = await ask({ kind: "select", message: String(title), options: wire }, options);
      return answer === null ? undefined : labels[wire.findIndex((option) => option.value === answer)];
    },
    async confirm(title, message, options) {
      const answer = await ask({ kind: "confirm", title: String(title), message: String(message) }, options);
      return answer === "yes" || answer === "allow" || answer === "allow_session";
    },
    async input(title, placeholder, options) {
      const hint = placeholder ? { placeholder: String(placeholder) } : {};
      return (await ask({ kind: "text", message: String(title), ...hint }, options)) ?? undefined;
    },
    async editor(title, prefill) {
      const start = prefill ? { defaultValue: String(prefill) } : {};
      return (await ask({ kind: "text", message: String(title), ...start })) ?? prefill;
    },
    notify: (message, type) =>
      notice(type === "error" ? "error" : type === "warning" ? "warn" : "info", message),
    setStatus: (key, text) => changed(`status:${key}`, text) && notice("progress", text, String(key)),
    setWorkingMessage: (text) => changed("working", text) && notice("progress", text),
    setTitle: (text) => changed("title", text) && notice("info", text),
    getEditorText: () => "",
    getEditorComponent: () => undefined,
    getToolsExpanded: () => false,
    getAllThemes: () => [],
    getTheme: () => undefined,
    setTheme: () => ({ success: false, error: "There is no terminal here." }),
    theme: plainTheme(),
  };
  for (const name of ["setWorkingVisible", "setWorkingIndicator", "setHiddenThinkingLabel", "setToolsExpanded"]) {
    known[name] = () => undefined;
  }
  const needTerminal = ["setWidget", "setFooter", "setHeader", "custom", "onTerminalInput", "pasteToEditor", "setEditorText"];
  for (const name of [...needTerminal, "addAutocompleteProvider", "setEditorComponent"]) {
    known[name] = () => {
      if (!warned.has(name)) {
        warned.add(name);
        notice("warn", `An extension used ${name}, which needs Pi's own terminal interface; it has no effect here.`);
      }
      return name === "onTerminalInput" ? () => undefined : undefined;
    };
  }
  return known;
}

/** A theme that leaves every text as it is: the text is the last argument of all its functions. */
function plainTheme() {
  const plainText = (...args) => String(args.at(-1) ?? "");
  return new Proxy({}, { get: (_, key) => (typeof key === "symbol" || key === "then" ? undefined : plainText) });
}

/** Gives doubled labels a number, so that a human can tell them apart. */
function distinct(labels) {
  const seen = new Map();
  return labels.map((label) => {
    const count = (seen.get(label) ?? 0) + 1;
    seen.set(label, count);
    return count === 1 ? label : `${label} (${count})`;
  });
}
