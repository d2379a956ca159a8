// Pi's tools: the policy of an `init`, the approval gate, and `ask_user`.
//
// A gated tool is rebuilt from Pi's own factory and runs only after an answer that is exactly `allow` or
// `allow_session`. A tool that should be gated and has no factory is withheld. `allow_session` is not
// remembered here: the worker answers the next card itself.

import { cards } from "../lib/cards.mjs";
import { plain } from "../lib/wire.mjs";

export const GRANTABLE_TOOLS = ["read", "bash", "edit", "write"];

const BUILTIN_TOOLS = [...GRANTABLE_TOOLS, "powershell", "grep", "find", "ls"];
const TOOL_FACTORIES = {
  read: "createReadToolDefinition",
  bash: "createBashToolDefinition",
  edit: "createEditToolDefinition",
  write: "createWriteToolDefinition",
};
const INPUT_LIMIT = 1024 * 1024; // characters of one string of the input that a card shows

/** Wraps a tool so that each call asks first. The shown input is the very input that runs. */
function gate(definition) {
  return {
    ...definition,
    async execute(toolCallId, params, signal, onUpdate, context) {
      const input = structuredClone(params);
      const answer = await cards.ask(
        {
          origin: "approval",
          kind: "confirm",
          title: `Run ${definition.name}?`,
          message: callSummary(input),
          sourceId: definition.name,
          detail: { toolCallId, input: plain(input, { string: INPUT_LIMIT }) },
        },
        { signal },
      );
      if (signal?.aborted) throw new Error("The call was cancelled before it was allowed.");
      if (answer !== "allow" && answer !== "allow_session") {
        throw new Error(`The user denied this call of ${definition.name}. It did not run.`);
      }
      return definition.execute(toolCallId, input, signal, onUpdate, context);
    },
  };
}

/** One line that says what a call would do. */
function callSummary(input) {
  for (const key of ["command", "filePath", "path", "file"]) {
    if (typeof input?.[key] === "string" && input[key] !== "") return input[key];
  }
  const text = JSON.stringify(input) ?? "";
  return text.length > 300 ? `${text.slice(0, 299)}…` : text;
}

/** The tool policy of an `init`: what to pass to Pi, and what cannot be offered. */
export function toolPolicy(pi, init, settings) {
  const { cwd } = init;
  const requested = init.tools ?? settings.getDefaultTools?.() ?? GRANTABLE_TOOLS;
  const custom = [];
  const ungateable = [];
  for (const name of new Set(init.approvalTools ?? [])) {
    if (!BUILTIN_TOOLS.includes(name) || !requested.includes(name)) continue;
    const factory = pi[TOOL_FACTORIES[name]];
    if (typeof factory !== "function") {
      ungateable.push(name);
      continue;
    }
    const options =
      name === "bash"
        ? { shellPath: settings.getShellPath?.(), commandPrefix: settings.getShellCommandPrefix?.() }
        : name === "read"
          ? { autoResizeImages: settings.getImageAutoResize?.() }
          : undefined;
    custom.push(gate(factory(cwd, options)));
  }
  if (init.askUserTool === true) custom.push(askUserTool());
  const names = custom.map((tool) => tool.name);
  if (init.extensions) {
    // Tools of extensions stay, so only the built-in ones that were not granted are named.
    const exclude = BUILTIN_TOOLS.filter((name) => init.tools && !init.tools.includes(name));
    return { custom, ungateable, exclude: [...exclude, ...ungateable], activate: [...(init.tools ?? []), ...names] };
  }
  if (init.tools === undefined) return { custom, ungateable, exclude: ungateable, activate: [] };
  const allow = [...init.tools.filter((name) => !ungateable.includes(name)), ...names];
  return { custom, ungateable, allow: [...new Set(allow)], exclude: [], activate: [] };
}

const UNANSWERED =
  "The user did not answer. Do not guess and do not ask with this tool again: stop here and put the question to them in plain prose.";

function askUserTool() {
  return {
    name: "ask_user",
    label: "Ask the user",
    description:
      "Ask the user one question and wait for the answer. Use it when the work cannot go on without a decision that only the user can make. Give options when the likely answers are known.",
    parameters: {
      type: "object",
      properties: {
        question: { type: "string", description: "The question, complete in itself" },
        header: { type: "string", description: "A heading of a few words" },
        options: {
          type: "array",
          description: "Answers to choose from",
          items: {
            type: "object",
            properties: { label: { type: "string" }, description: { type: "string" } },
            required: ["label"],
          },
        },
      },
      required: ["question"],
    },
    async execute(_toolCallId, params, signal) {
      const options = Array.isArray(params.options) ? params.options : [];
      const wire = options.map((option, index) => ({
        value: String(index),
        label: String(option.label),
        ...(option.description ? { description: String(option.description) } : {}),
      }));
      const answer = await cards.ask(
        {
          origin: "tool",
          kind: wire.length > 0 ? "select" : "text",
          message: String(params.question),
          sourceId: "ask_user",
          ...(params.header ? { title: String(params.header) } : {}),
          ...(wire.length > 0 ? { options: wire } : {}),
        },
        { signal },
      );
      return { content: [{ type: "text", text: answerText(answer, wire) }], details: {} };
    },
  };
}

function answerText(answer, options) {
  if (answer === null) return UNANSWERED;
  const chosen = options.find((option) => option.value === answer);
  if (chosen) return `The user chose: ${chosen.label}`;
  return options.length > 0 ? `The user typed an answer of their own: ${answer}` : `The user answered: ${answer}`;
}
