import { mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { checkUsers, VmUsers } from "../../../providers/local/engines/vm/users.ts";

let dir: string;
const range = { first: 200_000, count: 16 };
const users = () => new VmUsers({ ...range, dir: join(dir, "taken") });
beforeEach(() => void (dir = mkdtempSync(join(tmpdir(), "vmlet-users-"))));
afterEach(() => rmSync(dir, { recursive: true }));

test("two VMs never have one user, nor do those of two backends that take at the same time", async () => {
  const [a, b] = [users(), users()];
  const taken = await Promise.all(
    Array.from({ length: 8 }, (_, index) => [a.take(`/a/${index}`), b.take(`/b/${index}`)]).flat(),
  );
  expect(new Set(taken).size).toBe(16);
  expect(taken.toSorted((x, y) => x - y)[0]).toBe(200_000);
});

test("a VM keeps its user, also when the backend is killed", async () => {
  const uid = await users().take("/vms/a");
  const later = users();
  expect(await later.take("/vms/a")).toBe(uid);
  expect(await later.take("/vms/b")).not.toBe(uid);
});

test("a released user is given out again, and one that a killed backend's VM had", async () => {
  const first = users();
  for (let index = 0; index < range.count; index++) await first.take(`/vms/${index}`);
  await expect(first.take("/vms/more")).rejects.toMatchObject({
    code: "unavailable",
    message: expect.stringMatching(/all 16 users for VMs are taken: raise engine.users.count/),
  });
  await users().release("/vms/3");
  expect(readdirSync(join(dir, "taken"))).toHaveLength(15);
  expect(await users().take("/vms/more")).toBe(200_003);
});

test("to release what was never taken does nothing", async () => {
  await users().release("/vms/never");
  expect(readdirSync(join(dir, "taken"))).toEqual([]);
});

test.each([
  ["passwd", "www:x:200015:200015::/:/bin/false", ["www"]],
  ["passwd", "www:x:200016:200016::/:/bin/false", []],
  ["subuid", "ann:150000:65536", ["ann"]],
  ["subgid", "ann:134464:65536", []],
])("users of /etc/%s that have some of the range are told: %s", (file, line, names) => {
  mkdirSync(join(dir, "etc"));
  writeFileSync(join(dir, "etc", file), `root:x:0:0::/:/bin/sh\n${line}\n`);
  const problems = checkUsers(range, join(dir, "etc"));
  expect(problems.map(({ fatal }) => fatal)).toEqual(names.map(() => false));
  for (const name of names) expect(problems[0]!.problem).toContain(name);
});
