import * as fc from "fast-check";
import { describe, expect, test } from "vitest";
import type { Pod } from "../../../src/kube/wire.ts";
import { allocatedUnits, hostPorts, NodeAllocation, type HostPort } from "../../../src/podspec/admission/allocation.ts";
import { runs } from "../../support/runs.ts";
import { podWithContainer } from "./fixtures.ts";

interface Wish {
  cpu: number;
  port: HostPort | undefined;
  phase: "Pending" | "Running" | "Failed";
  started: boolean;
}

function podOf(uid: string, { cpu, port, phase, started }: Wish): Pod {
  const ports = port && [{ containerPort: 80, hostPort: port.port, hostIP: port.ip, protocol: port.protocol }];
  const pod = podWithContainer({ resources: { requests: { cpu: `${cpu}m` } }, ...(ports && { ports }) });
  return {
    ...pod,
    metadata: { ...pod.metadata, uid },
    status: { phase, ...(started && { startTime: "2026-01-01T00:00:00Z" }) },
  };
}

describe("what a node has given to its pods", () => {
  const uid = fc.constantFrom("a", "b", "c", "d");
  const port = fc.record({
    port: fc.constantFrom(80, 443),
    protocol: fc.constantFrom("TCP", "UDP"),
    ip: fc.constantFrom("0.0.0.0", "10.0.0.1", "10.0.0.2"),
  });
  const wish = fc.record<Wish>({
    cpu: fc.integer({ min: 0, max: 500 }),
    port: fc.option(port, { nil: undefined }),
    phase: fc.constantFrom("Pending", "Running", "Failed"),
    started: fc.boolean(),
  });
  const step = fc.oneof(
    fc.record({ do: fc.constant("put" as const), uid, wish }),
    fc.record({ do: fc.constantFrom("remove" as const, "admit" as const, "release" as const, "leave" as const), uid }),
    fc.record({ do: fc.constant("ask" as const), uid, staying: fc.boolean(), port }),
  );

  test("is the sum over those that were admitted and are not over, after any history", () => {
    fc.assert(
      fc.property(fc.array(step, { maxLength: 40 }), (steps) => {
        const allocation = new NodeAllocation();
        const pods = new Map<string, Pod>();
        const [admitted, leaving] = [new Set<string>(), new Set<string>()];
        for (const each of steps) {
          if (each.do === "put") {
            const pod = podOf(each.uid, each.wish);
            pods.set(each.uid, pod);
            allocation.put(pod);
          } else if (each.do === "ask") {
            const others = allocation.others(each.uid, { staying: each.staying });
            const expected = [...pods].flatMap(([uid, pod]) => {
              const isAdmitted = pod.status?.startTime !== undefined || admitted.has(uid);
              const isOut = uid === each.uid || pod.status?.phase === "Failed" || (each.staying && leaving.has(uid));
              return isAdmitted && !isOut ? [pod] : [];
            });
            const clashes = (taken: HostPort) =>
              taken.port === each.port.port &&
              taken.protocol === each.port.protocol &&
              (taken.ip === each.port.ip || taken.ip === "0.0.0.0" || each.port.ip === "0.0.0.0");
            expect(others.count).toBe(expected.length);
            expect(others.list()).toHaveLength(expected.length);
            expect(others.allocated("cpu")).toBe(
              expected.reduce((sum, pod) => sum + (allocatedUnits(pod).get("cpu") ?? 0n), 0n),
            );
            expect(others.hasPort(each.port)).toBe(expected.flatMap(hostPorts).some(clashes));
          } else {
            allocation[each.do](each.uid);
            if (each.do === "admit") admitted.add(each.uid);
            else if (each.do === "leave") leaving.add(each.uid);
            else for (const set of [admitted, leaving]) set.delete(each.uid);
            if (each.do === "remove") pods.delete(each.uid);
          }
        }
      }),
      { numRuns: runs(500) },
    );
  });

  test("is not in doubt because one pod asks for what makes no sense", () => {
    const allocation = new NodeAllocation();
    const senseless = podWithContainer({ resources: { requests: { cpu: "many" } } });
    allocation.put({ ...senseless, status: { startTime: "2026-01-01T00:00:00Z" } });
    expect(allocation.others("another")).toMatchObject({ count: 1 });
    expect(allocation.others("another").allocated("cpu")).toBe(0n);
  });

  test("is not summed up again for each pod that is judged", () => {
    const allocation = new NodeAllocation();
    let reads = 0;
    for (let i = 0; i < 100; i++) {
      const pod = podOf(`u${i}`, { cpu: 10, port: undefined, phase: "Running", started: true });
      const spec = pod.spec!;
      Object.defineProperty(pod, "spec", { get: () => (reads++, spec) });
      allocation.put(pod);
    }
    expect(allocation.others("u0").allocated("cpu")).toBe(990n);
    const once = reads;
    for (let i = 0; i < 100; i++) allocation.others(`u${i}`).allocated("cpu");
    expect(reads).toBe(once);
  });
});
