// Pi's models and credentials, as the wire shows them. A model is found by its exact name, never nearly.

import path from "node:path";

import { HostError, plain } from "../lib/wire.mjs";
import { THINKING_LEVELS, isText, need } from "./requests.mjs";

export const modelName = (model) => `${model.provider}/${model.id}`;

export function modelView(model) {
  const levels = model.reasoning
    ? THINKING_LEVELS.filter((level) => {
        const mapped = model.thinkingLevelMap?.[level];
        return mapped !== null && (mapped !== undefined || (level !== "xhigh" && level !== "max"));
      })
    : ["off"];
  const { provider, id, name, reasoning, input, contextWindow, maxTokens, cost } = model;
  return plain({ provider, id, name, reasoning: reasoning === true, input, contextWindow, maxTokens, cost, thinkingLevels: levels });
}

export const availableModels = async (runtime) => (await runtime.getAvailable()).map(modelView);

/** The model of that exact name, with credentials; an error that says what there is instead. */
export async function findModel(runtime, reference) {
  let provider, id;
  if (typeof reference === "string") {
    const slash = reference.indexOf("/");
    need(slash > 0 && slash < reference.length - 1, `modelRef ${JSON.stringify(reference)} must be provider/id`);
    [provider, id] = [reference.slice(0, slash), reference.slice(slash + 1)];
  } else {
    ({ provider, id } = { ...reference, id: reference?.id ?? reference?.modelId });
    need(isText(provider) && isText(id), "modelRef must be provider/id, or an object with provider and id");
  }
  const model = runtime.getModel(provider, id);
  if (model === undefined) {
    const available = (await runtime.getAvailable()).map(modelName);
    const listed = available.slice(0, 10).join(", ") + (available.length > 10 ? `, and ${available.length - 10} more` : "");
    const broken = modelsProblem(runtime);
    throw new HostError("model_not_found", `Pi has no model ${provider}/${id}. Available: ${listed || "none"}.${broken ? ` ${broken}` : ""}`);
  }
  if (!(await hasAuth(runtime, provider))) {
    throw new HostError("no_auth", `Pi has no credentials for ${provider}, which ${provider}/${id} needs: sign in with /login in pi, or set its API key.`);
  }
  return model;
}

/** What is wrong with the user's models.json, in one line. */
const modelsProblem = (runtime) => runtime.getError?.()?.replace(/\s*\n\s*/g, "; ");

const hasAuth = async (runtime, provider) =>
  runtime.hasConfiguredAuth(provider) || (await runtime.checkAuth(provider)) !== undefined;

export function noModel(runtime, agentDir) {
  const broken = modelsProblem(runtime);
  return new HostError("no_model", `Pi has no model that it can use${broken ? ` (${broken})` : ""}: start pi and use /login, or set a provider's API key, or describe one in ${path.join(agentDir, "models.json")}.`);
}

/** Who pays for the current model. Says which kind of credential is used, never the credential. */
export async function accountView(runtime, model) {
  const { provider } = model;
  const stored = (await runtime.listCredentials()).find((entry) => entry.providerId === provider);
  const status = runtime.getProviderAuthStatus(provider);
  let kind = "unknown";
  if (stored) kind = stored.type === "oauth" ? "subscription" : "api_key";
  else if (isLoopback(model.baseUrl)) kind = "local";
  else if (status?.configured) kind = "api_key";
  return { kind, upstream: provider };
}

function isLoopback(url) {
  try {
    return ["localhost", "127.0.0.1", "[::1]"].includes(new URL(url).hostname);
  } catch {
    return false;
  }
}

/** Every provider with the ways to sign in to it. Says whether, and whence, but never what. */
export function providerViews(runtime) {
  return runtime.getProviders().map((provider) => {
    const status = runtime.getProviderAuthStatus(provider.id);
    const methods = ["oauth", "api_key"].filter((method) => provider.auth?.[method === "oauth" ? "oauth" : "apiKey"]);
    return {
      providerId: provider.id,
      name: provider.name ?? provider.id,
      methods,
      configured: status?.configured === true,
      ...(status?.source ? { source: status.source } : {}),
    };
  });
}
