/**
 * What a node has given to its pods: cpu, memory and the like, host ports, and their number. Kept as pods come, change
 * and go, so that judging one more costs what that one asks for, however many there are.
 */
import { containerStatusesOf, isTerminal, uidOf } from "../../kube/pod.ts";
import type { Container, Pod } from "../../kube/wire.ts";
import { isSidecar, podRequests } from "../../resources/pod-resources.ts";
import { QuantityError, type Quantity } from "../../resources/quantity.ts";

/** Of the pods that were admitted and are not over, all but the one that is judged. */
export interface OtherPods {
  readonly count: number;
  /** In millicores, bytes or whole numbers. */
  allocated(resource: string): bigint;
  hasPort(port: HostPort): boolean;
  list(): Pod[];
}

/** A port of the node: `ip` is 0.0.0.0 for all its addresses. */
export interface HostPort {
  port: number;
  protocol: string;
  ip: string;
}

const ANY_IP = "0.0.0.0";

interface Entry {
  pod: Pod;
  units: ReadonlyMap<string, bigint>;
  ports: readonly HostPort[];
}

export class NodeAllocation {
  readonly #pods = new Map<string, Pod>();
  /**
   * Pods that were admitted by this process. Others count as admitted once their status says that they were started.
   */
  readonly #admitted = new Set<string>();
  /** Pods that have to make room for a critical one. */
  readonly #leaving = new Set<string>();
  /** Those that count, with what they were given. */
  readonly #counted = new Map<string, Entry>();
  readonly #allocated = new Map<string, bigint>();
  /** By `protocol/port`, then by address: who has it. */
  readonly #ports = new Map<string, Map<string, Set<string>>>();
  /** UIDs whose entry is to be worked out again before the next answer: most pods change several times in between. */
  readonly #stale = new Set<string>();

  /** A pod of this node is there, or has changed. */
  put(pod: Pod): void {
    const uid = uidOf(pod);
    this.#pods.set(uid, pod);
    this.#stale.add(uid);
  }

  /** A pod is gone. */
  remove(uid: string): void {
    this.#pods.delete(uid);
    this.release(uid);
  }

