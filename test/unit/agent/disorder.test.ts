/** A watch that repeats its events and mixes those of different pods, as proxies and reconnects do. */
import { expect, test } from "vitest";
import type { WatchEvent } from "../../../src/kube/kube.ts";
import { World } from "./world.ts";

/** Each event three times, those of different pods in any order, those of one pod in theirs. */
function disordered(seed: number) {
  let state = seed;
  const random = () => (state = (state * 16_807) % 2_147_483_647) / 2_147_483_647;
  return (events: WatchEvent<unknown>[]): WatchEvent<unknown>[] => {
    const lanes = [...Map.groupBy(events, nameOf).values()].map((own) => own.flatMap((event) => [event, event, event]));
    const mixed: WatchEvent<unknown>[] = [];
    while (lanes.some((lane) => lane.length > 0)) {
      const left = lanes.filter((lane) => lane.length > 0);
      mixed.push(structuredClone(left[Math.floor(random() * left.length)]!.shift()!));
    }
    return mixed;
  };
}

const nameOf = ({ object }: WatchEvent<unknown>) => (object as { metadata: { name: string } }).metadata.name;

/** What an agent makes of twenty pods of which some end, some are deleted and some come again. @returns end and effects */
async function play(deliver?: (events: WatchEvent<unknown>[]) => WatchEvent<unknown>[]) {
  const world = new World();
  const agent = world.agent({ deliver }).start();
  await world.clock.advance(1_000);
  const uids = new Map<string, string>();
  const create = (name: string, incarnation = 0) => {
    const pod = world.createPod(name, { restartPolicy: "Never" });
    uids.set(pod.metadata.uid as string, `${name}-${incarnation}`);
  };
  for (let i = 0; i < 20; i++) create(`p${i}`);
  await world.clock.advance(10_000);
  for (let i = 0; i < 5; i++) world.endContainer(`p${i}`, i);
  await world.clock.advance(10_000);
  for (let i = 3; i < 10; i++) world.deletePod(`p${i}`);
  await world.clock.advance(10_000);
  for (let i = 3; i < 10; i++) create(`p${i}`, 1);
  await world.clock.advance(10_000);
  for (let i = 3; i < 6; i++) world.deletePod(`p${i}`);
  await world.clock.advance(10_000);
  // Only what somebody notices: the Node and its lease are renewed by the clock.
  const effects = world.effects
    .filter((effect) => !effect.includes("burst-0"))
    .map((effect) => effect.replace(/\w{8}-(.*)$/, (_all, uid: string) => uids.get(uid) ?? uid))
    .toSorted();
  await agent.stop();
  return {
    phases: world.phases(),
    machines: new Set(world.machines().map((uid) => uids.get(uid))),
    // How many statuses a start takes depends on who is looked at first.
    effects: effects.filter((effect) => !effect.startsWith("PATCH")),
    vain: world.vain,
  };
}

test("events that come three times and mixed have the same end and the same effects as those that come once", async () => {
  const undisturbed = await play();
  expect(undisturbed.effects.filter((effect) => effect.startsWith("createPod"))).toHaveLength(27);
  expect(undisturbed.vain).toEqual([]);
  for (let seed = 1; seed <= 10; seed++) expect(await play(disordered(seed))).toEqual(undisturbed);
});

test("events that are told again from the start, as after a reconnect to a server that is behind, make and end no machine more", async () => {
  const undisturbed = await play();
  const told: WatchEvent<unknown>[] = [];
  const { effects, ...end } = await play((events) => {
    if (events.length === 0) return [];
    told.push(...events);
    return [...told];
  });
  expect(end).toEqual({ phases: undisturbed.phases, machines: undisturbed.machines, vain: [] });
  const starts = (all: readonly string[]) => all.filter((effect) => /^(create|stop)Pod/.test(effect));
  expect(starts(effects)).toEqual(starts(undisturbed.effects));
});
