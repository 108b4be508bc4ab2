import type { Pod } from "../../../src/kube/wire.ts";
import type { ContainerState, Machine } from "../../../src/provider/machine.ts";

export const NOW = Date.parse("2026-06-01T12:00:00Z");

type Spec = Record<string, unknown>;

/** A pod with one container `app`, bound and not yet looked at, changed by `overrides`. */
export function pod(overrides: { spec?: Spec; status?: Spec; metadata?: Spec } = {}): Pod {
  return {
    metadata: {
      name: "web",
      namespace: "default",
      uid: "u1",
      resourceVersion: "10",
      generation: 1,
      ...overrides.metadata,
    },
    spec: { nodeName: "n", restartPolicy: "Always", containers: [{ name: "app", image: "app:1" }], ...overrides.spec },
    status: { phase: "Pending", qosClass: "BestEffort", ...overrides.status },
  };
}

export function container(name: string, change: Partial<ContainerState> = {}): ContainerState {
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

export const running = (name: string, change: Partial<ContainerState> = {}) =>
  container(name, {
    state: "running",
    ready: true,
    started: true,
    id: `${name}-0`,
    started_at: "2026-06-01T11:59:00.500Z",
    ...change,
  });

export const exited = (name: string, exitCode: number, change: Partial<ContainerState> = {}) =>
  container(name, {
    state: "terminated",
    id: `${name}-0`,
    started_at: "2026-06-01T11:59:00.500Z",
    terminated: {
      exit_code: exitCode,
      reason: exitCode === 0 ? "Completed" : "Error",
      started_at: "2026-06-01T11:59:00.500Z",
      finished_at: "2026-06-01T11:59:30.900Z",
      id: `${name}-0`,
    },
    ...change,
  });

export function machine(change: Partial<Machine> = {}): Machine {
  return {
    id: "m-u1",
    version: 3,
    revision: 30,
    labels: {},
    state: "running",
    reachability: "ok",
    sandbox_ready: true,
    created_at: "2026-06-01T11:58:59.000Z",
    addresses: [{ ip: "10.9.0.7" }],
    containers: [running("app")],
    ...change,
  };
}
