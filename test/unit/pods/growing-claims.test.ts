/** Claims that grow while a machine has their volumes: when the backend is asked, and what is said of it. */
import { inspect } from "node:util";
import { beforeEach, describe, expect, onTestFinished, test } from "vitest";
import type { KubeRequest } from "../../../src/kube/kube.ts";
import { uidOf } from "../../../src/kube/pod.ts";
import type { Pod } from "../../../src/kube/wire.ts";
import { GrowingClaims } from "../../../src/pods/growing-claims.ts";
import { ProviderError } from "../../../src/provider/errors.ts";
import type { Machine, MachinePatch } from "../../../src/provider/machine.ts";
import { collectingLogger } from "../../support/collecting-logger.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";
import { FakeKube } from "../podspec/fake-kube.ts";
import { podWithContainer } from "../podspec/fixtures.ts";

const CLAIM = "/api/v1/namespaces/shop/persistentvolumeclaims/data-web-0";
const MINUTE_MS = 60_000;
const podOf = (claim: object = {}): Pod =>
  podWithContainer(
    { volumeMounts: [{ name: "data", mountPath: "/data" }] },
    { volumes: [{ name: "data", persistentVolumeClaim: { claimName: "data-web-0", ...claim } }] },
  );
const pod = podOf();
const having = (more: object = {}): Pick<Machine, "id" | "state" | "csi_volumes"> => ({
  ...{ id: "m1", state: "running" },
  csi_volumes: [{ driver: "csi.example.com", volume: "disk-1", ...more }],
});
const PENDING = {
  capacity: { storage: "1Gi" },
  allocatedResources: { storage: "2Gi" },
  allocatedResourceStatuses: { storage: "NodeResizePending" },
  conditions: [{ type: "FileSystemResizePending", status: "True" }],
};
const SECRET = "hunter2-hunter2";
const GROWTH = { driver: "csi.example.com", volume: "disk-1", size_bytes: 2 * 2 ** 30 };

