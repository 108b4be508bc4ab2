/**
 * What one pod may cost. Its spec, configMaps and secrets are a few MiB at most, but a few bytes of them can stand for
 * many more: `$(A)` for a long value, an item for a whole key, each container for all Services. Wherever that happens a
 * budget is asked first, so that nothing large is ever built. A pod that passes one is held, with the reason that a
 * kubelet would give.
 *
 * The numbers are far above what pods have, and where Linux has a limit, they are Linux'.
 */
import type { Pod } from "../kube/wire.ts";
import { PROCESS_BYTES, WORD_BYTES } from "../provider/env-files.ts";
import { VmletError } from "../util/errors.ts";
import type { PodEvent } from "./types.ts";

const KIB = 1024;
const MIB = 1024 * KIB;

export const POD_LIMITS = {
  /** Init, main and ephemeral ones together; the Machine API takes no more of either kind. */
  containers: 1000,
  volumes: 1000,
  /** Volumes by claims: each is read for with three requests, again and again until it is there. */
  disks: 128,
  /** Inline volumes of CSI drivers: each is read for, and asks for tokens. */
  csiVolumes: 64,
  /** ResourceClaims of Dynamic Resource Allocation. */
  claims: 64,
  /** ConfigMaps and Secrets: each is read and watched. */
  references: 200,
  /** Of all ConfigMaps and Secrets together. */
  referenceBytes: 16 * MIB,
  /**
   * ConfigMaps and Secrets of all of this node's pods of one namespace: each is watched on a connection of its own. Not
   * one pod's, but one tenant's: pods that refer to more wait until others are gone.
   */
  namespaceReferences: 2000,
  namespaceReferenceBytes: 64 * MIB,
  /** Service-account tokens: each is asked for, and renewed. */
  tokens: 32,
  /** Trust anchors by signer: for each all ClusterTrustBundles are looked through whenever one changes. */
  trustBundles: 32,
  /** Trust anchors by name. */
  namedTrustBundles: 1000,
  /** Certificates of the pod's own: for each a key is made, which takes up to seconds. */
  certificates: 16,
  pullSecrets: 32,
  /** Credentials in all pull secrets together, and their bytes. */
  registries: 500,
  registryBytes: 1 * MIB,
  /** The longest name that an object can have. */
  nameLength: 253,
  /** One environment variable's value, or one word of a command (Linux: MAX_ARG_STRLEN). */
  wordBytes: WORD_BYTES,
  /** The environment of one container with its command and arguments (Linux: a quarter of the usual stack). */
  processBytes: PROCESS_BYTES,
  /** The same of all containers together. */
  podProcessBytes: 8 * MIB,
  /** Files of all volumes, as they are sent to the backend. */
  fileBytes: 12 * MIB,
  /** The machine's specification as JSON. A backend takes bodies of 16 MiB. */
  specBytes: 15 * MIB,
  /** Registry and path 255, tag 128, digest 136. */
  imageLength: 1024,
  /** The events of one rendering. */
  events: 25,
  messageLength: 1024,
} as const;

/** Something of the pod takes more than it may. The message names it, its size where that is known, and the limit. */
export class OverBudgetError extends VmletError {
  readonly code = "OVER_BUDGET";
}

/** A number of bytes that may be taken. Bytes taken from a part are taken from the whole too. */
export class Budget {
  readonly #what: string;
  readonly #limit: number;
  readonly #whole: Budget | undefined;
  #taken = 0;

  /** @param what begins the message: "the environment of container \"app\"" */
  constructor(what: string, limit: number, whole?: Budget) {
    this.#what = what;
    this.#limit = limit;
    this.#whole = whole;
  }

  /** @throws OverBudgetError when that is more than is left; then nothing is taken */
  take(bytes: number): void {
    if (this.#taken + bytes > this.#limit)
      throw new OverBudgetError(`${this.#what} would take more than ${this.#limit} bytes`);
    this.#whole?.take(bytes);
    this.#taken += bytes;
  }
}

/** The budgets of one rendering of one pod. */
export class PodBudget {
  /** Environment, commands and arguments of all containers. */
  readonly #processes = new Budget("the environment and arguments of the pod's containers", POD_LIMITS.podProcessBytes);
  /** What the volumes hold. */
  readonly files = new Budget("the files of the pod's volumes", POD_LIMITS.fileBytes);

  /** What one container's environment and arguments may take. */
  process(container: string): Budget {
    const what = `the environment and arguments of container "${container}"`;
    return new Budget(what, POD_LIMITS.processBytes, this.#processes);
  }
}

/** What is wrong with how many things the pod has, before anything is read for it; undefined when nothing is. */
export function shapeProblem(
  pod: Pod,
  counts: Readonly<Record<"references" | "tokens" | "trustBundles" | "namedTrustBundles" | "certificates", number>>,
): string | undefined {
  const {
    initContainers = [],
    containers = [],
    ephemeralContainers = [],
    volumes = [],
    imagePullSecrets = [],
  } = pod.spec ?? {};
  const all: [count: number, limit: number, what: string][] = [
    [initContainers.length + containers.length + ephemeralContainers.length, POD_LIMITS.containers, "containers"],
    [volumes.length, POD_LIMITS.volumes, "volumes"],
    [imagePullSecrets.length, POD_LIMITS.pullSecrets, "image pull secrets"],
    [counts.references, POD_LIMITS.references, "ConfigMaps and Secrets"],
    [counts.tokens, POD_LIMITS.tokens, "service-account tokens"],
    [counts.trustBundles, POD_LIMITS.trustBundles, "sources of trust anchors by signer"],
    [counts.namedTrustBundles, POD_LIMITS.namedTrustBundles, "sources of trust anchors by name"],
    [counts.certificates, POD_LIMITS.certificates, "pod certificates"],
  ];
  const [count, limit, what] = all.find(([count, limit]) => count > limit) ?? [];
  return what && `the pod has ${count} ${what}, this node takes at most ${limit}`;
}

/** The text, cut to a length that people read. */
export function shortened(text: string): string {
  const { messageLength } = POD_LIMITS;
  return text.length <= messageLength ? text : `${text.slice(0, messageLength - 3)}...`;
}

/**
 * Adds an event unless there are enough already: a pod with a thousand things missing must not drown out the others.
 */
export function tell(events: PodEvent[], event: PodEvent): void {
  if (events.length < POD_LIMITS.events) events.push({ ...event, message: shortened(event.message) });
}
