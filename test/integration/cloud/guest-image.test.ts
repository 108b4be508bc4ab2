/** The image of which a cloud's VMs are: known by its hash, so that the same content is brought once. */
import { chmodSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { delimiter, join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { findTool } from "../../../providers/local/host/command.ts";
import { buildGuestImage } from "../../../src/cli/guest-image.ts";
import { leaveOut } from "../../support/left-out.ts";

const missing = [
  ...["mmdebstrap", "tar"].filter((tool) => findTool(tool) === undefined),
  ...(process.getuid?.() === 0 ? [] : ["root"]),
];

if (missing.length > 0) leaveOut("the image of guests", missing);
else
  test("of the same packages and programs is the same, whoever makes it", async () => {
    const dir = mkdtempSync(join(tmpdir(), "vmlet-guest-image-"));
    const bin = join(dir, "bin");
    const [path, umask] = [process.env["PATH"], process.umask()];
    onTestFinished(() => {
      process.umask(umask);
      process.env["PATH"] = path;
      rmSync(dir, { recursive: true, force: true });
    });
    // It takes the host's, and runs none of them.
    mkdirSync(bin);
    for (const name of ["containerd", "containerd-shim-runc-v2", "runc"]) {
      writeFileSync(join(bin, name), name);
      chmodSync(join(bin, name), 0o755);
    }
    process.env["PATH"] = `${bin}${delimiter}${path}`;
    const signal = AbortSignal.timeout(600_000);
    const fingerprints: string[] = [];
    for (const mask of [0o022, 0o077]) {
      process.umask(mask);
      fingerprints.push(await buildGuestImage(join(dir, `${mask}.tar`), { suite: "bookworm", signal }));
    }
    expect(fingerprints[1]).toBe(fingerprints[0]);
  }, 600_000);
