// Host for Pi: loads the user's Pi SDK from an absolute package root and speaks the worker protocol,
// version 2, on stdin and stdout (`lib/wire.mjs`). This file holds the state of the host and what each
// request does; the parts that have none are in `pi/`.
//
// Invariants
// - At most one turn runs; the response to its `send` is its end.
// - End of stdin and signals end the process: the run is aborted (which kills a running command) before
//   the session is disposed of, and every step of that has a bound.
//
// It does not hold leases, watch for silence, or end what a tool left behind: the worker above does.
//
// No npm dependency. It must load on Node 16 and later, so that it can say which Node is needed.

import path from "node:path";

// First: it takes stdout away from everything that is loaded after it.
import { HostError, PROTOCOL, bounded, lifecycle, log, messageOf, out, plain, readFrames, report, stackOf } from "./lib/wire.mjs";
import { cards } from "./lib/cards.mjs";
import { earlierDelivery, entriesOfTurn, whyNot } from "./pi/delivery.mjs";
import { lean } from "./pi/events.mjs";
import { loadImages } from "./pi/images.mjs";
import { accountView, availableModels, findModel, modelName, modelView, noModel, providerViews } from "./pi/models.mjs";
import { NODE_MINIMUM, loadPi, readOnlySettings } from "./pi/package.mjs";
import { checkInit, checkThinking, isText, makeFolder, need } from "./pi/requests.mjs";
import { checkSessionPlace, openSession } from "./pi/sessions.mjs";
import { toolPolicy } from "./pi/tools.mjs";
import { extensionUi } from "./pi/ui.mjs";

const ABORT_WAIT = 1000; // ms that a stopping host waits for the run to end
const SETTLE_WAIT = 200; // ms for credential writes under way
const FLUSH_WAIT = 1000; // ms for the reader to take the last frames
const MAX_UNDELIVERED = 256; // messages that the end of a turn names as unread, the first ones
const UNDELIVERED_CHARS = 2000; // of each of them

let loaded; // { pi, root, entry, version }
let runtime; // Pi's ModelRuntime
let settings;
let session; // Pi's AgentSession; stays undefined with inventoryOnly
let unsubscribe;
let initialising = false;
let ready; // what an `init` established: { init, extensions, extensionsError, ungateable }
let turn; // the running `send`: { requestId, turnId, last, usage, aborted, taken, undelivered }
let compacting = false;
let stopping;

// ---------------------------------------------------------------------------------------------------
// Requests

async function doInit(init, requestId) {
  if (initialising || ready) throw new HostError("already_initialised", "this host was initialised before");
  initialising = true;
  try {
    lifecycle("initializing", { requestId });
    checkInit(init);
    prepareEnvironment(init);
    loaded = await loadPi(init.package);
    lifecycle("package_loaded", { requestId, detail: { version: loaded.version, entry: loaded.entry } });
    await startPi(loaded.pi, init);
    const payload = await readyPayload();
    out.send("ready", { requestId, ready: payload });
    lifecycle("ready", { requestId });
    return payload;
  } catch (error) {
    ready = undefined;
    throw error;
  } finally {
    initialising = false;
  }
}

function prepareEnvironment(init) {
  Object.assign(process.env, init.env);
  // Pi looks at whether it is set in some places and at its value in others: any value but 1 is a trap.
  process.env.PI_OFFLINE = "1";
  if (init.agentDir !== undefined) {
    makeFolder(init.agentDir);
    process.env.PI_CODING_AGENT_DIR = init.agentDir;
  }
  if (init.store?.sessionRoot !== undefined) makeFolder(init.store.sessionRoot);
  if (init.store?.sessionStorageDir !== undefined) makeFolder(init.store.sessionStorageDir);
  try {
    process.chdir(init.cwd);
  } catch (error) {
    throw new HostError("cwd_missing", `the folder ${init.cwd} cannot be entered: ${messageOf(error)}`);
  }
}

