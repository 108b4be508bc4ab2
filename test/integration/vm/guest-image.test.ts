/** The guest image as guest-image.sh makes it, on a disk that has lost a part of it. */
import { cpSync, mkdtempSync, readFileSync, rmSync, statSync, truncateSync } from "node:fs";
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
  test("is whole when it is made, and made again, as it was, when its kernel is torn", async () => {
    const made = process.env["VMLET_GUEST_DIR"] ?? defaultGuestDir();
    await new GuestImage({ dir: made, ...options }).ready();
    const dir = mkdtempSync(join(tmpdir(), "vmlet-guest-image-"));
    onTestFinished(() => rmSync(dir, { recursive: true, force: true }));
    cpSync(made, dir, { recursive: true });
    truncateSync(join(dir, "vmlinux"), 4096);
    expect(await tornGuestFiles(dir)).toEqual(["vmlinux"]);
    const umask = process.umask(0o077);
    await new GuestImage({ dir, ...options }).ready().finally(() => process.umask(umask));
    expect(await tornGuestFiles(dir)).toEqual([]);
    expect([statSync(join(dir, "torn/vmlinux")).size, statSync(join(dir, "vmlinux")).size > 4096]).toEqual([
      4096,
      true,
    ]);
    const read = (name: string) => [made, dir].map((folder) => readFileSync(join(folder, name), "utf8"));
    const [packages, sums] = [read("packages"), read("sums")];
    // Unless a package has been mended since.
    if (packages[0] === packages[1]) expect(sums[1]).toBe(sums[0]);
  });
