import { describe, expect, test } from "vitest";
import type { Node, Pod } from "../../../src/kube/wire.ts";
import { isVmletNode, nodeRow, podRow } from "../../../src/ui/rows.ts";

const node = (conditions: object[], more: object = {}): Node =>
  ({
    metadata: { uid: "n", name: "burst-0", creationTimestamp: "2026-01-01T00:00:00Z", ...more },
    spec: { providerID: "vmlet://dev/burst-0", taints: [{ key: "a", value: "b", effect: "NoSchedule" }] },
    status: { conditions, allocatable: { cpu: "1500m", memory: "2Gi", pods: "110" } },
  }) as Node;

const pod = (status: object, spec: object = {}, annotations: object = {}): Pod =>
  ({
    metadata: { uid: "p", name: "a", namespace: "default", creationTimestamp: "2026-01-01T00:00:00Z", annotations },
    spec: {
      containers: [{ name: "c", image: "i", resources: { requests: { cpu: "250m", memory: "64Mi" } } }],
      ...spec,
    },
    status,
  }) as unknown as Pod;

describe("a node's row", () => {
  test("says what the node and its backend are, and how much there is", () => {
    const row = nodeRow(
      node([
        { type: "Ready", status: "True" },
        { type: "BackendReady", status: "False", reason: "BackendUnavailable", message: "connection refused" },
      ]),
    );
    expect(row).toMatchObject({
      state: "Ready",
      backend: { state: "fails", message: "connection refused" },
      capacity: { cpuMillis: 1500, memoryBytes: 2 ** 31, pods: 110 },
      taints: ["a=b:NoSchedule"],
      created: Date.parse("2026-01-01"),
    });
  });

  test("tells a backend that lacks machines from one that does not answer", () => {
    expect(nodeRow(node([{ type: "BackendReady", status: "False", reason: "MachinesMissing" }])).backend.state).toBe(
      "doubtful",
    );
    expect(nodeRow(node([])).backend.state).toBe("unknown");
  });

  test.each([
    ["0.031 0.004 USD", { cpu: 0.031, memoryGiB: 0.004, currency: "USD" }],
    ["free", undefined],
    [undefined, undefined],
  ])("has the price %j as %j", (price, expected) => {
    expect(nodeRow(node([], { annotations: { "vmlet.dev/price": price } })).price).toEqual(expected);
  });

  test("only Nodes of vmlet agents are vmlet nodes", () => {
    expect(isVmletNode(node([]))).toBe(true);
    expect(isVmletNode({ spec: { providerID: "aws://a" }, status: {} })).toBe(false);
    expect(isVmletNode({ status: { nodeInfo: { kubeletVersion: "v1.36.0+vmlet.0.1.0" } } } as Node)).toBe(true);
  });
});

describe("a pod's row", () => {
  test("says which machine it is, where and how large", () => {
    const row = podRow(
      pod(
        { phase: "Running", podIP: "10.0.0.1", containerStatuses: [running("c")] },
        { nodeName: "burst-0" },
        { "vmlet.dev/machine": "m-1", "vmlet.dev/host": "rack-7", "vmlet.dev/instance-type": "large" },
      ),
    );
    expect(row).toMatchObject({
      ...{ node: "burst-0", machine: "m-1", host: "rack-7", instanceType: "large", phase: "Running" },
      ...{ status: "Running", ready: "1/1", restarts: 2, size: { cpuMillis: 250, memoryBytes: 2 ** 26 } },
      ...{ started: Date.parse("2026-01-01T00:00:05Z"), ended: 0 },
    });
  });

  test("ends with its last container", () => {
    const terminated = { exitCode: 0, startedAt: "2026-01-01T00:00:01Z", finishedAt: "2026-01-01T00:00:09Z" };
    const row = podRow(pod({ phase: "Succeeded", containerStatuses: [{ name: "c", state: { terminated } }] }));
    expect([row.started, row.ended].map((ms) => ms - row.created)).toEqual([1_000, 9_000]);
    expect(row.containers).toEqual([expect.objectContaining({ state: "ended", reason: " (0)" })]);
  });

  test("is of bounded size, whatever a tenant writes", () => {
    const long = "x".repeat(100_000);
    const containers = Array.from({ length: 500 }, (_, index) => ({ name: `c${index}`, image: long }));
    const waiting = { reason: long, message: long };
    const statuses = containers.map(({ name }) => ({ name, state: { waiting } }));
    const annotations = { "vmlet.dev/machine": long, "vmlet.dev/host": long, "vmlet.dev/instance-type": long };
    const row = podRow(pod({ phase: long, message: long, containerStatuses: statuses }, { containers }, annotations));
    expect(JSON.stringify(row).length).toBeLessThan(64 * 1_100);
  });

  test("has no size when what it asks for is no amount", () => {
    const containers = [{ name: "c", resources: { requests: { cpu: "many" } } }];
    expect(podRow(pod({}, { containers })).size).toEqual({ cpuMillis: 0, memoryBytes: 0 });
  });
});

const running = (name: string) => ({
  name,
  ready: true,
  restartCount: 2,
  state: { running: { startedAt: "2026-01-01T00:00:30Z" } },
  lastState: { terminated: { exitCode: 1, startedAt: "2026-01-01T00:00:05Z" } },
});