async function startPi(pi, init) {
  const agentDir = init.agentDir ?? pi.getAgentDir();
  runtime = await pi.ModelRuntime.create({
    authPath: path.join(agentDir, "auth.json"),
    modelsPath: path.join(agentDir, "models.json"),
    modelsStorePath: path.join(agentDir, "models-store.json"),
  });
  if (init.inventoryOnly === true) {
    ready = { init, extensions: [], ungateable: [] };
    return;
  }
  settings = readOnlySettings(pi, agentDir);
  // An extension can run what it likes, so it makes no sense beside a gate.
  const gated = (init.approvalTools ?? []).length > 0;
  const withExtensions = init.extensions === true && !gated;
  const loader = new pi.DefaultResourceLoader({
    cwd: init.cwd,
    agentDir,
    settingsManager: settings,
    packageCommandOutput: "capture",
    noExtensions: !withExtensions,
    noThemes: true,
    extensionFactories: [{ name: "ade-backpressure", hidden: true, factory: backpressure }],
    ...(init.systemPrompt === undefined ? {} : { appendSystemPromptOverride: (own) => [...own, init.systemPrompt] }),
  });
  await loader.reload();
  const policy = toolPolicy(pi, { ...init, extensions: withExtensions }, settings);
  const model = init.modelRef === undefined ? undefined : await findModel(runtime, init.modelRef);
  const created = await pi.createAgentSession({
    cwd: init.cwd,
    agentDir,
    modelRuntime: runtime,
    settingsManager: settings,
    resourceLoader: loader,
    sessionManager: await openSession(pi, init),
    customTools: policy.custom,
    excludeTools: policy.exclude,
    ...(policy.allow === undefined ? {} : { tools: policy.allow }),
    ...(model === undefined ? {} : { model }),
    ...(typeof init.thinkingLevel === "string" ? { thinkingLevel: init.thinkingLevel } : {}),
  });
  await adopt(created, { init, policy, agentDir, withExtensions, gated, model });
}

async function adopt({ session: made, extensionsResult, modelFallbackMessage }, context) {
  const { init, policy, agentDir, withExtensions, gated, model } = context;
  session = made;
  try {
    if (session.model === undefined || session.model.provider === "unknown") throw noModel(runtime, agentDir);
    if (model !== undefined && modelName(session.model) !== modelName(model)) {
      throw new HostError("model_not_found", `Pi chose ${modelName(session.model)} instead of ${modelName(model)}`);
    }
    checkSessionPlace(init.store.sessionRoot, session.sessionFile);
    unsubscribe = session.subscribe(onEvent);
    const ui = withExtensions ? { uiContext: extensionUi() } : {};
    await session.bindExtensions({ mode: "rpc", ...ui, onError: onExtensionError });
    const inactive = policy.activate.filter((name) => !session.getActiveToolNames().includes(name));
    if (inactive.length > 0) session.setActiveToolsByName([...session.getActiveToolNames(), ...inactive]);
  } catch (error) {
    unsubscribe?.();
    session.dispose();
    session = undefined;
    throw error;
  }
  if (modelFallbackMessage) log("warn", modelFallbackMessage);
  const errors = (extensionsResult?.errors ?? []).map(({ path: file, error }) => `${file}: ${error}`);
  if (init.extensions === true && gated) errors.unshift("extensions are off because tools need approval");
  ready = { init, extensions: extensionViews(extensionsResult), extensionsError: errors.join("; "), ungateable: policy.ungateable };
}

function extensionViews(result) {
  const shown = (result?.extensions ?? []).filter((extension) => !extension.hidden && path.isAbsolute(extension.resolvedPath ?? ""));
  return shown.map(({ resolvedPath: id }) => {
    const base = path.basename(id, path.extname(id));
    return { id, name: base === "index" ? path.basename(path.dirname(id)) : base };
  });
}

/** Pi awaits the handlers of extensions before it reads on: so a slow reader slows the model down. */
function backpressure(api) {
  for (const event of ["provider_stream_event", "message_update", "message_end", "tool_execution_end"]) api.on(event, () => out.drained());
}

const onExtensionError = (error) =>
  report("extension", error?.error ?? error, { detail: plain({ extension: error?.extensionPath, event: error?.event }) });

