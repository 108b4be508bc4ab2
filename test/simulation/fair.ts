/**
 * The end of a schedule: no faults any more, one agent, everybody has their turn. Everything must come to rest where Kubernetes wants
 * it, in time, and stay there.
 */
import type { Simulation } from "./simulate.ts";
import { judgeRest } from "./invariants/rest.ts";
import { NAMESPACES } from "./world/names.ts";
import { Violation } from "./violation.ts";

/** Two sightings of strangers, one a minute, stops that are turned into kills, back-off. */
const LIMIT_MS = 20 * 60_000;
const LEAST_MS = 3 * 60_000;
const QUIET_MS = 10 * 60_000;
const MOST_LAST_WORDS = 5;
/** Of the one VM that waits for a machine, every five minutes. */
const MOST_RENEWALS = 3;
/** More requests of one kind about one pod within a minute are a loop. */
const MOST_REQUESTS = 80;
const MINUTE_MS = 60_000;

/** @throws Violation */
export async function judgeFairEnd(sim: Simulation): Promise<void> {
  const { world, network } = sim;
  world.trace?.("--- fair from here on");
  network.isFair = true;
  world.isBackendAway = false;
  world.cloud?.mend();
  world.capacity.restore();
  for (const namespace of NAMESPACES)
    if (world.configMaps.find(namespace) === undefined) world.configMaps.write(namespace);
  while (sim.agents.length > 1) sim.kill(sim.agents.at(-1)!);
  sim.agents[0]!.isLeader = true;
  network.answerAll();
  network.refuseAll();
  network.sent.clear();
  await sim.settle();

  const begun = world.now;
  let minute = begun;
  for (;;) {
    if (world.now - minute >= MINUTE_MS) {
      network.sent.clear();
      minute = world.now;
    }
    await serveAll(sim);
    const sinceMs = world.now - begun;
    const unrest = judgeRest(sim);
    if (unrest === undefined && sinceMs >= LEAST_MS && !network.hasLate) break;
    if (sinceMs >= LIMIT_MS) throw unrest!;
    if (network.hasLate && world.random() < 0.3) network.landOne();
    liveOn(sim);
    await serveAll(sim);
    sim.advance(Math.min(sim.untilTimer, 15_000));
    await sim.settle();
  }
  if (sim.seed % 4 === 1) await judgeQuiet(sim);
}

/** Machines that were told to stop do so; new ones come up. */
function liveOn({ world }: Simulation): void {
  world.disks?.liveOn();
  for (const vm of world.cloud?.state.vms.values() ?? []) world.cloud!.progress(vm);
  for (const [id, { machine }] of world.backend.machines) {
    const isStuck = machine.state === "running" && machine.containers.some(({ state }) => state === "terminated");
    if (machine.state !== "running" || isStuck) world.backend.progress(id);
  }
}

/** Everything that is asked is answered, everything that is known is told. */
async function serveAll(sim: Simulation): Promise<void> {
  const { network } = sim;
  const [agent] = sim.agents as [(typeof sim.agents)[number]];
  for (let guard = 0; guard < 200; guard++) {
    agent.deliverPods(Infinity);
    agent.deliverMachines(Infinity);
    agent.configs.deliver(Infinity);
    agent.deliverNode();
    await sim.settle();
    if (network.waiting.length === 0) return;
    for (const request of [...network.waiting]) network.serve(request);
    await sim.settle();
    for (const [what, times] of network.sent)
      if (times > MOST_REQUESTS && !what.startsWith(" "))
        throw new Violation("L7", `asks ${times} times a minute: ${what}`);
  }
  throw new Violation("L7", "never stops asking");
}

/** L6: when nothing changes, nothing is written but signs of life. */
async function judgeQuiet(sim: Simulation): Promise<void> {
  const { network, world } = sim;
  network.sent.clear();
  const until = world.now + QUIET_MS;
  while (world.now < until) {
    sim.advance(Math.min(sim.untilTimer, 60_000));
    await serveAll(sim);
  }
  const hasDeadline = (uid: string) => world.api.byUid(uid)?.spec.activeDeadlineSeconds !== undefined;
  for (const [what, times] of network.sent) {
    if (what.endsWith("entry.renew") && times > MOST_RENEWALS)
      throw new Violation("L6", `renews ${times} times in peace: ${what}`);
    if (
      hasDeadline(what.split(" ")[0]!) ||
      !/api\.(PATCH|DELETE)|(be|vm)\.(create|stop|delete|update)|entry\.(create|swap|remove)/.test(what)
    )
      continue;
    const pod = world.api.byUid(what.split(" ")[0]!);
    if (what.endsWith("be.create") && pod && world.disks?.isElsewhere(pod)) continue;
    // A pod that a finalizer holds is let go again, later and later.
    if (!what.endsWith("api.DELETE") || times > MOST_LAST_WORDS) throw new Violation("L6", `writes in peace: ${what}`);
  }
}
