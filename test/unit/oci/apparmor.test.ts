import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { beforeEach, describe, expect, onTestFinished, test } from "vitest";
import {
  canConfine,
  checkAppArmor,
  hasAppArmor,
  loadProfile,
  PROFILE,
  profileOf,
  profileText,
} from "../../../providers/local/bundle/apparmor.ts";
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
    expect(checkAppArmor(root, () => undefined)).toEqual([]);
    expect([await load(parser()), existsSync(join(root, "told"))]).toEqual([undefined, false]);
  });

  test("is one whose kernel was booted without it, too", async () => {
    enable("N\n");
    expect(hasAppArmor(root)).toBe(false);
  });
});

describe("a host with AppArmor", () => {
  beforeEach(() => enable());

  test("has the profile of containers loaded in place of an older one", async () => {
    expect([checkAppArmor(root, parser), canConfine(root, parser)]).toEqual([[], true]);
    expect(await load(parser())).toBe(PROFILE);
    expect(readFileSync(join(root, "told"), "utf8")).toBe(`-Kr ${join(dir, PROFILE)}\n`);
    expect(readFileSync(join(dir, PROFILE), "utf8")).toBe(profileText([]));
  });

  test("that cannot load it is told by the check, and containers run without", async () => {
    expect(canConfine(root, () => undefined)).toBe(false);
    expect(checkAppArmor(root, () => undefined)).toMatchObject([
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

describe("a container's profile", () => {
  const of = (security: object, usual: string | undefined = PROFILE) => profileOf({ name: "a", security }, usual, root);
  beforeEach(() => {
    enable();
    writeFileSync(join(root, "sys/kernel/security/apparmor/profiles"), "other (enforce)\nmine (enforce)\n");
  });

  test.each([
    ["the usual one when it asks for nothing", {}, PROFILE],
    ["the usual one when it asks for that", { apparmor: "runtime_default" }, PROFILE],
    ["none when it wants none", { apparmor: "unconfined" }, undefined],
    ["none when it is privileged", { privileged: true }, undefined],
    [
      "none when it is privileged and asks for the usual one",
      { privileged: true, apparmor: "runtime_default" },
      undefined,
    ],
    ["that of the host which it names", { apparmor: "localhost/mine" }, "mine"],
    ["that which it names though it is privileged", { privileged: true, apparmor: "localhost/mine" }, "mine"],
  ])("is %s", async (_title, security, expected) => {
    expect(await of(security)).toBe(expected);
  });

  test.each(["min", "mine (enforce)", ""])("cannot be one that the host has not loaded: %j", async (name) => {
    await expect(of({ apparmor: `localhost/${name}` })).rejects.toMatchObject({
      reason: "CreateContainerError",
      message: `container a: failed to generate apparmor spec opts: apparmor profile not found ${name}`,
    });
  });

  test("that cannot be loaded starts no container that asks for it", async () => {
    expect(await profileOf({ name: "a" }, undefined, root)).toBeUndefined();
    await expect(profileOf({ name: "a", security: { apparmor: "runtime_default" } }, undefined, root)).rejects.toThrow(
      "apparmor is not supported",
    );
  });
});