function onEvent(event) {
  // A listener that throws would make the prompt fail.
  try {
    if (turn && event.type === "message_end" && event.message?.role === "assistant") noteAnswer(event.message);
    if (turn && event.type === "agent_settled") turn.aborted ||= event.aborted === true;
    const kept = lean(event);
    if (kept === undefined) return;
    out.send("sdk_event", { ...(turn ? { requestId: turn.requestId } : {}), event: kept });
  } catch (error) {
    report("event", error, { detail: { type: String(event?.type) } });
  }
}

function noteAnswer(message) {
  turn.last = message;
  const { usage } = message;
  if (!usage) return;
  turn.usage ??= { input: 0, output: 0, cacheRead: 0, cacheWrite: 0, reasoning: 0, totalTokens: 0, cost: 0 };
  for (const key of ["input", "output", "cacheRead", "cacheWrite", "reasoning", "totalTokens"]) {
    turn.usage[key] += Number(usage[key]) || 0;
  }
  turn.usage.cost += Number(usage.cost?.total) || 0;
}

async function doSend(request, requestId) {
  needSession();
  need(typeof request.prompt === "string", "prompt must be a text");
  if (turn || compacting || !session.isIdle) {
    throw new HostError("busy", compacting ? "the session is being compacted" : "a turn is running");
  }
  turn = { requestId, turnId: request.turnId, taken: [], undelivered: [] };
  cards.turnId = request.turnId;
  out.released = false;
  try {
    const images = loadImages(request.images);
    if (request.recovery?.forceExpireActiveRun === true) await expireEarlierDelivery(request);
    lifecycle("prompt_started", { requestId });
    if (!turn.aborted) {
      // Pi's own abort does nothing while a prompt is being prepared: what came then is done at the start.
      const preflightResult = () => {
        if (turn?.aborted) stopRun().catch((error) => report("abort", error));
      };
      const extra = images.length > 0 ? { images } : {};
      await session.prompt(request.prompt, { source: "rpc", preflightResult, ...extra });
    }
    const result = turnResult();
    lifecycle("prompt_finished", { requestId, detail: { status: result.status } });
    return result;
  } catch (error) {
    lifecycle("prompt_failed", { requestId, detail: { error: messageOf(error) } });
    throw error;
  } finally {
    turn = undefined;
    cards.turnId = undefined;
  }
}

function turnResult() {
  clearQueue();
  const { last, usage, aborted, undelivered } = turn;
  const result = { status: "completed", ...(usage ? { usage } : {}) };
  if (undelivered.length > 0) result.undelivered = undelivered;
  if (last?.stopReason) result.stopReason = last.stopReason;
  if (aborted || last?.stopReason === "aborted") {
    result.status = "interrupted";
    result.stopReason = "aborted";
  } else if (last?.stopReason === "error") {
    result.status = "failed";
    result.error = last.errorMessage ?? "the model ended with an error";
  }
  return result;
}

/** Makes a message that is sent again stand once in the context. */
async function expireEarlierDelivery({ prompt, recovery }) {
  const manager = session.sessionManager;
  const branch = new Set(manager.getBranch().map((entry) => entry.id));
  const found = earlierDelivery(entriesOfTurn(session.sessionFile, recovery.sessionMark), prompt, (id) => branch.has(id));
  if (found.delivered) throw new HostError("delivered_outcome_unknown", whyNot(found));
  const { again } = found;
  if (again === undefined) return;
  // Pi does not move from an entry to the place before that same entry, so the end is put behind it.
  if (manager.getLeafId() === again) manager.appendCustomEntry("ade_sent_again", {});
  const moved = await session.navigateTree(again);
  if (moved.cancelled) throw new HostError("recovery_refused", "an extension kept the session from going back before the unanswered message");
}

async function doQueue(request, how) {
  needSession();
  need(typeof request.prompt === "string", "prompt must be a text");
  const noTurn = () => new HostError("no_turn", "no turn is running; send the message as a turn of its own");
  if (!turn || !session.isStreaming) throw noTurn();
  const images = loadImages(request.images);
  const own = { text: request.prompt, prompt: request.prompt };
  const { taken } = turn;
  taken.push(own);
  const outcome = await session[how](request.prompt, images.length > 0 ? images : undefined, { source: "rpc" });
  // Pi keeps a template in its expanded form, and what an extension made of it.
  const waits = how === "steer" ? session.getSteeringMessages() : session.getFollowUpMessages();
  const newest = waits.at(-1);
  if (newest !== undefined && !taken.some(({ text }) => text === newest)) own.text = newest;
  if (!turn && waits.includes(own.text)) {
    clearQueue();
    throw noTurn();
  }
  return outcome;
}

