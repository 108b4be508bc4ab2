import { describe, expect, test } from "vitest";
import type { Pod } from "../../../src/kube/wire.ts";
import { admitPod } from "../../../src/podspec/admission/admission.ts";
import { node } from "../../support/builders.ts";
import { otherPods, podWithContainer } from "./fixtures.ts";

const burst0 = node();

const CRITICAL = 2_000_001_000;

let count = 0;

function other(requests: Record<string, string>, { priority = 0, guaranteed = false } = {}): Pod {
  const resources = { requests, ...(guaranteed && { limits: requests }) };
  const pod = podWithContainer({ resources }, { priority });
  return { ...pod, metadata: { ...pod.metadata, uid: `other-${count++}` } };
}
const admit = (requests: Record<string, string>, others: Pod[], priority = CRITICAL) =>
  admitPod({
    pod: podWithContainer({ resources: { requests } }, { priority }),
    node: burst0,
    otherPods: otherPods(...others),
    daemonSets: "run",
  });
const victimsOf = (admission: ReturnType<typeof admit>) =>
  admission.kind === "preempt" ? admission.victims : expect.fail(JSON.stringify(admission));

describe("a critical pod on a full node", () => {
  test("takes the room of as few and as cheap pods as will do", () => {
    const small = other({ cpu: "1" });
    const fitting = other({ cpu: "1500m" });
    const large = other({ cpu: "1500m", memory: "4Gi" });
    expect(victimsOf(admit({ cpu: "1500m" }, [small, large, fitting]))).toEqual([fitting]);
  });

  test("takes BestEffort and Burstable pods before Guaranteed ones", () => {
    const guaranteed = other({ cpu: "2", memory: "1Gi" }, { guaranteed: true });
    const burstable = [other({ cpu: "1" }), other({ cpu: "1" })];
    expect(victimsOf(admit({ cpu: "2" }, [guaranteed, ...burstable]))).toEqual(expect.arrayContaining(burstable));
    expect(victimsOf(admit({ cpu: "3" }, [guaranteed, ...burstable]))).toContain(guaranteed);
  });

  test("takes whoever is there when the node has as many pods as it may", () => {
    const full = Array.from({ length: 10 }, () => other({}));
    expect(victimsOf(admit({}, full))).toHaveLength(1);
  });

  test("leaves other critical pods of its priority alone, and says what it lacks", () => {
    expect(admit({ cpu: "3" }, [other({ cpu: "3" }, { priority: CRITICAL })])).toEqual({
      kind: "reject",
      reason: "UnexpectedAdmissionError",
      message:
        "Unexpected error while attempting to recover from admission failure: preemption: error finding a set of pods to preempt: no set of running pods found to reclaim resources: [(res: cpu, q: 2000), ]",
    });
  });

  test("is refused for what no preemption can mend, before anybody is asked to go", () => {
    const pod = podWithContainer(
      { resources: { requests: { cpu: "3" } } },
      { priority: CRITICAL, nodeName: "elsewhere" },
    );
    expect(admitPod({ pod, node: burst0, otherPods: otherPods(other({ cpu: "3" })), daemonSets: "run" })).toMatchObject(
      {
        reason: "NodeName",
      },
    );
  });
});

test("a pod that is not critical takes nobody's room, whatever its priority", () => {
  expect(admit({ cpu: "3" }, [other({ cpu: "3" })], 1_999_999_999)).toMatchObject({
    kind: "reject",
    reason: "OutOfcpu",
  });
});
