/** What is told of containers whose sandbox is gone: their keepers wrote down how they ended, or nobody knows. */
import { expect, test } from "vitest";
import { NeverBegunError } from "../../../providers/local/engine.ts";
import type { RestartPolicy } from "../../../src/provider/machine.ts";
import { main, World } from "./world.ts";

/** The host boots while no backend runs; these containers had ended before that. */
async function bootHost(world: World, ended: Record<string, number>): Promise<void> {
  await world.restart(() => {
    world.alive = false;
    for (const instance of world.instances) {
      instance.running = false;
      const exitCode = ended[instance.name];
      if (exitCode !== undefined)
        instance.exit = { exitCode, startedAt: world.clock.now(), finishedAt: world.clock.now() };
    }
  });
}

test.each(["never", "on_failure"] satisfies RestartPolicy[])(
  "a machine that had done its work under policy %s has done it, and does not run again",
  async (restart_policy) => {
    const world = await World.create();
    await world.create({ restart_policy, init_containers: [main("i")] });
    await world.exit("i", 0);
    await bootHost(world, { a: 0 });
    expect(await world.machine()).toMatchObject({
      state: "stopped",
      containers: [{}, { terminated: { exit_code: 0 } }],
    });
    expect((await world.machine()).reason).toBeUndefined();
    expect([world.starts("i"), world.starts("a")].map((starts) => starts.length)).toEqual([1, 1]);
  },
);

test("what ended is told as it ended, what nobody knows as unknown, and the machine that may not go on fails", async () => {
  const world = await World.create();
  await world.create({ restart_policy: "never", containers: [main("a"), main("b")] });
  await bootHost(world, { a: 7 });
  const { state, containers } = await world.machine();
  expect([state, ...containers.map(({ terminated }) => [terminated?.exit_code, terminated?.reason])]).toEqual([
    "failed",
    [7, "Error"],
    [137, "ContainerStatusUnknown"],
  ]);
});

test("only what has not succeeded is done again under policy on_failure", async () => {
  const world = await World.create();
  await world.create({ restart_policy: "on_failure", containers: [main("a"), main("b")] });
  await bootHost(world, { a: 0 });
  expect([world.starts("a").length, world.starts("b").length]).toEqual([1, 2]);
});

test("a machine whose specification went with the host's memory, and whose work was done, has not failed", async () => {
  const world = await World.create();
  await world.create({ restart_policy: "on_failure" });
  await world.restart(() => {
    world.alive = false;
    const instance = world.instance("a");
    instance.running = false;
    instance.exit = { exitCode: 0, startedAt: world.clock.now(), finishedAt: world.clock.now() };
    world.loseSpec();
  });
  expect(await world.machine()).toMatchObject({ state: "stopped", containers: [{ terminated: { exit_code: 0 } }] });
});

test("a container's end that cannot be read just now is not called unknown, but looked for again", async () => {
  const world = await World.create();
  await world.create({ restart_policy: "never" });
  world.unreadable.set("a", new Error("too many open files"));
  await bootHost(world, { a: 0 });
  expect((await world.machine()).reachability).toBe("unknown");
  world.unreadable.clear();
  await world.advance(5_000);
  expect((await world.machine()).state).toBe("stopped");
});

test("the same while the backend runs", async () => {
  const world = await World.create();
  await world.create({ restart_policy: "never" });
  const instance = world.instance("a");
  delete instance.events;
  instance.running = false;
  instance.exit = { exitCode: 0, startedAt: world.clock.now(), finishedAt: world.clock.now() };
  world.unreadable.set("a", new Error("too many open files"));
  await world.lose({ reason: "SandboxLost", message: "gone" });
  expect((await world.machine()).state).toBe("running");
  world.unreadable.clear();
  await world.advance(1_000);
  expect((await world.machine()).state).toBe("stopped");
});

test("a container that the host could not begin is no end of it: it is told, and begun when that is possible", async () => {
  const world = await World.create((fresh) => fresh.shimErrors.set("a", new NeverBegunError("spawn EMFILE")));
  await world.create({ restart_policy: "never" });
  expect(await world.container("a")).toMatchObject({ state: "waiting", reason: "RunContainerError" });
  expect([...world.prepared]).toEqual([]);
  world.shimErrors.clear();
  await world.advance(10_000);
  expect(await world.container("a")).toMatchObject({ state: "running", restart_count: 0 });
});
