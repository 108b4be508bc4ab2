/**
 * One of each: a pod, a node, a machine as it is asked for and as a backend tells of it. A test names only what it is
 * about.
 */
import type { Node, Pod } from "../../src/kube/wire.ts";
import type { ContainerSpec, ContainerState, Machine, MachineSpec } from "../../src/provider/machine.ts";

type Part = Record<string, unknown>;

/** One container `app`, bound to node `n`, not yet looked at. */
export function pod(change: { metadata?: Part; spec?: Part; status?: Part } = {}): Pod {
  return {
    metadata: {
      name: "web",
      namespace: "default",
      uid: "u1",
      resourceVersion: "10",
      generation: 1,
      ...change.metadata,
    },
    spec: { nodeName: "n", restartPolicy: "Always", containers: [{ name: "app", image: "app:1" }], ...change.spec },
    status: { phase: "Pending", qosClass: "BestEffort", ...change.status },
  };
}

/** `burst-0`, with 4 CPUs, 8 GiB and room for ten pods. */
export function node(change: { metadata?: Part; spec?: Part; allocatable?: Record<string, string> } = {}): Node {
  return {
    metadata: { name: "burst-0", ...change.metadata },
    ...(change.spec && { spec: change.spec }),
    status: { allocatable: { cpu: "4", memory: "8Gi", pods: "10", ...change.allocatable } },
  };
}

/** A machine of one container that is not started again. */
export function machineSpec(change: Partial<MachineSpec> = {}): MachineSpec {
  return { labels: {}, restart_policy: "never", containers: [containerSpec()], ...change };
}

export function containerSpec(change: Partial<ContainerSpec> = {}): ContainerSpec {
  return { name: "c", image: "i", ...change };
}

/** What runs a script in a container. */
export function script(text: string, change: Partial<ContainerSpec> = {}): ContainerSpec {
  return containerSpec({ command: ["sh", "-c", text], ...change });
}

/** A machine that runs, as a backend tells of it, without containers. */
export function machine(change: Partial<Machine> = {}): Machine {
  return {
    id: "m",
    version: 1,
    revision: 1,
    labels: {},
    state: "running",
    reachability: "ok",
    sandbox_ready: true,
    created_at: "2026-01-01T00:00:00.000Z",
    addresses: [],
    containers: [],
    ...change,
  };
}

/** A container that waits, as a backend tells of it. */
export function containerState(name: string, change: Partial<ContainerState> = {}): ContainerState {
  return {
    name,
    kind: "main",
    state: "waiting",
    ready: false,
    started: false,
    restart_count: 0,
    image: "app:1",
    image_id: "",
    ...change,
  };
}
