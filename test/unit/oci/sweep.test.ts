import { mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test, vi } from "vitest";
import { OciEngine } from "../../../providers/local/engines/oci/engine.ts";
import { VmEngine } from "../../../providers/local/engines/vm/engine.ts";
import { HostNetwork } from "../../../providers/local/network/network.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { writeGuest } from "../../support/guest-image.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

test.each(["oci", "vm"] as const)(
  "a record that the former backend was killed in the middle of does not keep engine %s from starting",
  async (name) => {
    const stateDir = mkdtempSync(join(tmpdir(), "vmlet-unit-"));
    onTestFinished(() => rmSync(stateDir, { recursive: true, force: true }));
    const records = join(stateDir, name, "machines");
    mkdirSync(records, { recursive: true });
    writeFileSync(join(records, "0123456789abcdef.89abcdef.tmp"), "");
    // What the engine vm would make or ask the host for.
    const guestDir = join(stateDir, "guest");
    mkdirSync(guestDir);
    writeGuest(guestDir);
    for (const file of ["id_ed25519", "id_ed25519.pub"]) writeFileSync(join(stateDir, name, file), "");
    // Only root may.
    vi.spyOn(HostNetwork.prototype, "claim").mockResolvedValue();
    const options = { stateDir, clock: new VirtualClock(), logger: silentLogger, network: { bridge: "unittest0" } };
    const engine =
      name === "oci"
        ? new OciEngine(options)
        : new VmEngine({ ...options, guestDir, accelerator: "tcg", clones: false });
    onTestFinished(() => engine.close());

    await engine.sweep(new Set());
    expect(readdirSync(records)).toEqual([]);
  },
);
