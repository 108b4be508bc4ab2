import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { beforeEach, describe, expect, onTestFinished, test } from "vitest";
import {
  checkAppArmor,
  hasAppArmor,
  loadProfile,
  PROFILE,
  profileText,
} from "../../../providers/local/engines/oci/apparmor.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";

let root: string;
let dir: string;

beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), "vmlet-apparmor-"));
  dir = join(root, "state");
  const made = root;
  onTestFinished(() => rmSync(made, { recursive: true }));
});

function enable(enabled = "Y\n"): void {
  mkdirSync(join(root, "sys/kernel/security/apparmor"), { recursive: true });
  mkdirSync(join(root, "sys/module/apparmor/parameters"), { recursive: true });
  writeFileSync(join(root, "sys/module/apparmor/parameters/enabled"), enabled);
}

/** A parser that keeps what it is told, and ends with this code. */
function parser(code = 0): string {
  const path = join(root, "parser");
  writeFileSync(path, `#!/bin/sh\necho "$@" > ${root}/told\nexit ${code}\n`, { mode: 0o755 });
  return path;
}

const load = (program: string | undefined) =>
  loadProfile({ dir, root, findParser: () => program, logger: silentLogger });

describe("a host without AppArmor", () => {
  test("is told nothing of it, and its containers have no profile", async () => {
    expect(await checkAppArmor(root, () => undefined)).toEqual([]);
    expect([await load(parser()), existsSync(join(root, "told"))]).toEqual([undefined, false]);
  });

  test("is one whose kernel was booted without it, too", async () => {
    enable("N\n");
    expect(await hasAppArmor(root)).toBe(false);
  });
});

describe("a host with AppArmor", () => {
  beforeEach(() => enable());

  test("has the profile of containers loaded in place of an older one", async () => {
    expect(await checkAppArmor(root, parser)).toEqual([]);
    expect(await load(parser())).toBe(PROFILE);
    expect(readFileSync(join(root, "told"), "utf8")).toBe(`-Kr ${join(dir, PROFILE)}\n`);
    expect(readFileSync(join(dir, PROFILE), "utf8")).toBe(profileText([]));
  });

  test("that cannot load it is told by the check, and containers run without", async () => {
    expect(await checkAppArmor(root, () => undefined)).toMatchObject([
      { fatal: false, problem: expect.stringContaining("apparmor_parser"), cure: expect.stringContaining("apparmor") },
    ]);
    expect(await load(undefined)).toBeUndefined();
  });

  test("whose parser refuses the profile has containers without it", async () => {
    expect(await load(parser(1))).toBeUndefined();
  });
});

test("a profile includes what the host has, and says itself what it has not", () => {
  const whole = profileText(["tunables/global", "abstractions/base"]);
  expect(whole).toContain("#include <tunables/global>");
  expect(whole).toContain("#include <abstractions/base>");
  expect(whole).not.toContain("@{PROC}=");
  expect(profileText([])).not.toContain("#include");
  expect(profileText([])).toContain("@{PROC}=/proc/");
});
