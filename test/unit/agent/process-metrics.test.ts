import { expect, test } from "vitest";
import type { NodeAgent } from "../../../src/agent/node-agent.ts";
import { observeProcess } from "../../../src/agent/process-metrics.ts";
import type { Pod } from "../../../src/kube/wire.ts";
import type { Machine } from "../../../src/provider/machine.ts";
import { createMetrics } from "../../../src/telemetry/metrics.ts";
import { machine } from "../../support/builders.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

const node = (name: string, machines: readonly Machine[], pods: readonly Pod[] = []): NodeAgent =>
  ({
    name,
    pods: {
      store: { list: () => pods },
      working: 0,
      stuck: 0,
      machines: { values: () => machines.values(), unknown: () => [].values() },
      observer: { failingSince: undefined },
      reflector: {
        lastActivityAt: undefined,
        counters: { watches: 0, watchErrors: 0, skipped: 0, relists: {} },
      },
    },
  }) as unknown as NodeAgent;

test("the metric vmlet_machine_cost is what a node's machines cost by the hour, until they are deleted", async () => {
  const metrics = createMetrics({ nodeNames: ["a", "b"], version: "1" });
  const small = { instance_type: "small", zone: "east", price: 0.25 };
  const of = (id: string, extra: Partial<Machine>) => ({ ...machine(extra), id });
  const nodes = [
    node("a", [of("1", small), of("2", { ...small, state: "stopped" }), of("3", { ...small, state: "deleted" })]),
    node("b", [of("4", { instance_type: "large", price: 2 }), of("5", { instance_type: "free" })]),
  ];
  const told = async () => {
    observeProcess(undefined, nodes, { clock: new VirtualClock() }, metrics);
    return (await metrics.registry.metrics()).split("\n").filter((line) => line.startsWith("vmlet_machine_cost"));
  };
  const expected = [
    'vmlet_machine_cost{node="a",instance_type="small",zone="east"} 0.5',
    'vmlet_machine_cost{node="b",instance_type="large",zone=""} 2',
  ];
  expect(await told()).toEqual(expected);
  expect(await told()).toEqual(expected);
});

test("resizes that wait are counted by reason and priority, and those under way", async () => {
  const metrics = createMetrics({ nodeNames: ["a"], version: "1" });
  const pod = (priority: number, type: string, reason = ""): Pod => ({
    spec: { containers: [], priority },
    status: { conditions: [{ type, status: "True", reason }] },
  });
  const waiting = (priority: number, reason: string) => pod(priority, "PodResizePending", reason);
  const pods = [
    waiting(0, "Deferred"),
    waiting(0, "Deferred"),
    waiting(5, "Infeasible"),
    pod(0, "PodResizeInProgress"),
  ];
  observeProcess(undefined, [node("a", [], pods)], { clock: new VirtualClock() }, metrics);
  const lines = (await metrics.registry.metrics())
    .split("\n")
    .filter((line) => /^kubelet_pod_.*_resizes[ {]/.test(line));
  expect(lines).toEqual([
    'kubelet_pod_pending_resizes{reason="deferred",priority_bucket="normal"} 2',
    'kubelet_pod_pending_resizes{reason="infeasible",priority_bucket="medium"} 1',
    "kubelet_pod_in_progress_resizes 1",
  ]);
});
