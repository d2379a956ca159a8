// Finding, checking and loading the user's Pi from an absolute package root, and reading its settings.
//
// package.json is read and judged before any of Pi's code runs, so that a wrong package is a sentence and
// not a stack. The user's settings are read and never written.

import fs from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";

import { HostError, messageOf } from "../lib/wire.mjs";

export const NODE_MINIMUM = [22, 19];

const PACKAGE_NAME = "@earendil-works/pi-coding-agent";
const PACKAGE_NAMES_BEFORE_1 = ["@mariozechner/pi-coding-agent"];

function loadManifest(root) {
  const file = path.join(root, "package.json");
  let text;
  try {
    text = fs.readFileSync(file, "utf8");
  } catch (error) {
    if (error.code === "ENOENT" || error.code === "ENOTDIR") {
      throw new HostError("package_missing", `Pi is not installed at ${root}: there is no package.json. Install ${PACKAGE_NAME} with npm, or point to where it is.`);
    }
    throw new HostError("package_unreadable", `${file} cannot be read: ${messageOf(error)}`);
  }
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new HostError("package_unreadable", `${file} is not JSON: ${messageOf(error)}. Install Pi again.`);
  }
}

function checkManifest(manifest, root) {
  const { name, version } = manifest;
  const major = /^(\d+)\./.exec(String(version));
  if (PACKAGE_NAMES_BEFORE_1.includes(name) || (name === PACKAGE_NAME && major && Number(major[1]) < 1)) {
    throw new HostError("version_unsupported", `${root} holds ${name} ${version}; Pi 1.0 or newer is needed. Install ${PACKAGE_NAME}@latest with Node ${NODE_MINIMUM.join(".")} or newer.`);
  }
  if (name !== PACKAGE_NAME || !major) {
    throw new HostError("package_unreadable", `${root} holds ${name ?? "a package without a name"} ${version ?? "without a version"}, not ${PACKAGE_NAME}.`);
  }
}

function packageEntry(manifest, root, given) {
  const bundle = path.join(root, "dist", "bundle", "index.js");
  const main = manifest.exports?.["."];
  const named = typeof main === "string" ? main : main?.import;
  const entry = given ?? (fs.existsSync(bundle) ? bundle : path.join(root, named ?? manifest.main ?? "dist/index.js"));
  if (!fs.existsSync(entry)) {
    throw new HostError("package_unreadable", `Pi at ${root} is incomplete: ${entry} does not exist. Install it again.`);
  }
  return entry;
}

export async function loadPi(location) {
  let root = location?.packageRoot;
  if (root === undefined && location?.packageEntry !== undefined) root = rootAbove(location.packageEntry);
  if (root === undefined) {
    throw new HostError("invalid_request", "init needs package.packageRoot or package.packageEntry");
  }
  const manifest = loadManifest(root);
  checkManifest(manifest, root);
  const entry = packageEntry(manifest, root, location.packageEntry);
  let pi;
  try {
    pi = await import(pathToFileURL(entry).href);
  } catch (error) {
    throw new HostError("package_unreadable", `Pi ${manifest.version} at ${root} could not be loaded by Node ${process.versions.node}: ${messageOf(error)}`);
  }
  const missing = ["createAgentSession", "DefaultResourceLoader", "ModelRuntime", "SessionManager", "SettingsManager"]
    .filter((name) => typeof pi[name] !== "function");
  if (missing.length > 0) {
    throw new HostError("version_unsupported", `Pi ${manifest.version} at ${root} does not export ${missing.join(", ")}; this program cannot drive it.`);
  }
  return { pi, root, entry, version: String(manifest.version) };
}

function rootAbove(file) {
  for (let dir = path.dirname(file); dir !== path.dirname(dir); dir = path.dirname(dir)) {
    if (fs.existsSync(path.join(dir, "package.json"))) return dir;
  }
  throw new HostError("package_missing", `there is no package.json above ${file}`);
}

/** Settings from the user's file, with an untrusted project and without a way to write. */
export function readOnlySettings(pi, agentDir) {
  const file = path.join(agentDir, "settings.json");
  const storage = {
    withLock(scope, update) {
      let current;
      if (scope === "global" && fs.existsSync(file)) current = fs.readFileSync(file, "utf8");
      update(current); // what it returns would be the new file
    },
  };
  return pi.SettingsManager.fromStorage(storage, { projectTrusted: false });
}
