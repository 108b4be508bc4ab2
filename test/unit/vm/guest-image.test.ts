import { mkdtempSync, rmSync, utimesSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { checkGuest, hasGuest, outdatedPackages } from "../../../providers/local/engines/vm/guest.ts";

const DAY_MS = 86_400_000;
let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "vmlet-image-"));
  for (const name of ["version", "read-only.so"]) writeFileSync(join(dir, name), "");
  writeFileSync(join(dir, "jail"), "#!/bin/sh\nexit 2\n", { mode: 0o755 });
});
afterEach(() => rmSync(dir, { recursive: true }));

const policy = (versions: Record<string, string>) => async (names: readonly string[]) =>
  names
    .filter((name) => name in versions)
    .map((name) => `${name}:\n  Installed: (none)\n  Candidate: ${versions[name]}\n  Version table:\n     1.0 500\n`)
    .join("");

test("an image is outdated when a package of it has another version by now", async () => {
  writeFileSync(
    join(dir, "packages"),
    "crun 1.8\nlinux-image-cloud-amd64 6.1.1\nlibcap2 2\nlinux-image-6.1.0-1 6.1.1\n",
  );
  const same = { crun: "1.8", "linux-image-cloud-amd64": "6.1.1", libcap2: "(none)" };
  expect(await outdatedPackages(dir, policy(same))).toEqual([]);
  expect(await outdatedPackages(dir, policy({ ...same, crun: "1.9", "linux-image-cloud-amd64": "6.1.2" }))).toEqual([
    "crun",
    "linux-image-cloud-amd64",
  ]);
});

test("an image is not outdated where nobody knows", async () => {
  expect(await outdatedPackages(dir, policy({ crun: "1.9" }))).toEqual([]);
  writeFileSync(join(dir, "packages"), "crun 1.8\n");
  expect(await outdatedPackages(dir, () => Promise.reject(new Error("no apt here")))).toEqual([]);
});

test("an old image is told with its age, a new one is not", async () => {
  const now = Date.now();
  expect(await checkGuest(dir, now)).toEqual([]);
  const made = (now - 100 * DAY_MS) / 1000;
  utimesSync(join(dir, "version"), made, made);
  expect(await checkGuest(dir, now)).toEqual([
    {
      fatal: false,
      problem: expect.stringContaining("made 100 days ago"),
      cure: expect.stringContaining("apt-get update"),
    },
  ]);
});

test("an image whose programs cannot be run is told before a machine needs them", async () => {
  rmSync(join(dir, "jail"));
  writeFileSync(join(dir, "jail"), "no program", { mode: 0o644 });
  expect(await checkGuest(dir, Date.now())).toEqual([
    { fatal: true, problem: expect.stringContaining("no program can be run"), cure: expect.stringContaining("noexec") },
  ]);
});

test("an image of an older version, without the programs that QEMU is started by, is told", async () => {
  rmSync(join(dir, "jail"));
  expect(hasGuest(dir)).toBe(true);
  expect(await checkGuest(dir, Date.now())).toEqual([
    { fatal: true, problem: expect.stringContaining("has no jail"), cure: expect.stringContaining("guest-image.sh") },
  ]);
});
