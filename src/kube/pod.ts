/**
 * The vocabulary of pods: what every part of vmlet calls a pod's containers and their statuses, its end, its owner and
 * its name. Facts that only a status proves are in `pods/status/facts.ts`.
 */
import type { Container, ContainerStatus, Pod } from "./wire.ts";

type EphemeralContainer = NonNullable<NonNullable<Pod["spec"]>["ephemeralContainers"]>[number];
type PodVolume = NonNullable<NonNullable<Pod["spec"]>["volumes"]>[number];
type OwnerReference = NonNullable<NonNullable<Pod["metadata"]>["ownerReferences"]>[number];

/** Those that the pod was made with: init containers, sidecars among them, then main ones. */
export function containersOf({ spec }: Pick<Pod, "spec">): Container[] {
  return [...(spec?.initContainers ?? []), ...(spec?.containers ?? [])];
}

/** All of them: the ephemeral ones, which were added later, come last. Names are unique among all. */
export function allContainersOf(pod: Pick<Pod, "spec">): (Container | EphemeralContainer)[] {
  return [...containersOf(pod), ...(pod.spec?.ephemeralContainers ?? [])];
}

/** Of `containersOf`, as far as there are any. */
export function containerStatusesOf({ status }: Pick<Pod, "status">): ContainerStatus[] {
  return [...(status?.initContainerStatuses ?? []), ...(status?.containerStatuses ?? [])];
}

/** Of `allContainersOf`, as far as there are any. */
export function allContainerStatusesOf(pod: Pick<Pod, "status">): ContainerStatus[] {
  return [...containerStatusesOf(pod), ...(pod.status?.ephemeralContainerStatuses ?? [])];
}

export function isTerminalPhase(phase: string | undefined): boolean {
  return phase === "Succeeded" || phase === "Failed";
}

/** Terminal phases are final: nothing may leave them. Of machines the like is `isOver`. */
export function isTerminal({ status }: { readonly status?: { readonly phase?: string } }): boolean {
  return isTerminalPhase(status?.phase);
}

/** Somebody deleted it; its containers may run on for a grace. */
export function isDeleting({ metadata }: Pick<Pod, "metadata">): boolean {
  return metadata?.deletionTimestamp !== undefined;
}

/** The reference to the pod's controller; undefined for a pod that was made by hand. */
export function controllerOf({ metadata }: Pick<Pod, "metadata">): OwnerReference | undefined {
  return metadata?.ownerReferences?.find(({ controller }) => controller === true);
}

/** What a pod is known by (kube/store.ts holds none without); empty only for a pod that no API server has seen. */
export function uidOf({ metadata }: Pick<Pod, "metadata">): string {
  return metadata?.uid ?? "";
}

/** The claim of a volume that outlives machines, be it the pod's own (`ephemeral`); undefined for other kinds. */
export function claimNameOf({ metadata }: Pick<Pod, "metadata">, volume: PodVolume): string | undefined {
  return volume.ephemeral === undefined ? volume.persistentVolumeClaim?.claimName : `${metadata?.name}-${volume.name}`;
}

/** By volume: the claims that the pod names. */
export function claimNamesOf(pod: Pick<Pod, "metadata" | "spec">): ReadonlyMap<string, string> {
  return new Map(
    (pod.spec?.volumes ?? []).flatMap((volume): [string, string][] => {
      const claim = claimNameOf(pod, volume);
      return claim === undefined ? [] : [[volume.name, claim]];
    }),
  );
}

/** The fields by which a line of the log names a pod. */
export function aboutPod({ metadata }: Pick<Pod, "metadata">): { namespace: string; pod: string; uid: string } {
  const { namespace = "", name = "", uid = "" } = metadata ?? {};
  return { namespace, pod: name, uid };
}

/** The name of a pod in a kubelet's messages: `name_namespace(uid)` (pkg/kubelet/util/format). */
export function formatPod({ metadata }: Pick<Pod, "metadata">): string {
  return `${metadata?.name ?? ""}_${metadata?.namespace ?? ""}(${metadata?.uid ?? ""})`;
}
