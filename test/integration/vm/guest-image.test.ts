/** The guest image as guest-image.sh makes it, on a disk that has lost a part of it. */
import { cpSync, mkdtempSync, rmSync, statSync, truncateSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { VmEngine } from "../../../providers/local/engines/vm/engine.ts";
import { defaultGuestDir } from "../../../providers/local/engines/vm/guest.ts";
import { GuestImage, tornGuestFiles } from "../../../providers/local/engines/vm/guest-image.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { leaveOut } from "../../support/left-out.ts";

const options = { clock: systemClock, logger: silentLogger };
const engine = new VmEngine({ stateDir: "/nonexistent", ...options });
const problems = (await engine.check()).filter(({ fatal }) => fatal).map(({ problem }) => problem);

if (problems.length > 0) leaveOut("the guest image of VMs", problems);
else
  test("is whole when it is made, and made again when its kernel is torn", async () => {
    const made = process.env["VMLET_GUEST_DIR"] ?? defaultGuestDir();
    await new GuestImage({ dir: made, ...options }).ready();
    const dir = mkdtempSync(join(tmpdir(), "vmlet-guest-image-"));
    onTestFinished(() => rmSync(dir, { recursive: true, force: true }));
    cpSync(made, dir, { recursive: true });
    truncateSync(join(dir, "vmlinux"), 4096);
    expect(await tornGuestFiles(dir)).toEqual(["vmlinux"]);
    await new GuestImage({ dir, ...options }).ready();
    expect(await tornGuestFiles(dir)).toEqual([]);
    expect([statSync(join(dir, "torn/vmlinux")).size, statSync(join(dir, "vmlinux")).size > 4096]).toEqual([
      4096,
      true,
    ]);
  });
