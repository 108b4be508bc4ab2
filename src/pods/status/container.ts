/**
 * The status of each container, as the machine says, with what its spec and its last status add.
 * Source of the rules: kubelet's `convertToAPIContainerStatuses` and, for ends that were not seen, the status manager's
 * `TerminatePod`.
 */
import { isSidecar } from "../../resources/pod-resources.ts";
import { rfc3339 } from "../../util/clock.ts";
import { cutBytes } from "../../util/text.ts";
import type { ContainerStatus, Pod } from "../../kube/wire.ts";
import type { ContainerState, ContainerTermination } from "../../provider/machine.ts";
import { hasInitialised, hasLeftFirstWait } from "./facts.ts";
import {
  toldMessage,
  toldReason,
  type ContainerKind,
  type ContainerStatuses,
  type SpecContainer,
  type StatusInput,
} from "./input.ts";
import { effectiveResources } from "./resources.ts";

type Mutable<T> = { -readonly [K in keyof T]: T[K] };

/** kubelet: MaxPodTerminationMessageLogLength, shared evenly by the pod's containers; one has at most 4096 bytes. */
const POD_TERMINATION_MESSAGE_BYTES = 12 * 1024;
const TERMINATION_MESSAGE_BYTES = 4096;

/** The statuses of all containers of the pod's spec, whether the machine has them or not. */
export function containerStatuses(input: StatusInput): ContainerStatuses {
  const { spec, status: old } = input.pod;
  const statuses = (
    specs: readonly SpecContainer[] = [],
    kind: ContainerKind,
    before: readonly ContainerStatus[] | undefined,
  ) =>
    specs.map((each) =>
      containerStatus(
        input,
        each,
        kind,
        before?.find(({ name }) => name === each.name),
      ),
    );
  return {
    init: statuses(spec?.initContainers, "init", old?.initContainerStatuses),
    main: statuses(spec?.containers, "main", old?.containerStatuses).sort(byName),
    ephemeral: statuses(spec?.ephemeralContainers, "ephemeral", old?.ephemeralContainerStatuses).sort(byName),
  };
}

/**
 * The statuses of a pod that is over. kubelet: TerminatePod. Once a pod has initialised, a container whose end was not
 * seen counts as failed, though it may never have begun; of the init containers those up to the last that has begun,
 * and the first in any case.
 */
export function withUnseenEnds(pod: Pod, seen: ContainerStatuses): ContainerStatuses {
  const initialised = pod.status?.phase === "Running" || hasInitialised(pod, seen);
  const lastBegun = Math.max(seen.init.findLastIndex(hasLeftFirstWait), 0);
  return {
    init: seen.init.map((each, i) => (i <= lastBegun ? endUnseen(each) : each)),
    main: initialised ? seen.main.map(endUnseen) : seen.main,
    ephemeral: seen.ephemeral.map(endUnseen),
  };
}

const byName = (a: ContainerStatus, b: ContainerStatus) => (a.name < b.name ? -1 : a.name > b.name ? 1 : 0);

function endUnseen(status: ContainerStatus): ContainerStatus {
  if (status.state?.terminated) return status;
  return {
    ...status,
    ready: false,
    started: false,
    state: {
      terminated: {
        exitCode: 137,
        reason: "ContainerStatusUnknown",
        message: "The container could not be located when the pod was terminated",
        startedAt: null!,
        finishedAt: null!,
      },
    },
  };
}

function containerStatus(
  input: StatusInput,
  spec: SpecContainer,
  kind: ContainerKind,
  old: ContainerStatus | undefined,
): ContainerStatus {
  const seen = input.machine?.containers.find((c) => c.name === spec.name && c.kind === kind);
  if (seen !== undefined) return seenStatus(input, spec, seen, old);
  if (old !== undefined && (old.containerID !== undefined || old.state?.terminated || old.state?.running)) return old;
  return waitingStatus(input, spec, kind, old);
}

/** The status of a container that the machine has. */
function seenStatus(
  input: StatusInput,
  spec: SpecContainer,
  seen: ContainerState,
  old: ContainerStatus | undefined,
): ContainerStatus {
  const messageBytes = terminationMessageBytes(input.pod);
  const status: Mutable<ContainerStatus> = {
    name: spec.name,
    state: stateOf(seen, input.now, messageBytes, old),
    lastState: lastStateOf(seen, messageBytes, old),
    ready: isReady(spec, seen),
    restartCount: Math.max(seen.restart_count, old?.restartCount ?? 0),
    image: seen.image || spec.image!,
    imageID: seen.image_id,
    started: seen.state === "running" && seen.started,
    ...(seen.id !== undefined && { containerID: containerId(seen.id)! }),
    ...mounts(spec),
  };
  if (seen.resources !== undefined && seen.kind !== "ephemeral") {
    const resources = effectiveResources(spec, seen.resources, old?.resources);
    status.resources = resources;
    if (resources.requests !== undefined) status.allocatedResources = resources.requests;
  }
  // As a kubelet: a container that names none has none, and that is said.
  else if (spec.resources?.requests === undefined && spec.resources?.limits === undefined && seen.kind !== "ephemeral")
    status.resources = {};
  // A kubelet tells it of main containers alone (devicemanager, dra: UpdateAllocatedResourcesStatus).
  const devices = seen.kind === "main" ? seen.devices?.filter(({ resource }) => isNamed(spec, resource)) : undefined;
  if (devices !== undefined && devices.length > 0) status.allocatedResourcesStatus = deviceHealth(devices);
  if (seen.user !== undefined) {
    status.user = {
      linux: { uid: seen.user.uid, gid: seen.user.gid, supplementalGroups: seen.user.supplemental_groups },
    };
  }
  return status;
}

