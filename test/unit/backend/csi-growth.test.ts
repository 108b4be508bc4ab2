/** Volumes of CSI drivers that grow while a machine has them: what their drivers are asked, and what is said of it. */
import { join } from "node:path";
import { Code, ConnectError } from "@connectrpc/connect";
import { beforeEach, describe, expect, test } from "vitest";
import { NodeServiceCapability_RPC_Type as Rpc } from "../../../src/csi/api.gen.js";
import type { MachinePatch, MachineSpec, Volume } from "../../../src/provider/machine.ts";
import { LABEL_UID } from "../../../src/provider/owner.ts";
import { patchCapabilities } from "../../../src/provider/requirements.ts";
import { stagingPlace } from "../../../providers/local/csi-volumes.ts";
import { DRIVER, type FakeDriver, worldWith } from "./fake-csi.ts";
import type { World } from "./world.ts";

type CsiVolume = Extract<Volume, { type: "csi" }>;

const GROWTH = { driver: DRIVER, volume: "disk-1", size_bytes: 4096 };

const having = (mode: "filesystem" | "block" = "filesystem", more: Partial<CsiVolume> = {}): Partial<MachineSpec> => ({
  labels: { [LABEL_UID]: "u1" },
  volumes: [
    {
      ...{ name: "data", type: "csi", driver: DRIVER, ...more },
      persistent: { volume: "disk-1", pv: "pv-1", access_mode: "read_write_once", mode },
    },
  ],
  containers: [{ name: "a", image: "i" }],
});

describe("a volume that a machine has", () => {
  let world: World;
  let driver: FakeDriver;
  let root: () => string;

  beforeEach(async () => {
    ({ world, driver, root } = await worldWith(DRIVER));
    driver.can = new Set([Rpc.STAGE_UNSTAGE_VOLUME, Rpc.EXPAND_VOLUME]);
  });

  const grow = async (growth: object = {}, patch: MachinePatch = {}) => {
    const { signal } = world;
    return await world.provider.updatePod("m1", { ...patch, csi_volumes: [{ ...GROWTH, ...growth }] }, { signal });
  };
  const refused = (growth: object = {}) =>
    grow(growth).then(
      () => "it has grown",
      ({ code, message }: { code: string; message: string }) => `${code}: ${message}`,
    );
  const WORDS = 'NodeExpandVolume.NodeExpandVolume failed for volume "pv-1" : ';

  test.each(["filesystem", "block"] as const)(
    "as %s is let grow where it is, and the machine tells of it",
    async (mode) => {
      await world.create(having(mode));
      const { csi_volumes } = await grow({ expand_secrets: { k: "1" } });
      expect(csi_volumes).toEqual([GROWTH]);
      const { path } = stagingPlace({ driver: DRIVER, volume: "disk-1", isBlock: mode === "block" });
      expect(driver.expanded).toMatchObject([
        {
          ...{ volumeId: "disk-1", volumePath: driver.requests[0]!.targetPath, stagingTargetPath: join(root(), path) },
          ...{ capacityRange: { requiredBytes: 4096n }, secrets: { k: "1" } },
          volumeCapability: { accessType: { case: mode === "block" ? "block" : "mount" } },
        },
      ]);
      await world.restart();
      expect((await world.machine()).csi_volumes).toEqual([GROWTH]);
    },
  );

  test.each([
    [Code.FailedPrecondition, "in_use"],
    [Code.OutOfRange, "invalid"],
    [Code.NotFound, "invalid"],
    [Code.Internal, "unavailable"],
    [Code.DeadlineExceeded, "unavailable"],
  ])("is refused as its driver says, without the secrets that it was given: %s", async (code, told) => {
    await world.create(having());
    driver.expandError = new ConnectError("no, hunter2-hunter2", code);
    expect(await refused({ expand_secrets: { password: "hunter2-hunter2" } })).toBe(
      `${told}: ${WORDS}Expander.NodeExpand failed to expand the volume : rpc error: code = ${Code[code]} desc = no, [redacted]`,
    );
    expect((await world.machine()).csi_volumes).toEqual([{ driver: DRIVER, volume: "disk-1" }]);
  });

  test("does not grow by a driver that cannot do that", async () => {
    await world.create(having());
    driver.can = new Set();
    expect(await refused()).toBe(`unsupported: NodeExpand is not supported by the CSI driver ${DRIVER}`);
    expect(driver.expanded).toEqual([]);
  });

  test.each([{ volume: "disk-2" }, { driver: "other.example.com" }])("is none that grows: %j", async (growth) => {
    await world.create(having());
    expect(await refused(growth)).toMatch(/^conflict: machine m1 has no volume/);
  });

  test("that nobody may write to does not grow", async () => {
    await world.create(having("filesystem", { read_only: true }));
    expect(await refused()).toMatch(/^conflict: /);
  });

  test("that is named twice, and may be written to by one of both names, grows", async () => {
    const { volumes = [], ...more } = having();
    await world.create({
      ...more,
      volumes: [{ ...volumes[0]!, name: "seen", read_only: true } as CsiVolume, ...volumes],
    });
    expect(await refused()).toBe("it has grown");
  });

  test("that is not there yet does not grow", async () => {
    driver.lies = true;
    await world.create(having());
    expect(await refused()).toMatch(/^unavailable: .* and this host sees nothing there/);
    expect(driver.expanded).toEqual([]);
  });

  test("does not grow at its machine's end, and not after it", async () => {
    await world.create(having());
    driver.unpublishing = new Promise(() => {});
    await world.stop(0);
    expect(await refused()).toMatch(/^conflict: machine m1 is stopping/);
  });

  test("keeps no other change waiting while its driver takes its time, and is not taken back meanwhile", async () => {
    await world.create(having());
    const answer = Promise.withResolvers<void>();
    driver.expanding = answer.promise;
    const growing = grow();
    await world.advance(0);
    const { signal } = world;
    await world.provider.updatePod("m1", { containers: [{ name: "a", image: "i" }] }, { signal });
    await world.stop(0);
    expect(driver.asked).not.toContain("unpublish pv-1");
    answer.resolve();
    await growing;
    await world.advance(0);
    expect(driver.asked.slice(-3)).toEqual(["expand disk-1", "unpublish pv-1", "unstage disk-1"]);
  });

  test.each([
    ["that it has grown", undefined, "it has grown"],
    ["that it cannot", new ConnectError("no", Code.OutOfRange), expect.stringMatching(/^invalid: /)],
  ])("whose driver takes minutes is asked for once, and told in the end %s", async (_what, expandError, end) => {
    await world.create(having());
    const answer = Promise.withResolvers<void>();
    Object.assign(driver, { expanding: answer.promise, expandError });
    const first = grow();
    const told = expect(first).rejects.toMatchObject({ code: "unavailable", retryAfterMs: 5000 });
    await world.advance(8_000);
    await told;
    const second = refused();
    await world.advance(1_000);
    expect(await second).toBe(`unavailable: growth of volume disk-1 by the CSI driver ${DRIVER} is under way`);
    answer.resolve();
    await world.advance(100_000);
    expect(await refused()).toEqual(end);
    expect(driver.expanded).toHaveLength(1);
    // Once told, it is asked for again by who wants it again.
    await refused();
    expect(driver.expanded).toHaveLength(2);
  });
});

test("growth is a capability of its own", () => {
  expect(patchCapabilities({ csi_volumes: [GROWTH] })).toEqual([
    { capability: "volumes.csi_growth", field: "csi_volumes" },
  ]);
});
