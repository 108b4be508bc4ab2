/** Devices of extended resources: each has one machine at a time, and who asks for one never runs without. */
import type { Machine, MachineSpec } from "../../machine.ts";
import type { Check } from "../check.ts";
import { FOREVER, type CheckContext } from "../context.ts";

const NEEDS = ["devices", "capacity"] as const;

/** The resource of which there are most; undefined when there is none. */
async function resourceOf(context: CheckContext): Promise<{ name: string; count: number } | undefined> {
  const { allocatable } = await context.provider.getCapacity!({ signal: context.signal });
  const [most] = (allocatable.extended ?? []).toSorted((a, b) => b.count - a.count);
  return most !== undefined && most.count > 0 ? most : undefined;
}

const skip = async (context: CheckContext) =>
  (await resourceOf(context)) === undefined ? "the backend's capacity has no extended resource" : undefined;

const asking = (context: CheckContext, name: string, count: number): Partial<MachineSpec> => ({
  containers: [context.container(FOREVER, { resources: { limits: { extended: [{ name, count }] } } })],
});

const idsOf = ({ containers }: Machine, name: string): string[] =>
  containers.flatMap(({ devices = [] }) => devices.flatMap(({ resource, id }) => (resource === name ? [id] : [])));

export const DEVICE_CHECKS: readonly Check[] = [
  {
    name: "devices/each-has-one-machine",
    why: "Two pods on one GPU take each other's memory, and each reads what the other has left there.",
    needs: NEEDS,
    skip,
    async run(context: CheckContext) {
      const { name, count } = (await resourceOf(context))!;
      const machines: Machine[] = [];
      for (let i = 0; i < Math.min(2, count); i++)
        machines.push(await context.running(FOREVER, asking(context, name, 1)));
      const given = machines.map((machine) => idsOf(machine, name));
      for (const ids of given)
        context.expect(ids.length === 1, `one device of ${name}, as asked for`, `the container shows ${ids.length}`);
      const ids = given.flat();
      context.expect(new Set(ids).size === ids.length, "another device for each machine", `all have ${ids[0]}`);
    },
  },
  {
    name: "devices/too-many-are-not-run-without",
    why: "A pod that runs without the device that it asked for computes for days on what it was not to run on.",
    needs: NEEDS,
    skip,
    async run(context: CheckContext) {
      const { name, count } = (await resourceOf(context))!;
      const machine = await context.over(FOREVER, asking(context, name, count + 1));
      context.expect(machine.state === "failed", "a machine that asks for too many to fail", `it is ${machine.state}`);
      context.expect(machine.started_at === undefined, "it never to have run", `it ran at ${machine.started_at}`);
    },
  },
];
