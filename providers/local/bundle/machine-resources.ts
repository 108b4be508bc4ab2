/**
 * What a machine's containers share, as in a kubelet: the machine's own limits, and who goes first when memory runs
 * out.
 */
import {
  type ContainerResources,
  containersOf,
  isSidecar,
  type MachineSpec,
  type NamedContainer,
  ProviderError,
  type ResourceAmounts,
} from "../../../src/provider/kit/index.ts";

/** Of containers whose limits are their requests (kubelet: pkg/kubelet/qos/policy.go). */
const GUARANTEED = -997;
/** Of containers that ask for nothing. */
const BEST_EFFORT = 1000;

/** The limits of a machine that can grow with its containers: each that it has (kubelet: ResourceConfigForPod). */
export function ownLimits(resources: ContainerResources | undefined): ResourceAmounts {
  const limits: ResourceAmounts = {};
  for (const key of ["cpu_millis", "memory_bytes"] as const) {
    const limit = resources?.limits?.[key] ?? 0;
    if (limit > 0) limits[key] = limit;
  }
  return limits;
}

/** What has to be known of a machine's group to change its limits. */
interface LimitedGroup {
  usage(): Promise<{ workingSet: number } | undefined>;
  limit(limits: ResourceAmounts): Promise<void>;
}

/**
 * Changes the limits of a machine in a kubelet's order (doPodResizeAction): what grows before its containers, what
 * shrinks after them. It may be repeated, and after a crash in the middle it has to be.
 * @throws ProviderError conflict when it uses more memory than it would have; nothing is changed then
 */
export async function resizeGroup(
  group: LimitedGroup,
  { from, to }: { from: ContainerResources | undefined; to: ContainerResources },
  containers: () => Promise<void>,
): Promise<void> {
  const [before, after] = [ownLimits(from), ownLimits(to)];
  const used = (await group.usage())?.workingSet;
  if (after.memory_bytes !== undefined && used !== undefined && used > after.memory_bytes)
    throw new ProviderError(
      "conflict",
      `attempting to set pod memory limit (${after.memory_bytes}) below current usage (${used})`,
      { field: "machine_resources.limits.memory_bytes" },
    );
  const both = (pick: (a: number, b: number) => number): ResourceAmounts => ({
    cpu_millis: pick(before.cpu_millis ?? Infinity, after.cpu_millis ?? Infinity),
    memory_bytes: pick(before.memory_bytes ?? Infinity, after.memory_bytes ?? Infinity),
  });
  await group.limit(both(Math.max));
  try {
    await containers();
  } catch (thrown) {
    // As far as those that have changed allow it; the caller's next try comes to an end of it.
    await group.limit(both((former) => former)).catch(() => undefined);
    throw thrown;
  }
  await group.limit(both((_former, next) => next));
}

/**
 * The `oom_score_adj` of a container's processes: -1000 is never killed, 1000 first.
 * @param memoryBytes of the host, or of the VM
 */
export function oomScoreAdj(name: string, machine: MachineSpec, memoryBytes: number): number {
  const containers = lasting(machine);
  const holders =
    machine.resources === undefined ? containers.map(({ spec }) => spec.resources ?? {}) : [machine.resources];
  if (holders.every(isGuaranteed)) return GUARANTEED;
  if (!holders.some(asksForSomething)) return BEST_EFFORT;
  const container = containers.find(({ spec }) => spec.name === name);
  let request = memoryRequest(container);
  if (container !== undefined && isSidecar(container.spec, container.kind))
    request = Math.max(request, Math.min(...containers.filter(({ kind }) => kind === "main").map(memoryRequest)));
  // What the machine asks for beyond its containers is theirs in equal parts.
  const beyond = Math.max(0, (machine.resources?.requests?.memory_bytes ?? 0) - requestedTogether(containers));
  const share = Math.floor(beyond / containers.length);
  const score = 1000 - Math.floor((1000 * (request + share)) / memoryBytes);
  return Math.min(BEST_EFFORT - 1, Math.max(1000 + GUARANTEED, score));
}

/** Ephemeral containers cannot have resources. */
function lasting(spec: MachineSpec): NamedContainer[] {
  return containersOf(spec).filter(({ kind }) => kind !== "ephemeral");
}

function isPlainInit({ spec, kind }: NamedContainer): boolean {
  return kind === "init" && !isSidecar(spec, kind);
}

/** Most memory that is asked for at a time: an init container runs beside the sidecars before it, and then no more. */
function requestedTogether(containers: readonly NamedContainer[]): number {
  let sidecars = 0;
  let peak = 0;
  let sum = 0;
  for (const container of containers) {
    const request = memoryRequest(container);
    if (isPlainInit(container)) peak = Math.max(peak, sidecars + request);
    else sum += request;
    if (isSidecar(container.spec, container.kind)) sidecars += request;
  }
  return Math.max(sum, peak);
}

function memoryRequest(container: NamedContainer | undefined): number {
  const { requests, limits } = container?.spec.resources ?? {};
  return requests?.memory_bytes ?? limits?.memory_bytes ?? 0;
}

function isGuaranteed({ requests, limits }: ContainerResources): boolean {
  return (["cpu_millis", "memory_bytes"] as const).every((key) => {
    const limit = limits?.[key] ?? 0;
    return limit > 0 && (requests?.[key] ?? limit) === limit;
  });
}

function asksForSomething({ requests, limits }: ContainerResources): boolean {
  return [requests, limits].some((amounts) => (amounts?.cpu_millis ?? 0) > 0 || (amounts?.memory_bytes ?? 0) > 0);
}
