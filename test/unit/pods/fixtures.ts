import { containerState, machine as anyMachine } from "../../support/builders.ts";
import type { ContainerState, Machine } from "../../../src/provider/machine.ts";

export const NOW = Date.parse("2026-06-01T12:00:00Z");

export const running = (name: string, change: Partial<ContainerState> = {}) =>
  containerState(name, {
    state: "running",
    ready: true,
    started: true,
    id: `${name}-0`,
    started_at: "2026-06-01T11:59:00.500Z",
    ...change,
  });

export const exited = (name: string, exitCode: number, change: Partial<ContainerState> = {}) =>
  containerState(name, {
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

/** The machine of the pod that `pod()` makes. */
export const machine = (change: Partial<Machine> = {}): Machine =>
  anyMachine({
    id: "m-u1",
    version: 3,
    revision: 30,
    created_at: "2026-06-01T11:58:59.000Z",
    addresses: [{ ip: "10.9.0.7" }],
    containers: [running("app")],
    ...change,
  });
