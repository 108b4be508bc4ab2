/**
 * What of a Node's spec follows the configuration: its taints, and that nothing new is put on a node that was taken out
 * of it. Others write both, so annotations say what of it is ours.
 */
import { isForbidden } from "../kube/errors.ts";
import type { Kube } from "../kube/kube.ts";
import { strategicPatch } from "../kube/patch.ts";
import { nodePath } from "../kube/paths.ts";
import type { Node } from "../kube/wire.ts";
import type { Taint } from "../resources/labels.ts";
import type { Logger } from "../telemetry/logger.ts";
import { toError } from "../util/errors.ts";
import type { NodeSettings } from "./settings.ts";

/** The taints that the configuration gave the Node, so that one that it gives no more is known from another's. */
export const TAINTS_ANNOTATION = "vmlet.dev/taints";
/** The Node was cordoned because it was taken out of the configuration, and is not any more when it is put back. */
const LEAVING_ANNOTATION = "vmlet.dev/leaving";

/** As `kubectl taint` has it. */
const textOf = ({ key, value = "", effect }: Taint): string => `${key}${value === "" ? "" : `=${value}`}:${effect}`;
const place = ({ key, effect }: Taint): string => `${key}:${effect}`;

/** A Node without it was registered before there was any: its taints are as they should be. */
function recordedTaints(node: Node | undefined): readonly string[] | undefined {
  return node?.metadata?.annotations?.[TAINTS_ANNOTATION]?.split(",").filter((text) => text !== "");
}

export function taintsRecord(taints: readonly Taint[] = []): string {
  return taints.map(textOf).toSorted().join(",");
}

/**
 * The taints that the Node should have; undefined when those that it has are right. What others did to them stays: only
 * what the configuration gave and gives no more goes, and only what it did not give before is added.
 */
export function wantedTaints(current: Node, configured: readonly Taint[] = []): Taint[] | undefined {
  const recorded = recordedTaints(current);
  if (recorded === undefined) return undefined;
  const before = (current.spec?.taints ?? []) as readonly Taint[];
  const texts = configured.map(textOf);
  const retired = recorded.filter((text) => !texts.includes(text));
  const added = configured.filter((taint) => !recorded.includes(textOf(taint)));
  const taken = added.map(place);
  const after = [
    ...before.filter((taint) => !retired.includes(textOf(taint)) && !taken.includes(place(taint))),
    ...added,
  ];
  const same = taintsRecord(after) === taintsRecord(before);
  return same ? undefined : after;
}

/** The patch that (un)cordons a Node which is (no more) leaving; one that somebody else cordoned stays so. @internal */
export function leavingPatch(current: Node, isLeaving: boolean): object | undefined {
  const wasLeaving = current.metadata?.annotations?.[LEAVING_ANNOTATION] !== undefined;
  if (isLeaving === wasLeaving) return undefined;
  if (!isLeaving) return { metadata: { annotations: { [LEAVING_ANNOTATION]: null } }, spec: { unschedulable: null } };
  // Without the annotation, because it is not ours to take back.
  if (current.spec?.unschedulable) return undefined;
  return { metadata: { annotations: { [LEAVING_ANNOTATION]: "true" } }, spec: { unschedulable: true } };
}

interface NodeSpecOptions {
  kube: Kube;
  logger: Logger;
  /** Tells of what the API server refuses, as an event on the Node. */
  warn: (reason: string, message: string) => void;
}

/** Writes them, each for itself: NodeRestriction lets a node cordon itself, and never change its taints. */
export class NodeSpec {
  readonly #options: NodeSpecOptions;
  /** Patches that were refused, so that each is tried and told of once. */
  readonly #refused = new Set<string>();

  constructor(options: NodeSpecOptions) {
    this.#options = options;
  }

  /** @throws KubeApiError but for refusals, which it tells of */
  async write(current: Node, settings: NodeSettings, isLeaving: boolean, signal: AbortSignal): Promise<void> {
    const { name } = settings;
    const leaving = leavingPatch(current, isLeaving);
    if (leaving)
      await this.#patch(current, leaving, signal, {
        reason: "CannotCordon",
        cure: `nodes[${name}]: was ${isLeaving ? "taken out of" : "put back into"} the configuration: kubectl ${isLeaving ? "cordon" : "uncordon"} ${name}`,
      });
    const taints = wantedTaints(current, settings.taints);
    if (taints === undefined) return;
    const changes = { add: missing(settings.taints ?? [], current), remove: retired(current, settings.taints ?? []) };
    await this.#patch(
      current,
      {
        metadata: {
          // Taints are one list: another's must not be lost.
          resourceVersion: current.metadata?.resourceVersion,
          annotations: { [TAINTS_ANNOTATION]: taintsRecord(settings.taints) },
        },
        spec: { taints },
      },
      signal,
      {
        reason: "CannotTaint",
        cure: `nodes[${name}].taints: a node may not change its own taints (NodeRestriction); an administrator may: kubectl taint node ${name} --overwrite ${[...changes.add, ...changes.remove.map((text) => `${text}-`)].join(" ")}`,
      },
      JSON.stringify(changes),
    );
  }

  async #patch(
    current: Node,
    patch: object,
    signal: AbortSignal,
    refusal: { reason: string; cure: string },
    key = JSON.stringify(patch),
  ): Promise<void> {
    const { kube, logger, warn } = this.#options;
    const known = `${current.metadata?.uid} ${key}`;
    if (this.#refused.has(known)) return;
    try {
      await kube.request({ ...strategicPatch(nodePath(current.metadata?.name ?? ""), patch), signal });
    } catch (thrown) {
      if (!isForbidden(thrown)) throw thrown;
      this.#refused.add(known);
      logger.warn(
        { err: thrown, cure: refusal.cure },
        "The API server refuses what the configuration says of the Node",
      );
      warn(refusal.reason, `${refusal.cure}: ${toError(thrown).message}`);
    }
  }
}

function missing(configured: readonly Taint[], current: Node): string[] {
  const recorded = recordedTaints(current) ?? [];
  return configured.map(textOf).filter((text) => !recorded.includes(text));
}

function retired(current: Node, configured: readonly Taint[]): string[] {
  const places = configured.map(place);
  const texts = configured.map(textOf);
  return ((current.spec?.taints ?? []) as readonly Taint[])
    .filter((taint) => recordedTaints(current)?.includes(textOf(taint)) && !texts.includes(textOf(taint)))
    .filter((taint) => !places.includes(place(taint)))
    .map(textOf);
}
