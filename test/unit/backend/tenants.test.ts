/** What all machines of a host share: no tenant takes so much of it that another's machines do not start. */
import { expect, test } from "vitest";
import { tenantOf } from "../../../src/provider/owner.ts";
import { ownerLabels } from "../../../src/provider/owner.ts";
import { main, World } from "./world.ts";

const of = (namespace: string) => ({ "vmlet.dev/namespace": namespace });

test("machines whose guests hang leave other tenants' machines the room to start", async () => {
  const world = await World.create((fresh) => fresh.stuck.add("hangs"));
  for (let index = 0; index < 12; index++)
    await world.create({ labels: of("hung"), containers: [main("hangs")] }, `hung-${index}`);
  expect(world.instances.filter(({ name }) => name === "hangs")).toHaveLength(8);
  await world.create({ labels: of("other"), containers: [main("a")] }, "other");
  expect(await world.container("a", "other")).toMatchObject({ state: "running" });
});

test("a machine that is deleted while it waits for room to start is gone at once", async () => {
  const world = await World.create((fresh) => fresh.stuck.add("hangs"));
  for (let index = 0; index < 8; index++)
    await world.create({ labels: of("hung"), containers: [main("hangs")] }, `hung-${index}`);
  await world.create({ labels: of("hung"), containers: [main("a")] }, "waiting");
  await world.provider.deletePod("waiting", { force: false, signal: world.signal });
  await world.advance(0);
  expect(await world.machine("waiting")).toMatchObject({ state: "deleted" });
});

test("a namespace's name in two clusters is two tenants", () => {
  const [one, two] = ["one", "two"].map((cluster) => tenantOf({ ...ownerLabels(cluster, "n"), ...of("shop") }));
  expect(one).not.toBe(two);
  expect(tenantOf({ ...ownerLabels("one", "other-node"), ...of("shop") })).toBe(one);
  expect(tenantOf({})).toBe(tenantOf({ "vmlet.dev/uid": "u" }));
});
