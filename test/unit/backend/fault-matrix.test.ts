/**
 * The whole life of a machine (create, run, exec, patch, restart of the backend, stop, delete), once for each call of
 * the file interfaces in it: that call fails, alone or with those after it. The client asks again, as the agent does.
 *
 * Expected of every one of them: the container runs once and its end is known, the machine comes to each of its states,
 * and in the end nothing is left of it but its tombstone.
 */
import { readdirSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { type CallKind, type Errno, Faults } from "../../support/faults.ts";
import { settle } from "../../support/virtual-clock.ts";
import { main, World } from "./world.ts";

/** Asked again so often, a second apart. */
const TRIES = 120;

async function untilDone(world: World, step: () => Promise<boolean | void>): Promise<void> {
  for (let tries = 0; ; tries++) {
    try {
      if ((await step()) !== false) return;
    } catch (thrown) {
      if (tries === TRIES) throw thrown;
    }
    if (tries === TRIES) throw new Error("the machine does not come on");
    await world.advance(1_000);
  }
}

async function live(world: World): Promise<void> {
  const { signal } = world;
  const reaches = async (state: string) => await untilDone(world, async () => (await world.machine()).state === state);
  await untilDone(world, () => world.create({ restart_policy: "never" }));
  await reaches("running");
  const options = { stdin: false, stdout: true, stderr: true, tty: false, signal };
  await untilDone(world, async () => void (await world.provider.exec("m1", "a", ["true"], options)));
  const change = { ephemeral_containers: [main("debug")] };
  await untilDone(world, async () => void (await world.provider.updatePod("m1", change, { signal })));
  await untilDone(world, () => Promise.resolve(world.running().includes("debug")));
  await world.provider.close();
  for (const instance of world.instances) delete instance.events;
  await untilDone(world, () => world.boot());
  await reaches("running");
  await untilDone(world, async () => void (await world.provider.stopPod("m1", { graceSeconds: 1, signal })));
  await reaches("stopped");
  expect((await world.container("a")).terminated?.exit_code).toBe(143);
  await untilDone(world, () => world.provider.deletePod("m1", { force: false, signal }));
  await reaches("deleted");
  // Folders that could not be removed are tried again.
  await untilDone(world, () => Promise.resolve(readdirSync(join(world.stateDir, "machines")).length === 0));
}

function expectNothingLeft(world: World): void {
  const begun = (name: string) => world.journal.filter((entry) => entry === `start ${name}`).length;
  expect([begun("a"), begun("debug"), world.running(), [...world.prepared]]).toEqual([1, 1, [], []]);
  const files = readdirSync(world.stateDir, { recursive: true, encoding: "utf8" });
  expect(files.filter((file) => file.endsWith(".tmp") || file.startsWith("run/"))).toEqual([]);
}

test.each<[CallKind, Errno, number]>([
  ["write", "ENOSPC", 1],
  ["write", "EDQUOT", 12],
  ["write", "EIO", 3],
  ["flush", "EIO", 1],
  ["flush", "ENOSPC", 6],
  ["read", "EMFILE", 1],
  ["read", "ENFILE", 6],
  ["read", "ENOMEM", 2],
  ["open", "EMFILE", 1],
  ["open", "ENFILE", 4],
  ["look", "ENOMEM", 1],
  ["look", "EIO", 4],
  ["remove", "EIO", 1],
  ["remove", "EMFILE", 5],
])(
  "a machine outlives each %s that fails with %s, %d in a row",
  async (kind, errno, times) => {
    const faults = Faults.install();
    for (let from = 1; from < 200; from += kind === "write" ? times : 1) {
      const world = await World.create();
      const about = (path: string) => kind === "flush" || path.startsWith(world.stateDir);
      const before = faults.failed;
      const mend = faults.fail({ kind, errno, about, from, times });
      try {
        await live(world);
        mend();
        expectNothingLeft(world);
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
