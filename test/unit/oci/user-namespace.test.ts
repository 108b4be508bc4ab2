import { mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { OciEngine } from "../../../providers/local/engines/oci/engine.ts";
import { sweepTrials } from "../../../providers/local/engines/oci/user-namespace.ts";
import type { MachineSpec } from "../../../src/provider/machine.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

let stateDir: string;
beforeEach(() => void (stateDir = mkdtempSync(join(tmpdir(), "vmlet-unit-"))));
afterEach(() => rmSync(stateDir, { recursive: true }));

test.each([
  ["does not know the question", "exit 1"],
  ["says nothing of them", `echo '{"linux":{}}'`],
  ["says that it cannot", `echo '{"linux":{"mountExtensions":{"idmap":{"enabled":false}}}}'`],
])("machines have no users of their own with a runtime that %s of mapped mounts", async (_title, answer) => {
  const runtime = join(stateDir, "runtime");
  writeFileSync(runtime, `#!/bin/sh\n[ "$1" = run ] && { echo --keep; exit; }\n${answer}\n`, { mode: 0o755 });
  const options = { stateDir, clock: new VirtualClock(), logger: silentLogger, network: { bridge: "unittest0" } };
  const engine = new OciEngine({ ...options, runtime });

  const told = (await engine.check()).filter(({ problem }) => problem.includes("hostUsers"));
  expect(told).toEqual([
    expect.objectContaining({ fatal: false, problem: expect.stringContaining("runtime maps no mounts") }),
  ]);
  expect(engine.capabilities).not.toContain("user_namespace");
  const container = { name: "a", image: "i" };
  const machine: MachineSpec = { labels: {}, restart_policy: "never", containers: [container] };
  expect(() => engine.validate({ ...machine, security: { host_users: false } })).toThrow(
    expect.objectContaining({ code: "unsupported", field: "security.host_users" }),
  );
});

test("what a killed backend has left of its trial is removed", async () => {
  for (const folder of ["users-trial-a1b2c3/upper", "machines"]) mkdirSync(join(stateDir, folder), { recursive: true });
  await sweepTrials(stateDir);
  expect(readdirSync(stateDir)).toEqual(["machines"]);
});
