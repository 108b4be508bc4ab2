/** Registry credentials from `imagePullSecrets` (pkg/credentialprovider): both formats of docker's configuration. */
import { createHash } from "node:crypto";
import type { Pod } from "../../kube/wire.ts";
import { parseDockerConfig } from "../../provider/docker-config.ts";
import type { RegistryAuth } from "../../provider/machine.ts";
import { Budget, OverBudgetError, POD_LIMITS, shortened } from "../budget.ts";
import type { PodEvent, References } from "../types.ts";

/**
 * All credentials of the pod's pull secrets, the most specific registry path first. `registry` is `host[:port][/path]`,
 * where a part of the host may be a `*` glob; Docker Hub is `docker.io`. A secret that is missing, makes no sense or
 * holds more than a pod may have only costs an event: the image may be public.
 */
export function registryAuth(pod: Pod, references: References, events: PodEvent[]): RegistryAuth[] {
  const auth: RegistryAuth[] = [];
  const missing: string[] = [];
  const budget = new Budget("the pod's registry credentials", POD_LIMITS.registryBytes);
  for (const name of pullSecretNames(pod)) {
    const found = references.secrets.get(name);
    const parsed = found?.kind === "found" ? parsePullSecret(found.object.type, found.object.data ?? {}) : undefined;
    if (parsed !== undefined && auth.length + parsed.length <= POD_LIMITS.registries && fits(parsed, budget))
      auth.push(...parsed);
    else missing.push(name);
  }
  if (missing.length > 0) {
    const names = shortened(missing.map((name) => name.slice(0, POD_LIMITS.nameLength)).join(", "));
    events.push({
      type: "Warning",
      reason: "FailedToRetrieveImagePullSecret",
      message: `Unable to retrieve some image pull secrets (${names}); attempting to pull the image may not succeed.`,
    });
  }
  // Sorting is stable, so of two secrets for one registry the first that the pod names is tried first.
  return auth.sort((a, b) => (a.registry < b.registry ? 1 : a.registry > b.registry ? -1 : 0));
}

/**
 * Changes with the pod's pull secrets, and tells nothing of what is in them; undefined when the pod has no credentials.
 * Those of plugins have no version: they are asked for when they are needed.
 */
export function credentialsVersion(
  pod: Pod,
  references: Pick<References, "secrets">,
  { plugins }: { plugins: boolean },
): string | undefined {
  const parts = pullSecretNames(pod).map((name) => {
    const lookup = references.secrets.get(name);
    const version = lookup?.kind === "found" ? (lookup.object.metadata?.resourceVersion ?? "") : undefined;
    return `${short(name)}@${version === undefined ? (lookup?.kind ?? "unread") : short(version)}`;
  });
  if (plugins) parts.push("plugins");
  return parts.length === 0 ? undefined : parts.join(",");
}

/** True when a pull secret cannot be read just now of which the credentials of this version had something. */
export function wouldLoseCredentials(pod: Pod, references: Pick<References, "secrets">, version: string): boolean {
  const before = version.split(",");
  return pullSecretNames(pod).some((name) => {
    const { kind = "unknown" } = references.secrets.get(name) ?? {};
    const id = short(name);
    return kind === "unknown" && before.some((part) => part.startsWith(`${id}@`) && part !== `${id}@unknown`);
  });
}

function pullSecretNames(pod: Pod): string[] {
  return (pod.spec?.imagePullSecrets ?? []).flatMap(({ name }) => (name ? [name] : []));
}

/**
 * The length of a pull secret's name is not checked by the API server, and a version has to stay short: a long one
 * becomes a hash.
 */
function short(text: string): string {
  return text.length <= 63 ? text : createHash("sha256").update(text).digest("base64url");
}

function fits(auth: readonly RegistryAuth[], budget: Budget): boolean {
  const length = (part: string | undefined) => part?.length ?? 0;
  try {
    for (const { registry, username, password, identity_token: token } of auth)
      budget.take(registry.length + length(username) + length(password) + length(token));
    return true;
  } catch (thrown) {
    if (thrown instanceof OverBudgetError) return false;
    throw thrown;
  }
}

/** Undefined when the secret is not a pull secret or cannot be read. */
function parsePullSecret(type: string | undefined, data: Readonly<Record<string, string>>): RegistryAuth[] | undefined {
  const isJson = data[".dockerconfigjson"] !== undefined && type !== "kubernetes.io/dockercfg";
  const text = isJson ? data[".dockerconfigjson"] : data[".dockercfg"];
  if (text === undefined) return undefined;
  return parseDockerConfig(Buffer.from(text, "base64").toString("utf8"), { hasAuths: isJson });
}
