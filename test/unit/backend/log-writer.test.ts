import fs, { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { syncBuiltinESMExports } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { LogWriter } from "../../../providers/local/shim/log-writer.ts";

/** The disk has room for so many bytes more. */
function leaveRoom(bytes: number): () => void {
  const real = fs.writeSync;
  let left = bytes;
  fs.writeSync = ((fd: number, buffer: Buffer, offset: number) => {
    if (left === 0) throw Object.assign(new Error("ENOSPC: no space left on device, write"), { code: "ENOSPC" });
    const size = Math.min(left, buffer.length - offset);
    left -= size;
    return real(fd, buffer, offset, size);
  }) as typeof fs.writeSync;
  syncBuiltinESMExports();
  const mend = () => {
    fs.writeSync = real;
    syncBuiltinESMExports();
  };
  onTestFinished(mend);
  return mend;
}

test("a line that a full disk has cut short is not glued to the next", () => {
  const dir = mkdtempSync(join(tmpdir(), "vmlet-log-"));
  onTestFinished(() => rmSync(dir, { recursive: true }));
  const log = new LogWriter(dir, 1 << 20, 3);
  log.write("stdout", Buffer.from("before\n"));
  const mend = leaveRoom(45);
  log.write("stdout", Buffer.from("a line that is too long for the rest of the disk\n"));
  log.write("stdout", Buffer.from("lost\n"));
  mend();
  log.write("stdout", Buffer.from("after\n"));
  const lines = readFileSync(join(dir, "log.0"), "utf8").trimEnd().split("\n");
  expect(lines.map((line) => line.slice("2026-01-01T00:00:00.000000000Z ".length))).toEqual([
    "stdout F before",
    "stdout F a lin",
    "stdout F after",
  ]);
});
