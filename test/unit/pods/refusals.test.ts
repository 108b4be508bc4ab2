import { beforeEach, describe, expect, test } from "vitest";
import { OwnerBackoff, refusalPolicy } from "../../../src/pods/refusals.ts";
import { pod } from "../../support/builders.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

const owned = (apiVersion: string, kind: string) =>
  pod({ metadata: { ownerReferences: [{ apiVersion, kind, name: "x", uid: "o", controller: true }] } });

describe("a pod that can never run here", () => {
  test.each([
    ["apps/v1", "ReplicaSet", "hold"],
    ["apps/v1", "StatefulSet", "hold"],
    ["v1", "ReplicationController", "hold"],
    ["apps/v1", "DaemonSet", "hold"],
    ["batch/v1", "Job", "fail"],
    ["argoproj.io/v1alpha1", "Workflow", "pace"],
    ["example.com/v1", "ReplicaSet", "pace"],
    ["v1", "Node", "pace"],
  ])("and belongs to a %s %s: %s", (apiVersion, kind, expected) => {
    expect(refusalPolicy(owned(apiVersion, kind), "UnsupportedFeature")).toBe(expected);
    expect(refusalPolicy(owned(apiVersion, kind), "InvalidSpec")).toBe(expected);
  });

  test("and belongs to nobody fails, as it does by a kubelet", () => {
    expect(refusalPolicy(pod(), "UnsupportedFeature")).toBe("fail");
    const owner = { apiVersion: "apps/v1", kind: "ReplicaSet", name: "x", uid: "o" };
    expect(refusalPolicy(pod({ metadata: { ownerReferences: [owner] } }), "InvalidSpec")).toBe("fail");
  });
});

describe("a pod that cannot run here now", () => {
  const reasons = ["OutOfcpu", "OutOfpods", "NodeAffinity", "NodePorts", "TaintToleration", "UnexpectedAdmissionError"];

  test.each([
    ["apps/v1", "ReplicaSet", "pace"],
    ["apps/v1", "StatefulSet", "pace"],
    ["v1", "ReplicationController", "pace"],
    ["example.com/v1", "Thing", "pace"],
    ["apps/v1", "DaemonSet", "fail"],
    ["batch/v1", "Job", "fail"],
  ])("and belongs to a %s %s: %s", (apiVersion, kind, expected) => {
    for (const reason of [...reasons, "MachineLost"])
      expect(refusalPolicy(owned(apiVersion, kind), reason)).toBe(expected);
  });
});

describe("the back-off of an owner", () => {
  let clock: VirtualClock;
  let backoff: OwnerBackoff;
  const settings = { firstMs: 10_000, maxMs: 300_000, forgetMs: 600_000 };
  beforeEach(async () => {
    clock = new VirtualClock();
    await clock.advance(1_000_000);
    backoff = new OwnerBackoff({ ...settings, clock });
  });
  const now = () => clock.monotonic();
  /** How often pods of an owner that replaces each at once fail in so long. */
  const failures = async (ms: number, replicas = 1) => {
    let count = 0;
    let seen = Array.from({ length: replicas }, () => now());
    for (const end = now() + ms; now() < end; await clock.advance(1_000)) {
      const stay: number[] = [];
      for (const seenAt of seen) {
        if (backoff.delay("o", seenAt) > 0) stay.push(seenAt);
        else {
          backoff.failed("o", seenAt);
          count++;
        }
      }
      seen = [...stay, ...Array.from({ length: replicas - stay.length }, () => now() + 1)];
    }
    return count;
  };

  test("lets the first pod fail at once, and its replacements at 10, 30, 70, 150, 310 and 610 seconds", async () => {
    expect(await failures(1)).toBe(1);
    expect(await failures(9_000)).toBe(0);
    expect(await failures(605_000)).toBe(6);
  });

  test("lets all pods of a round fail, for the scheduler may find room elsewhere for each", async () => {
    expect(await failures(11_000, 50)).toBe(100);
    expect(await failures(19_000, 50)).toBe(0);
  });

  test("is another owner's business only", () => {
    backoff.failed("o", now());
    expect(backoff.delay("other", now() + 1)).toBe(0);
  });

  test("begins anew after a quiet time", async () => {
    await failures(100_000);
    await clock.advance(1_000_000);
    expect(backoff.delay("o", now())).toBe(0);
    backoff.failed("o", now());
    expect(backoff.delay("o", now() + 1)).toBe(10_000);
  });

  test("can let rounds pass for nothing", () => {
    backoff = new OwnerBackoff({ ...settings, clock, freeRounds: 1 });
    backoff.failed("o", now());
    expect(backoff.delay("o", now() + 1)).toBe(0);
    backoff.failed("o", now() + 1);
    expect(backoff.delay("o", now() + 2)).toBe(10_000);
  });

  test("remembers no more owners than it has to", () => {
    for (let i = 0; i < 20_001; i++) backoff.failed(`o${i}`, now());
    expect(backoff.delay("o0", now() + 1)).toBe(0);
    expect(backoff.delay("o20000", now() + 1)).toBe(10_000);
  });
});
