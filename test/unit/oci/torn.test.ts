/** What a loss of power leaves of engine oci's own records and of its runtime's: none of it keeps the backend from starting. */
import { existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { beforeEach, expect, onTestFinished, test, vi } from "vitest";
import { OciEngine } from "../../../providers/local/engines/oci/engine.ts";
import { machineHash } from "../../../providers/local/host/machine-hash.ts";
import { bootId } from "../../../providers/local/host/proc.ts";
import { HostNetwork } from "../../../providers/local/network/network.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

let stateDir: string;
let clock: VirtualClock;
let engine: OciEngine;
/** Of a container of a machine that is not known. */
let runtimeState: string;

beforeEach(() => {
  stateDir = mkdtempSync(join(tmpdir(), "vmlet-unit-"));
  clock = new VirtualClock();
  for (const method of ["claim", "detach", "sweep"] as const)
    vi.spyOn(HostNetwork.prototype, method).mockResolvedValue(undefined);
  // It would make a bridge, and this host keep it.
  vi.spyOn(HostNetwork.prototype, "lookAfter").mockReturnValue(undefined);
  // As runc does when its state is torn, or its disk does not answer.
  const runtime = join(stateDir, "runc");
  writeFileSync(runtime, '#!/bin/sh\n[ -e "$(dirname "$0")/mended" ] && exit 0\necho EOF >&2; exit 1\n', {
    mode: 0o755,
  });
  engine = new OciEngine({ stateDir, clock, logger: silentLogger, network: { bridge: "unittest0" }, runtime });
  const dir = join(stateDir, "machines/gone/engine");
  mkdirSync(join(dir, "containers/c-1"), { recursive: true });
  mkdirSync(join(stateDir, "oci/machines"), { recursive: true });
  writeFileSync(record(), JSON.stringify({ id: "gone", dir }));
  runtimeState = join(stateDir, "oci/runtime/c-1/state.json");
  onTestFinished(async () => {
    await engine.close();
    rmSync(stateDir, { recursive: true, force: true });
  });
});

const record = (id = "gone") => join(stateDir, "oci/machines", machineHash(id));

function leaveRuntimeState(text: string): void {
  for (const id of ["c-1", `pause-${machineHash("gone")}`]) {
    mkdirSync(join(stateDir, "oci/runtime", id), { recursive: true });
    writeFileSync(join(stateDir, "oci/runtime", id, "state.json"), text);
  }
}

test("a container whose state the runtime has lost is removed without it", async () => {
  leaveRuntimeState("");
  await engine.sweep(new Set());
  expect([existsSync(runtimeState), existsSync(record())]).toEqual([false, false]);
});

test("what cannot be removed yet does not keep the backend from starting, and is removed when it can be", async () => {
  leaveRuntimeState("{}");
  await engine.sweep(new Set());
  expect([...engine.unswept]).toEqual(["gone"]);
  writeFileSync(join(stateDir, "mended"), "");
  await clock.advance(30_000);
  await vi.waitUntil(() => engine.unswept.size === 0, { timeout: 10_000 });
  expect(existsSync(record())).toBe(false);
});

test("the runtime's containers of another boot of the host are forgotten, those of this one are not", async () => {
  leaveRuntimeState("{}");
  rmSync(record());
  await engine.sweep(new Set());
  expect(existsSync(runtimeState)).toBe(true);
  writeFileSync(join(stateDir, "oci/boot"), "another");
  await engine.sweep(new Set());
  expect(existsSync(runtimeState)).toBe(false);
  leaveRuntimeState("{}");
  writeFileSync(join(stateDir, "oci/boot"), bootId());
  await engine.sweep(new Set());
  expect(existsSync(runtimeState)).toBe(true);
});

test("a torn record of a machine that is not known is that of the folder with its name", async () => {
  leaveRuntimeState("");
  writeFileSync(record(), "");
  await engine.sweep(new Set());
  expect(existsSync(join(stateDir, "machines/gone/engine"))).toBe(false);
  expect(readdirSync(join(stateDir, "oci/machines"))).toEqual([]);
});

test("a torn record of a machine that is known stays for it", async () => {
  writeFileSync(record(), "");
  await engine.sweep(new Set(["gone"]));
  expect(existsSync(join(stateDir, "machines/gone/engine"))).toBe(true);
});
