/** Claims whose volumes have grown for a pod's machine say so, once it has them. */
import { beforeEach, describe, expect, onTestFinished, test } from "vitest";
import type { KubeRequest } from "../../../src/kube/kube.ts";
import type { Pod } from "../../../src/kube/wire.ts";
import { GrownClaims } from "../../../src/pods/grown-claims.ts";
import type { Machine } from "../../../src/provider/machine.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { apiError } from "../../support/scripted-kube.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";
import { FakeKube } from "../podspec/fake-kube.ts";
import { podWithContainer } from "../podspec/fixtures.ts";

const CLAIM = "/api/v1/namespaces/shop/persistentvolumeclaims/data-web-0";
const MIB = 2 ** 20;
const pod: Pod = podWithContainer(
  { volumeMounts: [{ name: "data", mountPath: "/data" }] },
  {
    volumes: [
      { name: "data", persistentVolumeClaim: { claimName: "data-web-0" } },
      { name: "tmp", emptyDir: {} },
    ],
  },
);
const having = (...sizes: (number | undefined)[]): Pick<Machine, "csi_volumes"> => ({
  csi_volumes: sizes.map((size_bytes) => ({
    ...{ driver: "csi.example.com", volume: "disk-1" },
    ...(size_bytes !== undefined && { size_bytes }),
  })),
});

describe("a claim whose volume has grown", () => {
  let clock: VirtualClock;
  let kube: FakeKube;
  let grown: GrownClaims;
  let claim: { metadata: object; spec: object; status: Record<string, unknown> };
  let capacity: string;
  /** What comes of each PATCH. */
  let patched: () => unknown;

  beforeEach(() => {
    [clock, kube, capacity, patched] = [new VirtualClock(), new FakeKube(), "2Gi", () => ({})];
    claim = {
      metadata: { uid: "claim-uid", resourceVersion: "7" },
      spec: { volumeName: "pv-1" },
      status: {
        capacity: { storage: "1Gi" },
        conditions: [{ type: "FileSystemResizePending", status: "True" }],
        allocatedResourceStatuses: { storage: "NodeResizePending" },
      },
    };
    const volume = () => ({
      spec: {
        ...{ claimRef: { uid: "claim-uid" }, capacity: { storage: capacity } },
        csi: { driver: "csi.example.com", volumeHandle: "disk-1" },
      },
    });
    kube.intercept = ({ method, path }: Omit<KubeRequest, "signal">) => {
      if (method === "PATCH") return patched();
      return path === CLAIM ? claim : volume();
    };
    grown = new GrownClaims({ kube, clock, random: () => 0.5, logger: silentLogger });
    const end = new AbortController();
    const over = grown.run(end.signal);
    onTestFinished(async () => {
      end.abort();
      await over;
    });
  });

  const told = () => kube.requests.filter(({ method }) => method === "PATCH");

  test("says its new size, and that nothing is pending any more", async () => {
    grown.look(pod, having(2048 * MIB));
    await clock.advance(0);
    expect(told()).toEqual([
      expect.objectContaining({
        path: `${CLAIM}/status`,
        body: {
          metadata: { uid: "claim-uid", resourceVersion: "7" },
          status: { capacity: { storage: "2Gi" }, conditions: null, allocatedResourceStatuses: { storage: null } },
        },
      }),
    ]);
  });

  test("keeps what others say of it", async () => {
    const foreign = { type: "ModifyingVolume", status: "True" };
    claim.status["conditions"] = [foreign, { type: "Resizing", status: "True" }];
    grown.look(pod, having(2048 * MIB));
    await clock.advance(0);
    expect(told()[0]?.body).toMatchObject({ status: { conditions: [foreign] } });
  });

  test("is written once, however often the machine is looked at", async () => {
    for (let look = 0; look < 3; look++) {
      grown.look(pod, having(2048 * MIB));
      await clock.advance(1_000);
    }
    expect(told()).toHaveLength(1);
  });

  test("is written again after a conflict, of what the claim says then", async () => {
    patched = () => {
      claim.metadata = { uid: "claim-uid", resourceVersion: "8" };
      patched = () => ({});
      throw apiError(409, "Conflict");
    };
    grown.look(pod, having(2048 * MIB));
    await clock.advance(5_000);
    expect(told().map(({ body }) => body)).toMatchObject([
      { metadata: { resourceVersion: "7" } },
      { metadata: { resourceVersion: "8" } },
    ]);
  });

  test.each([
    ["has become larger still", having(1500 * MIB), undefined],
    ["says so already", having(2048 * MIB), { capacity: { storage: "2Gi" } }],
    ["was not grown for the machine", having(undefined), undefined],
    ["is another's", { csi_volumes: [{ driver: "csi.example.com", volume: "disk-2", size_bytes: 1 }] }, undefined],
  ])("that %s is left as it is", async (_why, machine, status) => {
    if (status !== undefined) claim.status = status;
    grown.look(pod, machine);
    await clock.advance(10_000);
    expect(told()).toEqual([]);
  });

  test("is left alone when its pod is gone", async () => {
    patched = () => {
      throw apiError(500, "InternalError");
    };
    grown.look(pod, having(2048 * MIB));
    await clock.advance(0);
    grown.release(pod.metadata!.uid!);
    const before = told().length;
    await clock.advance(600_000);
    expect([before, told().length]).toEqual([1, 1]);
  });
});
