import { mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { checkMachineUsers, MachineUsers } from "../../../providers/local/bundle/machine-users.ts";
import { NamespaceMode } from "../../../providers/local/engines/cri/api.gen.js";
import { userNamespace } from "../../../providers/local/engines/cri/user-namespace.ts";

let dir: string;
const users = (backend = "b1", count = 8) => new MachineUsers(backend, { dir: join(dir, "taken"), count });
beforeEach(() => void (dir = mkdtempSync(join(tmpdir(), "vmlet-users-"))));
afterEach(() => rmSync(dir, { recursive: true }));

test("a machine's users and groups are a range of 65536 that begins with its root", async () => {
  const { mode, uids, gids } = userNamespace(await users().take("a"));
  const range = { containerId: 0, hostId: expect.any(Number), length: 65_536 };
  expect({ mode, uids, gids }).toMatchObject({ mode: NamespaceMode.POD, uids: [range], gids: [range] });
  expect(uids[0]!.hostId).toBe(gids[0]!.hostId);
});

test("ranges of machines do not overlap, nor those of two backends that take at the same time", async () => {
  const [a, b] = [users("b1"), users("b2")];
  const taken = await Promise.all(["1", "2", "3", "4"].flatMap((id) => [a.take(id), b.take(id)]));
  const sorted = taken.toSorted((x, y) => x - y);
  for (const [index, from] of sorted.entries()) expect(from - sorted[0]!).toBe(index * 65_536);
});

test("a machine keeps its range when the backend is killed, and no other gets it", async () => {
  const range = await users().take("a");
  const later = users();
  expect(await later.take("b")).not.toBe(range);
  expect(await later.take("a")).toBe(range);
});

test("the range of a sandbox that is there is held, though nothing is written of it", async () => {
  const range = await users().take("a");
  rmSync(join(dir, "taken"), { recursive: true });
  const later = users("b1", 2);
  await later.hold("a", range);
  expect(await later.take("b")).not.toBe(range);
});

test("without a range left nothing is given out, and a released one is", async () => {
  const some = users("b1", 1);
  await some.take("a");
  await expect(some.take("b")).rejects.toMatchObject({ code: "unavailable" });
  await some.release("a");
  expect(await some.take("b")).toBeGreaterThan(0);
});

test("at a backend's start the ranges of its machines that are no more are released, and no others", async () => {
  await users().take("a");
  await users().take("gone");
  await users("b2").take("gone");
  await users().sweep(new Set(["a"]));
  expect(readdirSync(join(dir, "taken"))).toHaveLength(2);
});

test.each([
  ["passwd", "www:x:1879113728:200015::/:/bin/false", ["www"]],
  ["passwd", "www:x:33:33::/:/bin/false", []],
  ["subuid", "ann:100000:65536", []],
  ["subgid", "ann:1879113727:2", ["ann"]],
])("users of /etc/%s that machines may have as well are told: %s", (file, line, names) => {
  mkdirSync(join(dir, "etc"));
  writeFileSync(join(dir, "etc", file), `root:x:0:0::/:/bin/sh\n${line}\n`);
  const problems = checkMachineUsers(join(dir, "etc"));
  expect(problems.map(({ fatal }) => fatal)).toEqual(names.map(() => false));
  for (const name of names) expect(problems[0]!.problem).toContain(name);
});
