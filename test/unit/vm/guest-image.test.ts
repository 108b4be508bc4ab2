import { createHash } from "node:crypto";
import {
  existsSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  truncateSync,
  utimesSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { checkGuest, hasGuest, outdatedPackages } from "../../../providers/local/engines/vm/guest.ts";
import { GuestImage, tornGuestFiles } from "../../../providers/local/engines/vm/guest-image.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { writeGuest } from "../../support/guest-image.ts";

const DAY_MS = 86_400_000;
let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "vmlet-image-"));
  writeGuest(dir);
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
  expect(await checkGuest(dir, [], now)).toEqual([]);
  const made = (now - 100 * DAY_MS) / 1000;
  utimesSync(join(dir, "version"), made, made);
  expect(await checkGuest(dir, [], now)).toEqual([
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
  expect(await checkGuest(dir, [], Date.now())).toEqual([
    { fatal: true, problem: expect.stringContaining("no program can be run"), cure: expect.stringContaining("noexec") },
  ]);
});

test("an image of an older version, without the programs that QEMU is started by, is told", async () => {
  rmSync(join(dir, "jail"));
  expect(hasGuest(dir)).toBe(true);
  expect(await checkGuest(dir, [], Date.now())).toEqual([
    { fatal: true, problem: expect.stringContaining("has no jail"), cure: expect.stringContaining("guest-image.sh") },
  ]);
});

test("a torn image is told with the names of its torn files, and that it will be made again", async () => {
  expect(await checkGuest(dir, ["vmlinux"], Date.now())).toEqual([
    {
      fatal: expect.any(Boolean),
      problem: expect.stringMatching(/is torn or was changed \(vmlinux\)/),
      cure: expect.stringContaining("guest-image.sh"),
    },
  ]);
});

describe("the image that machines are made of", () => {
  let made: number;
  let image: GuestImage;
  let make: (dir: string) => Promise<void>;
  beforeEach(() => {
    made = 0;
    make = async (folder) => {
      made++;
      writeGuest(folder);
    };
    image = new GuestImage({
      dir,
      clock: { ...systemClock, sleep: async () => {} },
      logger: silentLogger,
      make: async (folder) => await make(folder),
    });
  });
  const files = ["version", "packages", "frequency", "jail", "give", "read-only.so", "vmlinux", "base.cpio", "sums"];

  test("is taken as it is when it is whole", async () => {
    await image.ready();
    expect(made).toBe(0);
  });

  test("is made when there is none, once for all who ask", async () => {
    for (const name of readdirSync(dir)) rmSync(join(dir, name));
    await Promise.all([image.ready(), image.ready()]);
    expect([made, await tornGuestFiles(dir)]).toEqual([1, []]);
  });

  test.each(files)("is set aside and made again when a loss of power has emptied %s", async (name) => {
    const whole = readFileSync(join(dir, "vmlinux"), "utf8");
    truncateSync(join(dir, name));
    await image.ready();
    expect([made, await tornGuestFiles(dir)]).toEqual([1, []]);
    expect(readFileSync(join(dir, "torn", name), "utf8")).toBe("");
    expect(readFileSync(join(dir, "vmlinux"), "utf8")).toBe(whole);
  });

  test("is made again when it was changed while the backend runs", async () => {
    await image.ready();
    writeFileSync(join(dir, "jail"), "#!/bin/sh\nexit 3\n");
    await image.ready();
    expect([made, await tornGuestFiles(dir)]).toEqual([1, []]);
  });

  test("is made again when a file of it is gone", async () => {
    rmSync(join(dir, "base.cpio"));
    await image.ready();
    expect([made, existsSync(join(dir, "base.cpio"))]).toEqual([1, true]);
  });

  test("is left alone when another process was only putting a newer one in its place", async () => {
    truncateSync(join(dir, "vmlinux"));
    const waiting = new GuestImage({
      dir,
      clock: { ...systemClock, sleep: async () => writeGuest(dir) },
      logger: silentLogger,
      make,
    });
    await waiting.ready();
    expect(made).toBe(0);
  });

  test("of an earlier version, which has one hash of what guests run, is held to that", async () => {
    rmSync(join(dir, "sums"));
    const hash = createHash("sha256");
    for (const name of ["frequency", "vmlinux", "base.cpio"]) hash.update(readFileSync(join(dir, name)));
    writeFileSync(join(dir, "version"), `${hash.digest("hex").slice(0, 16)}\n`);
    expect(await tornGuestFiles(dir)).toEqual([]);
    truncateSync(join(dir, "vmlinux"), 1);
    expect(await tornGuestFiles(dir)).toEqual(["version"]);
  });

  test("is refused when it is torn again as soon as it is made", async () => {
    make = async (folder) => {
      writeGuest(folder);
      truncateSync(join(folder, "vmlinux"));
    };
    truncateSync(join(dir, "vmlinux"));
    await expect(image.ready()).rejects.toThrow("look at its disk");
  });
});