/** Takes back what Pi has not read: it would go on with it, or begin the next turn with it. */
function clearQueue() {
  if (session.pendingMessageCount === 0) return;
  const { steering, followUp } = session.clearQueue();
  if (!turn) return;
  for (const text of [...steering, ...followUp]) {
    // Extensions queue messages too: of those the user knows nothing.
    const at = turn.taken.findLastIndex((one) => one.text === text);
    if (at < 0 || turn.undelivered.length >= MAX_UNDELIVERED) continue;
    const [{ prompt }] = turn.taken.splice(at, 1);
    turn.undelivered.push([...prompt].slice(0, UNDELIVERED_CHARS).join(""));
  }
}

async function doAbort(request, requestId) {
  needSession();
  if (request.turnId !== undefined && turn?.turnId !== undefined && request.turnId !== turn.turnId) return null;
  if (turn) turn.aborted = true;
  await stopRun();
  lifecycle("aborted", { requestId });
  return null;
}

/** Withdraws the cards, forgets queued messages (Pi would go on with them) and ends the run. */
async function stopRun() {
  out.released = true;
  out.wake();
  cards.drain();
  clearQueue();
  await session.abort();
}

async function doCompact(request) {
  needSession();
  if (turn || compacting) throw new HostError("busy", compacting ? "the session is being compacted" : "a turn is running");
  compacting = true;
  try {
    await session.compact(isText(request.customInstructions) ? request.customInstructions : undefined);
    return null;
  } finally {
    compacting = false;
  }
}

async function doSetModel(request) {
  needSession();
  await session.setModel(await findModel(runtime, request.modelRef));
  return readyPayload();
}

async function doSetThinking(request) {
  needSession();
  let level = request.thinkingLevel ?? null;
  if (level === null) {
    const { provider, id } = session.model;
    level = settings.getModelThinkingLevel?.(provider, id) ?? settings.getDefaultThinkingLevel() ?? "medium";
  }
  checkThinking(level);
  session.setThinkingLevel(level);
  return readyPayload();
}

function doContextUsage() {
  needSession();
  const usage = session.getContextUsage();
  if (!usage || usage.tokens === null) return null;
  return { tokens: usage.tokens, contextWindow: usage.contextWindow, percent: usage.percent };
}

function doAuth() {
  needReady();
  return providerViews(runtime);
}

function needReady() {
  if (!ready) throw new HostError("not_ready", "the host has not been initialised");
}

function needSession() {
  needReady();
  if (!session) throw new HostError("no_session", "this host was started for the inventory only");
}

const HANDLERS = {
  init: doInit,
  send: doSend,
  steer: async (request) => ({ outcome: (await doQueue(request, "steer")) === "queued" ? "queued" : "delivered" }),
  follow_up: async (request) => {
    await doQueue(request, "followUp");
    return null;
  },
  abort: doAbort,
  set_model: doSetModel,
  set_thinking: doSetThinking,
  compact: doCompact,
  context_usage: doContextUsage,
  models: () => {
    needReady();
    return availableModels(runtime);
  },
  auth: doAuth,
};
for (const type of ["login", "login_cancel", "fork"]) {
  HANDLERS[type] = () => {
    throw new HostError("unsupported", `the Pi host has no ${type}`);
  };
}

