import { expect, test } from "vitest";
import { saysSomething, PodSecrets } from "../../../src/podspec/references/pod-secrets.ts";
import type { Machine } from "../../../src/provider/machine.ts";
import { pod as basePod } from "../../support/builders.ts";
import { referencesWith, secret } from "../podspec/fixtures.ts";
import { SPEC, World } from "./world.ts";

const SECRET = "hunter2-hunter2";

/** A pod whose machine was there before this process, with knowledge of its secrets that has to be read first. */
async function restarted(said: Partial<Machine>) {
  const secrets = new PodSecrets();
  let reads = 0;
  const world = new World(basePod(), {
    secrets: {
      mustLearn: (pod, machine) => !secrets.knows(pod.metadata!.uid!) && saysSomething(machine),
      learn: async (pod) => {
        reads++;
        await Promise.resolve();
        secrets.learn(pod, referencesWith({ secrets: { db: secret({ password: SECRET }) } }), "1");
      },
      withoutSecrets: (pod, machine) => secrets.clean(pod.metadata!.uid!, machine),
    },
  });
  await world.provider.createPod("m-u1", SPEC, { signal: AbortSignal.timeout(1_000) });
  await world.hear(said);
  await world.settle();
  return { world, reads: () => reads };
}

const waiting = (machine: Partial<Machine> = {}): Partial<Machine> => ({
  containers: [
    {
      name: "app",
      kind: "main",
      state: "waiting",
      reason: "CreateContainerError",
      message: `exec app --password ${SECRET}: not found`,
      ready: false,
      started: false,
      restart_count: 0,
      image: "app:1",
      image_id: "",
    },
  ],
  ...machine,
});

test("no status that was written quotes a secret of the pod, also by a process that did not render it", async () => {
  const { world } = await restarted(waiting({ state: "starting" }));
  const patches = JSON.stringify(world.requests.map(({ body }) => body));
  expect(patches).toContain("exec app --password [redacted]: not found");
  expect(patches).not.toContain(SECRET);
});

test("no notice that becomes an event does", async () => {
  const notices = (seq: number) => ({
    notices: [{ at: "2026-01-01T00:00:00Z", type: "Warning" as const, reason: "Failed", message: SECRET, seq }],
  });
  const { world } = await restarted(notices(1));
  await world.hear(notices(2));
  await world.settle();
  expect(world.said("Failed")).toEqual(["[redacted]"]);
});

test("what a pod keeps secret is read once, and only when there is a text", async () => {
  const silent = await restarted({ notices: [] });
  expect(silent.reads()).toBe(0);
  const { world, reads } = await restarted(waiting({ state: "starting" }));
  await world.settle();
  expect(reads()).toBe(1);
});
