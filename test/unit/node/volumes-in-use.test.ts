import { afterEach, beforeEach, describe, expect, test } from "vitest";
import type { Node } from "../../../src/kube/wire.ts";
import { VolumesInUse } from "../../../src/node/volumes-in-use.ts";
import { CSI_DRIVER, csiVolumeName } from "../../../src/provider/csi-names.ts";
import type { Machine } from "../../../src/provider/machine.ts";
import type { MachineList } from "../../../src/provider/provider.ts";
import { ProviderError } from "../../../src/provider/errors.ts";
import type { PersistentVolume, VolumeProvider } from "../../../src/provider/volume.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { settle, VirtualClock } from "../../support/virtual-clock.ts";

const OWN = "abc.burst-0";
const own = (handle: string): string => csiVolumeName(CSI_DRIVER, handle);
const OTHER = { driver: "csi.example.com", volume: "disk-1" };
const other = csiVolumeName(OTHER.driver, OTHER.volume);
const machineOf = (uid: string, ...csi_volumes: object[]): Machine => ({ id: `m-${uid}`, csi_volumes }) as Machine;
const nodeSaying = (...names: string[]): Node => ({ status: { volumesInUse: names } });

describe("the volumes that a Node says are in use", () => {
  let clock: VirtualClock;
  let changes: number;
  let told: string[];
  /** By volume: the reservations by which machines have it; undefined: the backend does not answer. */
  let had: Map<string, string[] | undefined>;
  let asked: string[];
  /** What the backend says of this node's machines. */
  let machines: () => Promise<Pick<MachineList, "items" | "unknown">>;
  let inUse: VolumesInUse;
  let done: AbortController;

  beforeEach(() => {
    clock = new VirtualClock();
    [changes, told, had, asked] = [0, [], new Map(), []];
    done = new AbortController();
    machines = () => Promise.resolve({ items: [] });
    const volumes = {
      get: (id: string) => {
        asked.push(id);
        if (!had.has(id)) return Promise.reject(new ProviderError("not_found", "no such volume"));
        const reservations = had.get(id);
        if (reservations === undefined) return Promise.reject(new ProviderError("unavailable", "no answer"));
        const attachments = reservations.map((reservation) => ({ machine: "m-u1", reservation }));
        return Promise.resolve({ id, attachments } as unknown as PersistentVolume);
      },
    } as unknown as VolumeProvider;
    inUse = new VolumesInUse({
      provider: { volumes },
      machines: () => machines(),
      reservation: OWN,
      podOf: (machine) => /^m-(.+)$/.exec(machine)?.[1],
      clock,
      random: () => 0,
      logger: silentLogger,
      onChange: () => changes++,
      onTold: (uid) => void told.push(uid),
    });
  });
  afterEach(() => done.abort());

  /** What a status report does. */
  const report = (node: Node): string[] => {
    const names = inUse.wanted(node);
    inUse.told(names);
    return names;
  };
  const run = async () => {
    void inUse.run(done.signal);
    await settle();
  };

  test("are none of those that no driver has, which are one pod's all the same while it claims them", () => {
    const path = "kubernetes.io/local-volume/pv-1";
    expect(inUse.claim("u1", [path])).toBe(true);
    expect(inUse.isOthers("u2", path)).toBe(true);
    expect(report(nodeSaying())).toEqual([]);
    inUse.release("u1");
    expect(inUse.isOthers("u2", path)).toBe(false);
    expect(report(nodeSaying())).toEqual([]);
  });

  test("are those that pods claim, and a pod hears when they are told", () => {
    expect(inUse.claim("u1", [own("a")])).toBe(false);
    expect(changes).toBe(1);
    expect(report(nodeSaying())).toEqual([own("a")]);
    expect(told).toEqual(["u1"]);
    expect(inUse.claim("u1", [own("a")])).toBe(true);
    report(nodeSaying(own("a")));
    expect(told).toEqual(["u1"]);
  });

  test("are another pod's until that one is released", () => {
    inUse.claim("u1", [own("a"), own("b")]);
    expect([inUse.isOthers("u1", own("a")), inUse.isOthers("u2", own("a")), inUse.isOthers("u2", own("c"))]).toEqual([
      false,
      true,
      false,
    ]);
    inUse.release("u1");
    expect(inUse.isOthers("u2", own("a"))).toBe(false);
  });

  test.each<[string, string[] | undefined, string, boolean]>([
    ["another pod's machine of this node has it", [OWN], "u2", true],
    ["this pod's own machine has it", [OWN], "u1", false],
    ["a machine of another node has it", ["abc.burst-1"], "u2", false],
    ["nothing has it", [], "u2", false],
    ["the backend does not answer", undefined, "u2", false],
  ])("are held by another pod, of an earlier agent, by the backend's word: %s", async (_why, reservations, uid, is) => {
    had.set("a", reservations);
    expect(await inUse.isHeldByOthers(uid, own("a"), done.signal)).toBe(is);
  });

  test("are held by nobody that is known when who asks has gone, and it is told so", async () => {
    had.set("a", undefined);
    await expect(inUse.isHeldByOthers("u2", own("a"), AbortSignal.abort(new Error("gone")))).rejects.toThrow("gone");
  });

  test("stay until the backend says that no machine of this node has them", async () => {
    inUse.claim("u1", [own("a")]);
    report(nodeSaying());
    had.set("a", [OWN]);
    await run();
    inUse.release("u1");
    expect(report(nodeSaying(own("a")))).toEqual([own("a")]);
    await settle();
    expect(asked).toEqual(["a"]);
    had.set("a", []);
    await clock.advance(1_000);
    expect(report(nodeSaying(own("a")))).toEqual([]);
  });

  test.each([
    ["the backend does not answer", undefined, [own("a")]],
    ["a machine of this node has it", [OWN], [own("a")]],
    ["a machine of another node has it", ["abc.burst-1"], []],
    ["nothing has it", [], []],
  ])("of an earlier agent stay or go by the backend's word: %s", async (_why, reservations, left) => {
    had.set("a", reservations);
    expect(report(nodeSaying(own("a")))).toEqual([own("a")]);
    await run();
    expect(report(nodeSaying(own("a")))).toEqual(left);
  });

  test("of an earlier agent go when there is no such volume", async () => {
    report(nodeSaying(own("gone")));
    await run();
    expect(report(nodeSaying(own("gone")))).toEqual([]);
  });

  test("that a pod claims while the backend is asked stay", async () => {
    const answer = Promise.withResolvers<void>();
    had.set("a", []);
    const volumes = { get: async () => (await answer.promise, { id: "a", attachments: [] }) };
    const slow = new VolumesInUse({
      provider: { volumes: volumes as unknown as VolumeProvider },
      machines: () => machines(),
      reservation: OWN,
      podOf: (machine) => /^m-(.+)$/.exec(machine)?.[1],
      clock,
      random: () => 0,
      logger: silentLogger,
      onChange: () => changes++,
      onTold: () => undefined,
    });
    slow.told(slow.wanted(nodeSaying(own("a"))));
    void slow.run(done.signal);
    await settle();
    slow.claim("u1", [own("a")]);
    slow.told(slow.wanted(nodeSaying(own("a"))));
    answer.resolve();
    await settle();
    slow.release("u1");
    expect(slow.wanted(nodeSaying(own("a")))).toEqual([own("a")]);
  });

  test("are written again when the cached Node is older than what was written", () => {
    inUse.claim("u1", [own("a")]);
    report(nodeSaying());
    inUse.claim("u2", [own("b")]);
    const names = inUse.wanted(nodeSaying(own("a"), own("b")));
    expect(names).toEqual([own("a"), own("b")]);
    expect(inUse.isNews(names)).toBe(true);
    inUse.told(names);
    expect(inUse.isNews(names)).toBe(false);
  });

  test("count as told no more from when a write leaves them out, which may arrive at any time", async () => {
    had.set("a", []);
    report(nodeSaying(own("a")));
    await run();
    expect(inUse.wanted(nodeSaying(own("a")))).toEqual([]);
    expect(inUse.claim("u1", [own("a")])).toBe(false);
    // Of that write nothing is heard, and the Node still looks as if nothing had to be written.
    const names = inUse.wanted(nodeSaying(own("a")));
    expect([names, inUse.isNews(names)]).toEqual([[own("a")], true]);
    inUse.told(names);
    expect(told).toEqual(["u1"]);
  });

  test("that another process tells again are asked about again, whatever the backend has said before", async () => {
    const nodeAt = (resourceVersion: string): Node => ({ ...nodeSaying(own("a")), metadata: { resourceVersion } });
    had.set("a", []);
    report(nodeAt("1"));
    await run();
    had.set("a", [OWN]);
    expect(report(nodeAt("2"))).toEqual([own("a")]);
    await clock.advance(1_000);
    expect(asked).toEqual(["a", "a"]);
    expect(report(nodeAt("2"))).toEqual([own("a")]);
  });

  test("of no CSI driver are left alone", async () => {
    report(nodeSaying("other^x"));
    await run();
    expect(report(nodeSaying("other^x"))).toEqual(["other^x"]);
    expect(asked).toEqual([]);
  });

  test("are asked about less and less often", async () => {
    had.set("a", [OWN]);
    report(nodeSaying(own("a")));
    await run();
    for (let minute = 0; minute < 60; minute++) {
      await clock.advance(60_000);
      report(nodeSaying(own("a")));
    }
    expect(asked.length).toBeLessThan(25);
  });

  describe("of a driver of others", () => {
    test.each([
      ["a machine of this node has it", () => Promise.resolve({ items: [machineOf("u1", OTHER)] }), [other]],
      ["none has it", () => Promise.resolve({ items: [machineOf("u1", { driver: "x", volume: "disk-1" })] }), []],
      ["there are no machines", () => Promise.resolve({ items: [] }), []],
      [
        "of one machine nothing is known",
        () => Promise.resolve({ items: [], unknown: [{ id: "m-u1", reason: "odd" }] }),
        [other],
      ],
      ["the backend does not answer", () => Promise.reject(new ProviderError("unavailable", "no answer")), [other]],
    ])("stay or go by the list of this node's machines: %s", async (_why, answer, left) => {
      machines = answer;
      expect(report(nodeSaying(other))).toEqual([other]);
      await run();
      expect(report(nodeSaying(other))).toEqual(left);
      expect(asked).toEqual([]);
    });

    test("go though nothing is said of one of the backend's own, and the other way round", async () => {
      had.set("a", undefined);
      report(nodeSaying(own("a"), other));
      await run();
      expect(report(nodeSaying(own("a"), other))).toEqual([own("a")]);
      machines = () => Promise.reject(new ProviderError("unavailable", "no answer"));
      had.set("a", []);
      inUse.claim("u9", [other]);
      inUse.release("u9");
      report(nodeSaying(own("a"), other));
      await clock.advance(1_000);
      expect(report(nodeSaying(own("a"), other))).toEqual([other]);
    });

    test.each([
      ["another pod's machine has it", "u2", true],
      ["this pod's own machine has it", "u1", false],
    ])("are held by another pod, of an earlier agent, by its word: %s", async (_why, uid, is) => {
      machines = () => Promise.resolve({ items: [machineOf("u1", OTHER)] });
      expect(await inUse.isHeldByOthers(uid, other, done.signal)).toBe(is);
    });
  });
});
