import { afterEach, beforeEach, describe, expect, test } from "vitest";
import type { Node } from "../../../src/kube/wire.ts";
import { VolumesInUse } from "../../../src/node/volumes-in-use.ts";
import { ProviderError } from "../../../src/provider/errors.ts";
import type { PersistentVolume, VolumeProvider } from "../../../src/provider/volume.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { settle, VirtualClock } from "../../support/virtual-clock.ts";

const OWN = "abc.burst-0";
const nodeSaying = (...names: string[]): Node => ({ status: { volumesInUse: names } });

describe("the volumes that a Node says are in use", () => {
  let clock: VirtualClock;
  let changes: number;
  let told: string[];
  /** By volume: the reservations by which machines have it; undefined: the backend does not answer. */
  let had: Map<string, string[] | undefined>;
  let asked: string[];
  let inUse: VolumesInUse;
  let done: AbortController;

  beforeEach(() => {
    clock = new VirtualClock();
    [changes, told, had, asked] = [0, [], new Map(), []];
    done = new AbortController();
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
      reservation: OWN,
      podOf: (machine) => /^m-(.+)$/.exec(machine)?.[1],
      prefix: "csi^",
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

  test("are those that pods claim, and a pod hears when they are told", () => {
    expect(inUse.claim("u1", ["a"])).toBe(false);
    expect(changes).toBe(1);
    expect(report(nodeSaying())).toEqual(["csi^a"]);
    expect(told).toEqual(["u1"]);
    expect(inUse.claim("u1", ["a"])).toBe(true);
    report(nodeSaying("csi^a"));
    expect(told).toEqual(["u1"]);
  });

  test("are another pod's until that one is released", () => {
    inUse.claim("u1", ["a", "b"]);
    expect([inUse.isOthers("u1", "a"), inUse.isOthers("u2", "a"), inUse.isOthers("u2", "c")]).toEqual([
      false,
      true,
      false,
    ]);
    inUse.release("u1");
    expect(inUse.isOthers("u2", "a")).toBe(false);
  });

  test.each<[string, string[] | undefined, string, boolean]>([
    ["another pod's machine of this node has it", [OWN], "u2", true],
    ["this pod's own machine has it", [OWN], "u1", false],
    ["a machine of another node has it", ["abc.burst-1"], "u2", false],
    ["nothing has it", [], "u2", false],
    ["the backend does not answer", undefined, "u2", false],
  ])("are held by another pod, of an earlier agent, by the backend's word: %s", async (_why, reservations, uid, is) => {
    had.set("a", reservations);
    expect(await inUse.isHeldByOthers(uid, "a", done.signal)).toBe(is);
  });

  test("are held by nobody that is known when who asks has gone, and it is told so", async () => {
    had.set("a", undefined);
    await expect(inUse.isHeldByOthers("u2", "a", AbortSignal.abort(new Error("gone")))).rejects.toThrow("gone");
  });

  test("stay until the backend says that no machine of this node has them", async () => {
    inUse.claim("u1", ["a"]);
    report(nodeSaying());
    had.set("a", [OWN]);
    await run();
    inUse.release("u1");
    expect(report(nodeSaying("csi^a"))).toEqual(["csi^a"]);
    await settle();
    expect(asked).toEqual(["a"]);
    had.set("a", []);
    await clock.advance(1_000);
    expect(report(nodeSaying("csi^a"))).toEqual([]);
  });

  test.each([
    ["the backend does not answer", undefined, ["csi^a"]],
    ["a machine of this node has it", [OWN], ["csi^a"]],
    ["a machine of another node has it", ["abc.burst-1"], []],
    ["nothing has it", [], []],
  ])("of an earlier agent stay or go by the backend's word: %s", async (_why, reservations, left) => {
    had.set("a", reservations);
    expect(report(nodeSaying("csi^a"))).toEqual(["csi^a"]);
    await run();
    expect(report(nodeSaying("csi^a"))).toEqual(left);
  });

  test("of an earlier agent go when there is no such volume", async () => {
    report(nodeSaying("csi^gone"));
    await run();
    expect(report(nodeSaying("csi^gone"))).toEqual([]);
  });

  test("that a pod claims while the backend is asked stay", async () => {
    const answer = Promise.withResolvers<void>();
    had.set("a", []);
    const volumes = { get: async () => (await answer.promise, { id: "a", attachments: [] }) };
    const slow = new VolumesInUse({
      provider: { volumes: volumes as unknown as VolumeProvider },
      reservation: OWN,
      podOf: (machine) => /^m-(.+)$/.exec(machine)?.[1],
      prefix: "csi^",
      clock,
      random: () => 0,
      logger: silentLogger,
      onChange: () => changes++,
      onTold: () => undefined,
    });
    slow.told(slow.wanted(nodeSaying("csi^a")));
    void slow.run(done.signal);
    await settle();
    slow.claim("u1", ["a"]);
    slow.told(slow.wanted(nodeSaying("csi^a")));
    answer.resolve();
    await settle();
    slow.release("u1");
    expect(slow.wanted(nodeSaying("csi^a"))).toEqual(["csi^a"]);
  });

  test("are written again when the cached Node is older than what was written", () => {
    inUse.claim("u1", ["a"]);
    report(nodeSaying());
    inUse.claim("u2", ["b"]);
    const names = inUse.wanted(nodeSaying("csi^a", "csi^b"));
    expect(names).toEqual(["csi^a", "csi^b"]);
    expect(inUse.isNews(names)).toBe(true);
    inUse.told(names);
    expect(inUse.isNews(names)).toBe(false);
  });

  test("count as told no more from when a write leaves them out, which may arrive at any time", async () => {
    had.set("a", []);
    report(nodeSaying("csi^a"));
    await run();
    expect(inUse.wanted(nodeSaying("csi^a"))).toEqual([]);
    expect(inUse.claim("u1", ["a"])).toBe(false);
    // Of that write nothing is heard, and the Node still looks as if nothing had to be written.
    const names = inUse.wanted(nodeSaying("csi^a"));
    expect([names, inUse.isNews(names)]).toEqual([["csi^a"], true]);
    inUse.told(names);
    expect(told).toEqual(["u1"]);
  });

  test("that another process tells again are asked about again, whatever the backend has said before", async () => {
    const nodeAt = (resourceVersion: string): Node => ({ ...nodeSaying("csi^a"), metadata: { resourceVersion } });
    had.set("a", []);
    report(nodeAt("1"));
    await run();
    had.set("a", [OWN]);
    expect(report(nodeAt("2"))).toEqual(["csi^a"]);
    await clock.advance(1_000);
    expect(asked).toEqual(["a", "a"]);
    expect(report(nodeAt("2"))).toEqual(["csi^a"]);
  });

  test("of other drivers are left alone", async () => {
    report(nodeSaying("other^x"));
    await run();
    expect(report(nodeSaying("other^x"))).toEqual(["other^x"]);
    expect(asked).toEqual([]);
  });

  test("are asked about less and less often", async () => {
    had.set("a", [OWN]);
    report(nodeSaying("csi^a"));
    await run();
    for (let minute = 0; minute < 60; minute++) {
      await clock.advance(60_000);
      report(nodeSaying("csi^a"));
    }
    expect(asked.length).toBeLessThan(25);
  });
});
