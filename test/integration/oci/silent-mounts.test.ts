/** Mounts whose server does not answer: a look into one waits, and so would all that the backend does. */
import { execFileSync } from "node:child_process";
import { closeSync, existsSync, mkdirSync, mkdtempSync, openSync, rmSync, symlinkSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";

const FOLDERS = new URL("../../../providers/local/plugins/csi-folders.ts", import.meta.url).href;
const CAN_HANG = process.getuid?.() === 0 && existsSync("/dev/fuse");

/** A file system in user space that nobody serves: each call waits until the mount goes. */
function silentMount(): string {
  const dir = mkdtempSync(join(tmpdir(), "vmlet-silent-"));
  mkdirSync(join(dir, "own/mount"), { recursive: true });
  symlinkSync(join(dir, "own"), join(dir, "link"));
  const fd = openSync("/dev/fuse", "r+");
  const options = "fd=3,rootmode=40000,user_id=0,group_id=0";
  execFileSync("mount", ["-i", "-t", "fuse", "-o", options, "silent", join(dir, "own/mount")], {
    stdio: ["ignore", "inherit", "inherit", fd],
  });
  onTestFinished(() => {
    closeSync(fd);
    execFileSync("umount", ["--lazy", join(dir, "own/mount")]);
    rmSync(dir, { recursive: true, force: true });
  });
  return join(dir, "link/mount");
}

test.skipIf(!CAN_HANG)("a volume whose server is silent is known to be mounted, and is not looked into", () => {
  const script = `const { assertMounted } = await import(${JSON.stringify(FOLDERS)});
    assertMounted(process.argv[1], "/root");
    console.log("mounted");`;
  // In a process of its own, which can be killed where this one would wait.
  const told = execFileSync(process.execPath, ["--input-type=module", "--eval", script, silentMount()], {
    ...{ encoding: "utf8", timeout: 30_000, killSignal: "SIGKILL" },
  });
  expect(told.trim()).toBe("mounted");
});
