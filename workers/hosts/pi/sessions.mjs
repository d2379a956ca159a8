// Pi's session files: which one an `init` means.
//
// A file is opened only inside the store's root and only with the lane's own header. A session that cannot
// be found is an error, never a fresh one.

import fs from "node:fs";
import path from "node:path";

import { HostError, messageOf } from "../lib/wire.mjs";

const HEADER_LIMIT = 64 * 1024; // bytes of the first line of a session file

function readHeader(file) {
  const fd = fs.openSync(file, "r");
  let head;
  try {
    const buffer = Buffer.alloc(HEADER_LIMIT);
    head = buffer.subarray(0, fs.readSync(fd, buffer, 0, HEADER_LIMIT, 0));
  } finally {
    fs.closeSync(fd);
  }
  const end = head.indexOf(10);
  const line = head.subarray(0, end < 0 ? head.length : end).toString("utf8").replace(/^\uFEFF/, "");
  const header = JSON.parse(line);
  if (header?.type !== "session") throw new Error("its first line is not a session header");
  return header;
}

/** Why a session file may not be opened, or undefined when it may. */
function sessionProblem(pi, file, { cwd, sessionRoot, sessionId }) {
  let header;
  try {
    const root = fs.realpathSync(sessionRoot);
    const real = fs.realpathSync(file);
    if (!real.startsWith(root.endsWith(path.sep) ? root : root + path.sep)) {
      return `${file} is not inside the session store ${sessionRoot}`;
    }
    header = readHeader(real);
  } catch (error) {
    return `${file} is not a readable session: ${messageOf(error)}; put the session's own file there, or start a new chat`;
  }
  if (header.cwd !== cwd) return `${file} belongs to ${header.cwd ?? "no folder"}, not to ${cwd}`;
  if (sessionId !== undefined && header.id !== sessionId) return `${file} is session ${header.id}, not ${sessionId}`;
  if (Number(header.version) > pi.CURRENT_SESSION_VERSION) {
    return `${file} has format version ${header.version}; this Pi writes version ${pi.CURRENT_SESSION_VERSION}. Upgrade Pi to go on with it`;
  }
  return undefined;
}

async function findSession(pi, { cwd, sessionId, storage }) {
  if (typeof pi.SessionManager.findById === "function") return pi.SessionManager.findById(cwd, sessionId, storage);
  return (await pi.SessionManager.list(cwd, storage)).find((session) => session.id === sessionId)?.path;
}

/** The session of this folder that was written to last. */
function newestSession(pi, dir, wanted) {
  const files = fs.readdirSync(dir).filter((name) => name.endsWith(".jsonl")).map((name) => path.join(dir, name));
  const dated = files.map((file) => ({ file, at: fs.statSync(file).mtimeMs })).sort((a, b) => b.at - a.at);
  return dated.find(({ file }) => sessionProblem(pi, file, wanted) === undefined)?.file;
}

export async function openSession(pi, init) {
  const { cwd, store, session = {} } = init;
  const storage = store.sessionStorageDir;
  const { sessionFile, sessionId, resume } = session;
  const wanted = { cwd, sessionRoot: store.sessionRoot, sessionId };
  let problem;
  if (sessionFile !== undefined) {
    problem = sessionProblem(pi, sessionFile, wanted);
    if (problem === undefined) return pi.SessionManager.open(sessionFile);
    if (sessionId === undefined) throw new HostError("session_invalid", problem);
  }
  if (sessionId !== undefined) {
    const found = await findSession(pi, { cwd, sessionId, storage });
    if (found === undefined && sessionFile === undefined && resume === false) {
      return pi.SessionManager.create(cwd, storage, { id: sessionId });
    }
    if (found === undefined) {
      throw new HostError("session_not_found", `there is no session ${sessionId} of ${cwd}${problem ? `; ${problem}` : ""}`);
    }
    if (resume === false && sessionFile === undefined) {
      throw new HostError("session_exists", `session ${sessionId} exists already: ${found}`);
    }
    problem = sessionProblem(pi, found, wanted);
    if (problem !== undefined) throw new HostError("session_invalid", problem);
    return pi.SessionManager.open(found);
  }
  const fresh = pi.SessionManager.create(cwd, storage);
  if (resume !== true) return fresh;
  const newest = newestSession(pi, fresh.getSessionDir(), wanted);
  if (newest === undefined) throw new HostError("session_not_found", `there is no earlier session of ${cwd}`);
  return pi.SessionManager.open(newest);
}

/** A new session must lie in the store as well, or nobody could find and lock it. */
export function checkSessionPlace(sessionRoot, file) {
  let folder = path.dirname(file);
  while (!fs.existsSync(folder)) folder = path.dirname(folder);
  const [root, real] = [fs.realpathSync(sessionRoot), fs.realpathSync(folder)];
  if (real !== root && !real.startsWith(root + path.sep)) {
    throw new HostError("session_invalid", `Pi would keep this session at ${file}, outside the session store ${sessionRoot}`);
  }
}