describe("a claim that grows while a machine has its volume", () => {
  let clock: VirtualClock;
  let kube: FakeKube;
  let growing: GrowingClaims;
  let status: Record<string, unknown>;
  let csi: object;
  let capacity: string;
  let asked: { id: string; patch: MachinePatch }[];
  let answer: Error | undefined;
  let events: string[];
  let isOffered: boolean;
  let hasDisks: boolean;
  let source: object | undefined;
  let logged: ReturnType<typeof collectingLogger>;

  beforeEach(() => {
    [clock, kube, asked, answer, events] = [new VirtualClock(), new FakeKube(), [], undefined, []];
    [status, csi, isOffered] = [PENDING, { driver: "csi.example.com", volumeHandle: "disk-1" }, true];
    [capacity, logged] = ["2Gi", collectingLogger()];
    [hasDisks, source] = [false, undefined];
    const metadata = { uid: "claim-uid", resourceVersion: "7" };
    kube.intercept = ({ method, path }: Omit<KubeRequest, "signal">) => {
      const claim = { metadata, spec: { volumeName: "pv-1" }, status };
      if (method === "PATCH") return { ...claim, metadata: { ...metadata, resourceVersion: "8" } };
      if (path.endsWith("/secrets/expand")) return { data: { key: Buffer.from(SECRET).toString("base64") } };
      return path === CLAIM
        ? claim
        : { spec: { claimRef: { uid: "claim-uid" }, capacity: { storage: capacity }, ...(source ?? { csi }) } };
    };
    growing = new GrowingClaims({
      ...{ kube, clock, nodeName: "burst-0", random: () => 0.5, logger: logged },
      provider: {
        updatePod: (id, patch) => {
          asked.push({ id, patch });
          return answer === undefined ? Promise.resolve({} as Machine) : Promise.reject(answer);
        },
      },
      offers: (capability) => capability === (hasDisks ? "volumes.host_growth" : "volumes.csi_growth") && isOffered,
      event: (_pod, { type, reason, message }) => events.push(`${type} ${reason}: ${message}`),
    });
    const end = new AbortController();
    const over = growing.run(end.signal);
    onTestFinished(async () => {
      end.abort();
      await over;
    });
  });

  const patches = () => kube.requests.flatMap(({ method, body }) => (method === "PATCH" ? [body] : []));
  const look = async (machine = having(), of: Pod = pod) => {
    growing.look(of, machine);
    await clock.advance(MINUTE_MS);
  };

  test("is marked as under way, and then its driver is asked for, by the backend", async () => {
    await look();
    expect(patches()).toEqual([
      {
        metadata: { uid: "claim-uid", resourceVersion: "7" },
        status: { allocatedResourceStatuses: { storage: "NodeResizeInProgress" } },
      },
    ]);
    expect(asked).toEqual([{ id: "m1", patch: { csi_volumes: [GROWTH] } }]);
    expect(events).toEqual([
      'Normal FileSystemResizeSuccessful: MountVolume.NodeExpandVolume succeeded for volume "pv-1" burst-0',
    ]);
  });

  test("has the secret that the volume names for that passed on", async () => {
    csi = { ...csi, nodeExpandSecretRef: { namespace: "storage", name: "expand" } };
    await look();
    expect(asked[0]?.patch).toEqual({ csi_volumes: [{ ...GROWTH, expand_secrets: { key: SECRET } }] });
  });

  test("grows to all that its volume has become, which may be more than was asked for", async () => {
    capacity = "3Gi";
    await look();
    expect(asked[0]?.patch.csi_volumes?.[0]?.size_bytes).toBe(3 * 2 ** 30);
  });

  test("of an older resizer is asked for by its condition, and marked as nothing", async () => {
    status = { capacity: { storage: "1Gi" }, conditions: PENDING.conditions };
    await look();
    expect([asked[0]?.patch, patches()]).toEqual([{ csi_volumes: [GROWTH] }, []]);
  });

  test("that its driver is at still is no failure, and is asked for again soon", async () => {
    answer = new ProviderError("unavailable", "growth is under way", { retryAfterMs: 5_000 });
    await look();
    answer = undefined;
    await clock.advance(10_000);
    expect([asked.length, events]).toEqual([2, [expect.stringContaining("FileSystemResizeSuccessful")]]);
    expect(JSON.stringify(patches())).not.toContain("NodeResizeError");
  });

  describe("of which another node's machine has said already that it has grown", () => {
    beforeEach(() => {
      status = { capacity: { storage: "2Gi" }, accessModes: ["ReadWriteMany"] };
    });

    test("grows here, too, and nothing is marked for that", async () => {
      await look(having({ size_bytes: 2 ** 30 }));
      expect([asked[0]?.patch, patches()]).toEqual([{ csi_volumes: [GROWTH] }, []]);
    });

    test.each([
      ["has that size here", having({ size_bytes: 2 * 2 ** 30 }), ["ReadWriteMany"]],
      ["never told of a size here", having(), ["ReadWriteMany"]],
      ["is one node's alone", having({ size_bytes: 2 ** 30 }), ["ReadWriteOnce"]],
    ])("is left as it is when it %s", async (_what, machine, accessModes) => {
      status = { ...status, accessModes };
      await look(machine);
      expect(asked).toEqual([]);
    });
  });

  test("whose volume is read-only for all is left as it is", async () => {
    csi = { ...csi, readOnly: true };
    await look();
    expect([asked, patches()]).toEqual([[], []]);
  });

  test("that was under way when its agent ended is asked for again", async () => {
    status = { ...PENDING, allocatedResourceStatuses: { storage: "NodeResizeInProgress" } };
    await look();
    expect([asked.length, patches()]).toEqual([1, []]);
  });

  test.each<[string, () => Promise<void>]>([
    [
      "waits for its controller",
      async () => {
        status = { ...PENDING, allocatedResourceStatuses: { storage: "ControllerResizeInProgress" } };
        await look();
      },
    ],
    [
      "has failed for good",
      async () => {
        status = { ...PENDING, allocatedResourceStatuses: { storage: "NodeResizeInfeasible" } };
        await look();
      },
    ],
    [
      "is nothing that grows",
      async () => {
        status = { capacity: { storage: "2Gi" } };
        await look();
      },
    ],
    ["has grown for its machine already", () => look(having({ size_bytes: 2 * 2 ** 30 }))],
    ["is not what the machine has", () => look(having({ volume: "disk-2" }))],
    ["is read-only for the pod", () => look(having(), podOf({ readOnly: true }))],
    ["has a machine that does not run yet", () => look({ ...having(), state: "creating" })],
    [
      "is on a backend that cannot do it",
      () => {
        isOffered = false;
        return look();
      },
    ],
    [
      "has a pod that went",
      async () => {
        growing.look(pod, having());
        growing.release(uidOf(pod));
        await clock.advance(MINUTE_MS);
      },
    ],
  ])("is left alone that %s", async (_what, lookOnce) => {
    await lookOnce();
    expect([asked, patches(), events]).toEqual([[], [], []]);
  });

  test("that fails says so, in the claim as well, and is asked for again", async () => {
    answer = new ProviderError("unavailable", "NodeExpandVolume.NodeExpandVolume failed: busy");
    await look();
    expect(events).toEqual(["Warning VolumeResizeFailed: NodeExpandVolume.NodeExpandVolume failed: busy"]);
    expect(patches().at(-1)).toMatchObject({
      metadata: { resourceVersion: "8" },
      status: {
        conditions: [
          PENDING.conditions[0],
          {
            ...{ type: "NodeResizeError", status: "True" },
            message: "failed to expand pvc with NodeExpandVolume.NodeExpandVolume failed: busy",
          },
        ],
      },
    });
    answer = undefined;
    await clock.advance(MINUTE_MS);
    expect([asked.length, events.at(-1)?.split(":")[0]]).toEqual([2, "Normal FileSystemResizeSuccessful"]);
  });

  test("that its driver can never do is left to the controller", async () => {
    answer = new ProviderError("invalid", "too large");
    await look();
    expect(patches().at(-1)).toMatchObject({
      status: { allocatedResourceStatuses: { storage: "NodeResizeInfeasible" } },
    });
    expect(asked).toHaveLength(1);
  });

  test("quotes nothing of the secret that its driver was given, in no event and no claim", async () => {
    csi = { ...csi, nodeExpandSecretRef: { namespace: "storage", name: "expand" } };
    answer = new ProviderError("unavailable", `no ${SECRET}`);
    await look();
    expect(events).toEqual(["Warning VolumeResizeFailed: no [redacted]"]);
    expect(JSON.stringify(patches())).not.toContain(SECRET);
    expect(logged.lines.length).toBeGreaterThan(0);
    expect(inspect(logged.lines)).not.toContain(SECRET);
  });

  test("that cannot be while it is in use is asked for once, and only its claim says so", async () => {
    answer = new ProviderError("in_use", "in use");
    await look();
    growing.look(pod, having());
    await clock.advance(5 * MINUTE_MS);
    expect([asked.length, events]).toEqual([1, []]);
    expect(patches().slice(1)).toMatchObject([
      {
        status: {
          conditions: [
            PENDING.conditions[0],
            { ...{ type: "NodeResizeError", status: "True" }, message: "failed to expand pvc with in use" },
          ],
        },
      },
    ]);
  });

  describe("of a disk of the host", () => {
    const machine = { id: "m1", state: "running" } as const;
    const reads = () => kube.requests.filter(({ method }) => method === "GET").length;

    beforeEach(() => {
      [hasDisks, source] = [true, { local: { path: "/dev/vdb" } }];
    });

    test("has its file system grow, and is said to have grown at once", async () => {
      await look(machine);
      expect(asked).toEqual([{ id: "m1", patch: { host_volumes: [{ name: "data" }] } }]);
      expect(patches()).toEqual([
        expect.objectContaining({ status: { allocatedResourceStatuses: { storage: "NodeResizeInProgress" } } }),
        {
          metadata: { uid: "claim-uid", resourceVersion: "8" },
          status: { capacity: { storage: "2Gi" }, allocatedResourceStatuses: { storage: null }, conditions: null },
        },
      ]);
      expect(events).toEqual([expect.stringContaining("FileSystemResizeSuccessful")]);
    });

    test("that could not grow says why, and is asked for again", async () => {
      answer = new ProviderError("unavailable", "ext4 on /dev/vdb cannot grow: busy");
      await look(machine);
      expect(events).toEqual(["Warning VolumeResizeFailed: ext4 on /dev/vdb cannot grow: busy"]);
      expect(JSON.stringify(patches())).not.toContain("2Gi");
      answer = undefined;
      await clock.advance(MINUTE_MS);
      expect([asked.length, events.at(-1)?.split(":")[0]]).toEqual([2, "Normal FileSystemResizeSuccessful"]);
    });

    test("is looked for again as long as the machine runs", async () => {
      status = { capacity: { storage: "1Gi" } };
      await look(machine);
      expect(asked).toEqual([]);
      status = PENDING;
      await clock.advance(MINUTE_MS);
      expect(asked).toHaveLength(1);
    });

    test("that another has claimed since is left alone", async () => {
      source = { ...source, claimRef: { uid: "another" } };
      await look(machine);
      expect([asked, patches()]).toEqual([[], []]);
    });

    test.each([
      ["vmlet's own volume", { csi: { driver: "volumes.vmlet.dev", volumeHandle: "v1" } }],
      ["a server's", { nfs: { server: "192.0.2.1", path: "/" } }],
    ])("is not taken for %s, whose claim is read no more", async (_what, other) => {
      source = other;
      await look(machine);
      const read = reads();
      growing.look(pod, machine);
      await clock.advance(10 * MINUTE_MS);
      expect([asked, patches(), reads()]).toEqual([[], [], read]);
    });
  });

  test("is looked for again as long as the machine runs", async () => {
    status = { capacity: { storage: "1Gi" } };
    await look();
    expect(asked).toEqual([]);
    status = PENDING;
    await clock.advance(MINUTE_MS);
    expect(asked).toHaveLength(1);
  });
});
