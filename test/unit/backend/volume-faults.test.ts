/**
 * The whole life of a volume that outlives machines (create, reserve, a machine that writes to it, grow, restart of the
 * backend, release, delete), once for each call of the file interfaces in it: that call fails, alone or with those
 * after it. The client asks again, as CSI's side-cars and the agent do.
 *
 * Expected of every one of them: what was written is there until the volume is deleted, also when its backend starts
 * anew in the middle, which no fault keeps from it; a call that failed has changed nothing that a later backend tells
 * otherwise; in the end nothing is left, and when it is old enough not even the tombstone.
 */
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { type CallKind, type Errno, Faults } from "../../support/faults.ts";
import { settle } from "../../support/virtual-clock.ts";
import { main, World } from "./world.ts";

/** Asked again so often, a second apart. */
const TRIES = 60;
const TOMBSTONE_MS = 25 * 3_600_000;
const spec = { labels: {}, size_bytes: 1024, mode: "filesystem" } as const;

async function untilDone<T>(world: World, step: () => Promise<T>): Promise<T> {
  for (let tries = 0; ; tries++) {
    try {
      return await step();
    } catch (thrown) {
      if (tries === TRIES) throw thrown;
    }
    await world.advance(1_000);
  }
}

/** What clients are told, of the volume itself and of who has it. */
async function told(world: World) {
  const { version: _version, ...volume } = await world.provider.volumes!.get("disk", world);
  return volume;
}

/** Only what it cannot read keeps a backend from starting: nothing may be taken for gone. */
async function restartUntold(world: World): Promise<void> {
  await world.provider.close();
  for (const instance of world.instances) delete instance.events;
  const boot = () =>
    world.boot().then(
      () => undefined,
      (thrown: Error) => thrown,
    );
  for (let failure = await boot(); failure !== undefined; failure = await boot()) {
    if (!/: injected, read/.test(failure.message)) throw failure;
    await world.advance(1_000);
  }
}

/** What the next backend tells is what this one did. */
async function restart(world: World): Promise<void> {
  const before = await told(world);
  await restartUntold(world);
  expect(await told(world)).toEqual(before);
}

async function live(world: World): Promise<void> {
  const volumes = () => world.provider.volumes!;
  const reaches = (state: string) => untilDone(world, async () => expect((await world.machine()).state).toBe(state));
  /** Whatever a try that failed has left, a backend that starts then tells what the former one did. */
  const step = async (act: () => Promise<unknown>) => {
    const begun = await act().catch((thrown: unknown) => thrown);
    if (begun instanceof Error && existsSync(data)) await restart(world);
    await untilDone(world, act);
  };
  const data = join(world.stateDir, "volumes/disk/data");
  await restartUntold(world);
  await untilDone(world, () => volumes().create("disk", spec, world));
  writeFileSync(join(data, "said"), "kept");
  await step(() => volumes().reserve("disk", "attached", world));
  const claim = { name: "v", type: "persistent", volume: "disk", reservation: "attached" } as const;
  await untilDone(world, () => world.create({ volumes: [claim], containers: [main("a")] }));
  await reaches("running");
  await step(() => volumes().resize("disk", 2048, world));
  await restart(world);
  await reaches("running");
  expect((await told(world)).attachments).toMatchObject([{ machine: "m1", state: "attached" }]);
  await expect(volumes().delete("disk", world)).rejects.toMatchObject({ code: "in_use" });
  await untilDone(world, () => world.provider.stopPod("m1", { graceSeconds: 1, signal: world.signal }));
  await reaches("stopped");
  await untilDone(world, () => world.provider.deletePod("m1", { force: false, signal: world.signal }));
  await reaches("deleted");
  await untilDone(world, async () => expect((await told(world)).attachments).toEqual([]));
  await step(() => volumes().release("disk", "attached", world));
  expect(readFileSync(join(data, "said"), "utf8")).toBe("kept");
  await untilDone(world, () => volumes().delete("disk", world));
  await restart(world);
  expect(await told(world)).toMatchObject({ state: "deleted" });
  await world.advance(TOMBSTONE_MS);
  await untilDone(world, async () => expect(readdirSync(join(world.stateDir, "volumes"))).toEqual([]));
}

test.each<[CallKind, Errno, number]>([
  ["write", "ENOSPC", 1],
  ["write", "EDQUOT", 5],
  ["write", "EIO", 3],
  ["flush", "EIO", 1],
  ["flush", "ENOSPC", 3],
  ["read", "EMFILE", 1],
  ["read", "ENOMEM", 3],
  ["open", "ENFILE", 1],
  ["look", "EIO", 1],
  ["remove", "EIO", 1],
  ["spawn", "EMFILE", 1],
  ["spawn", "ENOMEM", 2],
])(
  "a volume outlives each %s that fails with %s, %d in a row",
  async (kind, errno, times) => {
    const faults = Faults.install();
    for (let from = 1; from < 200; from += times) {
      const world = await World.create();
      // A create that a kill broke off.
      mkdirSync(join(world.stateDir, "volumes/half/data"), { recursive: true });
      const volumes = join(world.stateDir, "volumes");
      const about = (path: string) => {
        if (kind === "flush") return true;
        return kind === "spawn"
          ? path.endsWith("/rm")
          : path.startsWith(kind === "write" ? `${volumes}/` : volumes) && !path.endsWith("said");
      };
      const before = faults.failed;
      const mend = faults.fail({ kind, errno, about, from, times });
      try {
        await live(world);
      } catch (thrown) {
        throw new Error(`call ${from} of kind ${kind}: ${String(thrown)}`, { cause: thrown });
      } finally {
        mend();
      }
      await settle();
      if (faults.failed === before) return expect(from).toBeGreaterThan(1);
    }
    expect.unreachable("the life has more calls than that");
  },
  60_000,
);
