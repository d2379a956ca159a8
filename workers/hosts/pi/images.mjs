// Images of a message: given as data, or as a file inside a folder it may come from.

import fs from "node:fs";
import path from "node:path";

import { HostError } from "../lib/wire.mjs";
import { isText, need, needPath } from "./requests.mjs";

const IMAGE_LIMIT = 10 * 1024 * 1024; // bytes of one image

export function loadImages(images = []) {
  need(Array.isArray(images), "images must be a list");
  return images.map((image) => {
    need(image?.url === undefined, "an image by URL cannot be sent to Pi");
    need(isText(image?.mimeType), "an image needs a mimeType");
    if (typeof image.data === "string") {
      need(image.data.length * 0.75 <= IMAGE_LIMIT, "an image is larger than 10 MB");
      return { type: "image", data: image.data, mimeType: image.mimeType };
    }
    return { type: "image", data: readImage(image.path, image.rootPath), mimeType: image.mimeType };
  });
}

/** Reads an image inside a folder without following a link that was put there in between. */
function readImage(file, rootPath) {
  needPath(file, "image path");
  needPath(rootPath, "image rootPath");
  const refuse = (why) => new HostError("invalid_request", `image ${path.basename(file)}: ${why}`);
  let fd;
  try {
    const real = fs.realpathSync(file);
    const root = fs.realpathSync(rootPath);
    if (!real.startsWith(root + path.sep)) throw refuse("is outside of the folder it may come from");
    const before = fs.lstatSync(real);
    fd = fs.openSync(real, fs.constants.O_RDONLY | fs.constants.O_NOFOLLOW);
    const now = fs.fstatSync(fd);
    if (!now.isFile() || now.dev !== before.dev || now.ino !== before.ino) throw refuse("changed while it was opened");
    if (now.size > IMAGE_LIMIT) throw refuse("is larger than 10 MB");
    return fs.readFileSync(fd).toString("base64");
  } catch (error) {
    throw error instanceof HostError ? error : refuse(`cannot be read (${error.code ?? "error"})`);
  } finally {
    if (fd !== undefined) fs.closeSync(fd);
  }
}
