/** One folder for what the tests of a run leave behind, removed at its end. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

export function setup(): () => void {
  // Short: sockets lie below it, and their paths may not be long.
  const folder = mkdtempSync(join(tmpdir(), "vt-"));
  process.env["TMPDIR"] = folder;
  return () => rmSync(folder, { recursive: true, force: true });
}
