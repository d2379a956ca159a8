// What requests must look like. Everything here either returns or throws `invalid_request`.

import fs from "node:fs";
import path from "node:path";

import { HostError, messageOf } from "../lib/wire.mjs";
import { GRANTABLE_TOOLS } from "./tools.mjs";

export const THINKING_LEVELS = ["off", "minimal", "low", "medium", "high", "xhigh", "max"];

export const isText = (value) => typeof value === "string" && value.trim() !== "";

export function need(condition, message) {
  if (!condition) throw new HostError("invalid_request", message);
}

export function needPath(value, name, optional) {
  if (optional && value === undefined) return;
  need(isText(value) && path.isAbsolute(value), `${name} must be an absolute path`);
}

export function checkInit(init) {
  needPath(init.cwd, "cwd");
  needPath(init.agentDir, "agentDir", true);
  needPath(init.package?.packageRoot, "package.packageRoot", true);
  needPath(init.package?.packageEntry, "package.packageEntry", true);
  if (init.inventoryOnly !== true) needPath(init.store?.sessionRoot, "store.sessionRoot");
  needPath(init.store?.sessionStorageDir, "store.sessionStorageDir", true);
  needPath(init.session?.sessionFile, "session.sessionFile", true);
  need(init.session?.sessionId === undefined || isText(init.session.sessionId), "session.sessionId must be a text");
  need(init.systemPrompt === undefined || typeof init.systemPrompt === "string", "systemPrompt must be a text");
  if (init.thinkingLevel !== undefined && init.thinkingLevel !== null) checkThinking(init.thinkingLevel);
  for (const name of ["tools", "approvalTools"]) {
    const list = init[name];
    if (list === undefined) continue;
    need(Array.isArray(list) && list.every((tool) => typeof tool === "string"), `${name} must be a list of names`);
  }
  const odd = (init.tools ?? []).filter((tool) => !GRANTABLE_TOOLS.includes(tool));
  need(odd.length === 0, `tools: ${odd.join(", ")} cannot be granted; choose from ${GRANTABLE_TOOLS.join(", ")}`);
  for (const [name, value] of Object.entries(init.env ?? {})) {
    need(typeof value === "string", `env.${name} must be a text`);
  }
}

export function checkThinking(level) {
  need(THINKING_LEVELS.includes(level), `thinkingLevel ${JSON.stringify(level)} is unknown; choose from ${THINKING_LEVELS.join(", ")}`);
}

export function makeFolder(dir) {
  try {
    fs.mkdirSync(dir, { recursive: true, mode: 0o700 });
  } catch (error) {
    throw new HostError("invalid_request", `${dir} cannot be made: ${messageOf(error)}`);
  }
}
