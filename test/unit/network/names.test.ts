import { expect, test } from "vitest";
import { NetworkNames } from "../../../providers/local/network/names.ts";

const MACHINES = Array.from({ length: 5_000 }, (_, index) => `m${index}`);
/** Their hashes have the same first bits, which stand before a machine's own in the names of links. */
const ALIKE = ["vmlet0", "vmlet2849"];

test("no two machines' interfaces have one name, not even on bridges whose names are alike, and Linux takes them", () => {
  const names = ALIKE.flatMap((bridge) => MACHINES.map((id) => new NetworkNames(bridge).link(id)));
  expect(names.map((name) => name.slice(0, 5))).toContain(new NetworkNames(ALIKE[1]!).link("m0").slice(0, 5));
  expect([new Set(names).size, Math.max(...names.map(({ length }) => length))]).toEqual([2 * MACHINES.length, 15]);
});

test("of two machines whose interfaces would have one name, it is known", () => {
  // Found by trying a million.
  const [first, second] = ["m69286", "m1244681"] as const;
  const names = new NetworkNames("vmlet0");
  expect(names.link(first)).toBe(names.link(second));
  expect(names.namesake(second, [second, ...MACHINES, first])).toBe(first);
  expect(names.namesake(first, [first, ...MACHINES])).toBeUndefined();
});