async function readyPayload() {
  const { init, extensions, extensionsError, ungateable } = ready;
  const payload = {
    protocolVersion: PROTOCOL,
    provider: "pi",
    version: loaded.version,
    packageRoot: loaded.root,
    packageEntry: loaded.entry,
    node: process.versions.node,
    availableModels: await availableModels(runtime),
    capabilities: {
      steer: session !== undefined,
      follow_up: session !== undefined,
      compact: session !== undefined,
      images: session !== undefined,
      models: true,
      fork: false,
      login: false,
      interrupt_and_continue: false,
    },
  };
  if (session === undefined) return payload;
  return {
    ...payload,
    sessionFile: session.sessionFile,
    sessionId: session.sessionId,
    currentModel: modelView(session.model),
    thinkingLevel: session.thinkingLevel,
    account: await accountView(runtime, session.model),
    tools: session.getActiveToolNames(),
    ...(init.extensions === true ? { extensions } : {}),
    ...(extensionsError ? { extensionsError } : {}),
    ...(ungateable.length > 0 ? { ungateableTools: ungateable } : {}),
  };
}

// ---------------------------------------------------------------------------------------------------
// Input

const unknownTypes = new Set();

async function onFrame(frame) {
  const { type, requestId } = frame;
  if (type === "ui_response") {
    cards.answer(frame);
    return;
  }
  if (type === "dispose") {
    await stop({ code: 0, requestId });
    return;
  }
  const handler = Object.hasOwn(HANDLERS, type) ? HANDLERS[type] : undefined;
  if (handler === undefined) {
    if (unknownTypes.size < 100 && !unknownTypes.has(type)) {
      unknownTypes.add(type);
      log("warn", `a frame of the unknown type ${String(type).slice(0, 100)} was skipped`);
    }
    return;
  }
  if (typeof requestId !== "string" || requestId === "") {
    report("receive", `a ${type} frame has no requestId`);
    return;
  }
  try {
    if (stopping) throw new HostError("stopping", "the host is being stopped");
    const result = (await handler(frame.payload ?? frame, requestId)) ?? null;
    out.send("response", { requestId, ok: true, result });
  } catch (error) {
    out.send("response", {
      requestId,
      ok: false,
      error: messageOf(error),
      errorCode: error instanceof HostError ? error.code : "provider_error",
    });
  }
}

// ---------------------------------------------------------------------------------------------------
// Stopping

/** Ends the process, once: cards, run, session, frames, exit. A second caller waits for the first. */
async function stop({ code, requestId }) {
  const first = stopping === undefined;
  stopping ??= endSession();
  await stopping;
  if (requestId !== undefined) out.send("response", { requestId, ok: true, result: null });
  if (!first) return;
  await bounded(out.flushed(), FLUSH_WAIT);
  process.exit(code);
}

async function endSession() {
  try {
    cards.close();
    if (session) {
      if (turn) turn.aborted = true;
      await bounded(stopRun(), ABORT_WAIT);
      // What the end of the run set off, the last response above all, comes before the session's end.
      await new Promise((resolve) => setImmediate(resolve));
      unsubscribe?.();
      session.dispose();
    }
    await bounded(Promise.resolve(runtime?.settleCredentialWrites?.()), SETTLE_WAIT);
  } catch (error) {
    report("dispose", error);
  }
  lifecycle("disposed");
}

process.on("SIGTERM", () => stop({ code: 143 }));
process.on("SIGHUP", () => stop({ code: 129 }));
process.on("SIGINT", () => stop({ code: 130 }));
process.on("unhandledRejection", (error) => report("unhandledRejection", error, { detail: { stack: stackOf(error) } }));
process.on("uncaughtException", (error) => {
  report("uncaughtException", error, { detail: { stack: stackOf(error) } });
  stop({ code: 70 });
});

// ---------------------------------------------------------------------------------------------------

const node = process.versions.node.split(".").map(Number);
if (node[0] < NODE_MINIMUM[0] || (node[0] === NODE_MINIMUM[0] && node[1] < NODE_MINIMUM[1])) {
  const text = `Pi needs Node ${NODE_MINIMUM.join(".")} or newer; ${process.execPath} is ${process.versions.node}. Install a newer Node, or point to one.`;
  report("start", text, { errorCode: "node_too_old", detail: { errorCode: "node_too_old", node: process.versions.node } });
  out.flushed().then(() => process.exit(78));
} else {
  lifecycle("worker_started", { detail: { pid: process.pid, node: process.versions.node } });
  readFrames(onFrame, () => stop({ code: 0 }));
}