  /** From here on the pod counts, though its status may not say so yet. */
  admit(uid: string): void {
    if (this.#admitted.has(uid)) return;
    this.#admitted.add(uid);
    this.#stale.add(uid);
  }

  /** The pod was told to make room. */
  leave(uid: string): void {
    this.#leaving.add(uid);
  }

  /** Forgets what this process decided about a pod; what its status says still counts. */
  release(uid: string): void {
    this.#admitted.delete(uid);
    this.#leaving.delete(uid);
    this.#stale.add(uid);
  }

  /** @param options.staying leave out those that have to make room, too */
  others(uid: string, options: { staying?: boolean | undefined } = {}): OtherPods {
    this.#refresh();
    const without = new Set([uid, ...(options.staying ? this.#leaving : [])].filter((each) => this.#counted.has(each)));
    return {
      count: this.#counted.size - without.size,
      allocated: (resource) => {
        let sum = this.#allocated.get(resource) ?? 0n;
        for (const each of without) sum -= this.#counted.get(each)!.units.get(resource) ?? 0n;
        return sum;
      },
      hasPort: ({ port, protocol, ip }) => {
        const byIp = this.#ports.get(`${protocol}/${port}`) ?? new Map<string, Set<string>>();
        const holders = ip === ANY_IP ? [...byIp.values()] : [byIp.get(ip), byIp.get(ANY_IP)];
        return holders.some((uids) => uids !== undefined && [...uids].some((each) => !without.has(each)));
      },
      list: () => [...this.#counted].flatMap(([each, { pod }]) => (without.has(each) ? [] : [pod])),
    };
  }

  #refresh(): void {
    for (const uid of this.#stale) {
      const before = this.#counted.get(uid);
      if (before !== undefined) this.#count(uid, before, -1n);
      const pod = this.#pods.get(uid);
      if (pod === undefined || isTerminal(pod) || !this.#isAdmitted(uid, pod)) continue;
      this.#count(uid, { pod, units: allocatedUnits(pod), ports: hostPorts(pod) }, 1n);
    }
    this.#stale.clear();
  }

  #isAdmitted(uid: string, pod: Pod): boolean {
    return pod.status?.startTime !== undefined || this.#admitted.has(uid);
  }

  #count(uid: string, entry: Entry, times: 1n | -1n): void {
    if (times === 1n) this.#counted.set(uid, entry);
    else this.#counted.delete(uid);
    for (const [name, units] of entry.units) {
      const sum = (this.#allocated.get(name) ?? 0n) + times * units;
      if (sum === 0n) this.#allocated.delete(name);
      else this.#allocated.set(name, sum);
    }
    for (const { port, protocol, ip } of entry.ports) {
      const key = `${protocol}/${port}`;
      const byIp = this.#ports.get(key) ?? new Map<string, Set<string>>();
      const holders = byIp.get(ip) ?? new Set<string>();
      if (times === 1n) this.#ports.set(key, byIp.set(ip, holders.add(uid)));
      else {
        holders.delete(uid);
        if (holders.size === 0) byIp.delete(ip);
        if (byIp.size === 0) this.#ports.delete(key);
      }
    }
  }
}

/** Preemption asks for the same again and again. */
const allocated = new WeakMap<Pod, ReadonlyMap<string, bigint>>();

/** What a pod has been given, by resource name, in the units that messages show. */
export function allocatedUnits(pod: Pod): ReadonlyMap<string, bigint> {
  let units = allocated.get(pod);
  if (units === undefined) allocated.set(pod, (units = computeUnits(pod)));
  return units;
}

/** The same, of a pod whose change of resources may not have been judged yet. */
export function givenUnits(pod: Pod): ReadonlyMap<string, bigint> {
  return unitsIn(givenSpec(pod));
}

/** The same, of what a pod asks for. */
export function wantedUnits(pod: Pod): ReadonlyMap<string, bigint> {
  return unitsIn(pod.spec ?? { containers: [] });
}

function computeUnits(pod: Pod): ReadonlyMap<string, bigint> {
  return unitsIn(allocatedSpec(pod));
}

function unitsIn(spec: NonNullable<Pod["spec"]>): ReadonlyMap<string, bigint> {
  try {
    return new Map([...podRequests(spec)].map(([name, quantity]) => [name, unitsOf(name, quantity)]));
  } catch (thrown) {
    // A pod whose amounts make no sense is not admitted, and must not keep others away.
    if (thrown instanceof QuantityError) return new Map();
    throw thrown;
  }
}

/** Millicores of cpu, else whole units. */
export function unitsOf(name: string, quantity: Quantity): bigint {
  return name === "cpu" ? quantity.milliValue() : quantity.value();
}

/** Host ports of the containers and sidecars. */
export function hostPorts(pod: Pod): HostPort[] {
  const containers = [...(pod.spec?.containers ?? []), ...(pod.spec?.initContainers ?? []).filter(isSidecar)];
  return containers.flatMap((container) =>
    (container.ports ?? [])
      .filter((port) => (port.hostPort ?? 0) > 0)
      .map((port) => ({ port: port.hostPort ?? 0, protocol: port.protocol ?? "TCP", ip: port.hostIP || ANY_IP })),
  );
}

/**
 * The spec with what the pod was given: a change of resources that is pending takes nothing from others yet. A pod that
 * is judged itself is judged by what it asks for.
 */
function allocatedSpec(pod: Pod): NonNullable<Pod["spec"]> {
  const spec = pod.spec ?? { containers: [] };
  if (!pod.status?.conditions?.some((each) => each.type === "PodResizePending" && each.status === "True")) return spec;
  return givenSpec(pod);
}

/** By what its status says that its containers have. */
function givenSpec(pod: Pod): NonNullable<Pod["spec"]> {
  const spec = pod.spec ?? { containers: [] };
  const statuses = containerStatusesOf(pod);
  const given = <C extends Pick<Container, "name" | "resources">>(container: C): C => {
    const requests = statuses.find(({ name }) => name === container.name)?.allocatedResources;
    return requests === undefined ? container : { ...container, resources: { ...container.resources, requests } };
  };
  const { allocatedResources } = pod.status ?? {};
  return {
    ...spec,
    ...(spec.resources && allocatedResources && { resources: { ...spec.resources, requests: allocatedResources } }),
    containers: spec.containers.map(given),
    ...(spec.initContainers && { initContainers: spec.initContainers.map(given) }),
  };
}