/** Of claims, those that the container names: not the one that the scheduler makes of its extended resources. */
function isNamed({ resources }: Pick<SpecContainer, "resources">, resource: string): boolean {
  if (!resource.startsWith("claim:")) return true;
  return (resources?.claims ?? []).some(
    ({ name, request }) => resource === `claim:${name}${request ? `/${request}` : ""}`,
  );
}

const HEALTH = { healthy: "Healthy", unhealthy: "Unhealthy", unknown: "Unknown" } as const;

function deviceHealth(
  devices: NonNullable<ContainerState["devices"]>,
): NonNullable<ContainerStatus["allocatedResourcesStatus"]> {
  return [...Map.groupBy(devices, ({ resource }) => resource)].map(([name, own]) => ({
    name,
    resources: own.map(({ id, health, message }) => ({
      ...{ resourceID: id, health: HEALTH[health] },
      ...(message && { message }),
    })),
  }));
}

/**
 * How the instance before ended. What was told is not taken back: a machine that was made again, after the backend had
 * lost it, begins to count at zero and knows nothing of the ends before.
 */
function lastStateOf(
  { last, restart_count, state }: ContainerState,
  messageBytes: number,
  old: ContainerStatus | undefined,
): NonNullable<ContainerStatus["lastState"]> {
  if (last !== undefined && restart_count >= (old?.restartCount ?? 0))
    return { terminated: terminated(last, containerId(last.id), messageBytes) };
  if (state !== "terminated" && old?.state?.terminated) return { terminated: old.state.terminated };
  return old?.lastState ?? {};
}

/**
 * An init container is ready when it has done its work, any other while it runs and says so; an ephemeral one never is.
 */
function isReady(spec: SpecContainer, seen: ContainerState): boolean {
  if (seen.kind === "init" && !isSidecar(spec)) return seen.terminated?.exit_code === 0;
  return seen.state === "running" && seen.ready && seen.kind !== "ephemeral";
}

/** `vmlet://INSTANCE`: tools split on `://`, and the id must change with every restart, as an instance's does. */
export function containerId(instance: string | undefined): string | undefined {
  return instance === undefined ? undefined : `vmlet://${instance}`;
}

function stateOf(
  seen: ContainerState,
  now: number,
  messageBytes: number,
  old: ContainerStatus | undefined,
): NonNullable<ContainerStatus["state"]> {
  switch (seen.state) {
    case "running": {
      // A backend need not tell; what was shown of this instance then stands, or each look would be a new status.
      const before = old?.containerID === containerId(seen.id) ? old?.state?.running?.startedAt : undefined;
      return { running: { startedAt: seconds(seen.started_at) ?? before ?? rfc3339(now) } };
    }
    case "terminated": {
      const end = seen.terminated!;
      return { terminated: terminated(end, containerId(end.id ?? seen.id), messageBytes) };
    }
    case "waiting":
      return {
        waiting: {
          reason: toldReason(seen.reason) ?? "ContainerCreating",
          ...(seen.message && { message: toldMessage(seen.message)! }),
        },
      };
  }
}

function terminated(t: ContainerTermination, id: string | undefined, messageBytes: number) {
  return {
    exitCode: t.exit_code,
    ...(t.signal !== undefined && { signal: t.signal }),
    reason: toldReason(t.reason)!,
    ...(t.message && { message: cutBytes(t.message, messageBytes) }),
    startedAt: seconds(t.started_at) ?? null!,
    finishedAt: seconds(t.finished_at)!,
    ...(id !== undefined && { containerID: id }),
  };
}

/** The status of a container that the machine does not have yet. */
function waitingStatus(
  input: StatusInput,
  spec: SpecContainer,
  kind: ContainerKind,
  old: ContainerStatus | undefined,
): ContainerStatus {
  const inits = input.pod.spec?.initContainers ?? [];
  const first = inits[0]?.name === spec.name;
  const reason = inits.length > 0 && !(kind === "init" && first) ? "PodInitializing" : "ContainerCreating";
  // An agent that has just been started has not looked yet why: what was shown before stands.
  const shown = kind === "ephemeral" ? old?.state?.waiting : undefined;
  return {
    name: spec.name,
    state: { waiting: input.waiting?.get(spec.name) ?? shown ?? { reason } },
    lastState: {},
    ready: false,
    restartCount: 0,
    image: spec.image ?? "",
    imageID: "",
    started: false,
    ...mounts(spec),
  };
}

/** kubelet: convertToAPIContainerStatuses. Recursive read-only mounts are for backends that have them, and none has. */
function mounts({ volumeMounts = [] }: SpecContainer): Pick<ContainerStatus, "volumeMounts"> {
  if (volumeMounts.length === 0) return {};
  return {
    volumeMounts: volumeMounts.map(({ name, mountPath, readOnly }) => ({
      name,
      mountPath,
      ...(readOnly && { readOnly, recursiveReadOnly: "Disabled" }),
    })),
  };
}

function terminationMessageBytes({ spec }: Pod): number {
  const containers =
    (spec?.containers.length ?? 0) + (spec?.initContainers?.length ?? 0) + (spec?.ephemeralContainers?.length ?? 0);
  return Math.min(TERMINATION_MESSAGE_BYTES, Math.floor(POD_TERMINATION_MESSAGE_BYTES / Math.max(1, containers)));
}

const seconds = (at: string | undefined) => (at === undefined ? undefined : rfc3339(Date.parse(at)));
