/** An API server that nobody reaches for minutes: what runs goes on, and afterwards all that was missed is made up for. */
import { expect, test } from "vitest";
import { LeaderElector } from "../../../src/kube/leader-election.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { Agent, NODE, PODS, World } from "./world.ts";

const OUTAGE_MS = 300_000;

/** Ten pods that run, and then an outage in which pods come and go and containers end. */
async function befallen(world: World): Promise<void> {
  for (let i = 0; i < 10; i++) world.createPod(`runs-${i}`);
  for (const name of ["fails", "succeeds"]) world.createPod(name, { restartPolicy: "Never" });
  await world.clock.advance(30_000);
  expect(Object.values(world.phases())).toEqual(Array.from({ length: 12 }, () => "Running"));
  const before = world.machines();
  world.effects.length = 0;
  world.cluster.goDown();
  await world.clock.advance(OUTAGE_MS / 2);
  world.endContainer("fails", 3);
  world.endContainer("succeeds", 0);
  world.deletePod("runs-0");
  world.createPod("new");
  await world.clock.advance(OUTAGE_MS / 2);
  expect(world.machines()).toEqual(before);
  expect(world.effects.filter((each) => /^[a-z]/.test(each))).toEqual([]);
  world.cluster.comeBack();
}

function expectMadeUp(world: World): void {
  const names = ["new", ...Array.from({ length: 9 }, (_, i) => `runs-${i + 1}`)];
  expect(world.phases()).toEqual({
    ...Object.fromEntries(names.map((name) => [name, "Running"])),
    fails: "Failed",
    succeeds: "Succeeded",
  });
  const { status } = world.cluster.ask("GET", `${PODS}/fails`);
  expect(status.containerStatuses[0]).toMatchObject({ restartCount: 0, state: { terminated: { exitCode: 3 } } });
  expect(world.machines().filter((uid) => !world.uids().includes(uid))).toEqual([]);
  const created = world.effects.filter((each) => each.startsWith("createPod"));
  expect(created.map((each) => each.includes(world.cluster.ask("GET", `${PODS}/new`).metadata.uid))).toEqual([true]);
  const [lease] = world.cluster.list("leases", "coordination.k8s.io").filter(({ metadata }) => metadata.name === NODE);
  expect(world.clock.now() - Date.parse(lease!.spec.renewTime)).toBeLessThan(15_000);
}

test("five minutes without an API server cost no machine, and afterwards all that happened meanwhile is made up for", async () => {
  const world = new World();
  const agent = world.agent().start();
  await befallen(world);
  await world.clock.advance(90_000);
  expectMadeUp(world);
  expect(agent.pods.queue.depth).toBe(0);
  await agent.stop();
});

/** A replica as its Deployment keeps it: who has lost the leadership ends, and is started again ten seconds later. */
class Replica {
  leads = false;
  lives = 0;
  readonly #stop = new AbortController();
  readonly #running: Promise<void>;

  constructor(world: World, name: string) {
    this.#running = this.#live(world, name);
  }

  async #live(world: World, name: string): Promise<void> {
    const { signal } = this.#stop;
    const { clock } = world;
    while (!signal.aborted) {
      const life = new AbortController();
      const stopped = AbortSignal.any([signal, life.signal]);
      const elector = new LeaderElector({
        kube: world.cluster.client(),
        clock,
        random: () => 0.5,
        logger: silentLogger,
        namespace: "kube-system",
        name: "vmlet",
        identity: `${name}-${this.lives++}`,
        onLeading: (leads) => (this.leads = leads),
      });
      const agent = new Agent(world, { guard: elector.guard });
      const observing = agent.observe(stopped);
      await elector.run(stopped, (leading) => agent.act(leading));
      life.abort();
      await observing;
      await clock.sleep(10_000, signal).catch(() => undefined);
    }
  }

  async stop(): Promise<void> {
    this.#stop.abort(new Error("stopped"));
    await this.#running;
  }
}

test("of two replicas that both lost the API server one leads afterwards, and makes up for all", async () => {
  const world = new World();
  const replicas = ["a", "b"].map((name) => new Replica(world, name));
  await world.clock.advance(30_000);
  await befallen(world);
  expect(replicas.map(({ leads }) => leads)).toEqual([false, false]);
  // Who led has ended and stands by again; who stood by has gone on standing by.
  expect(new Set(replicas.map(({ lives }) => lives))).toEqual(new Set([1, 2]));
  await world.clock.advance(90_000);
  expect(replicas.filter(({ leads }) => leads)).toHaveLength(1);
  expectMadeUp(world);
  await Promise.all(replicas.map((each) => each.stop()));
});
