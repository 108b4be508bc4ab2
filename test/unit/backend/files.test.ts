import { existsSync, mkdtempSync, readdirSync, readFileSync, readlinkSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { beforeEach, expect, onTestFinished, test } from "vitest";
import { makeFolder } from "../../../providers/local/host/files.ts";
import { writeFilesVolume } from "../../../providers/local/bundle/volume-files.ts";

let dir: string;

beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "vmlet-files-"));
  const made = dir;
  onTestFinished(() => rmSync(made, { recursive: true, force: true }));
});

const file = (path: string, text: string, mode = 0o644) => ({
  path,
  mode,
  content_b64: Buffer.from(text).toString("base64"),
});

test("files are reached through links into ..data", () => {
  writeFilesVolume(dir, [file("a.yaml", "1"), file("sub/b", "2")]);
  expect(readFileSync(join(dir, "a.yaml"), "utf8")).toBe("1");
  expect(readFileSync(join(dir, "sub/b"), "utf8")).toBe("2");
  expect(readlinkSync(join(dir, "sub"))).toBe("..data/sub");
});

test("an update swaps all files at once and leaves nothing of the old ones", () => {
  writeFilesVolume(dir, [file("a", "1"), file("gone", "x")]);
  const old = readlinkSync(join(dir, "..data"));
  writeFilesVolume(dir, [file("a", "2"), file("new", "y")]);
  expect(readFileSync(join(dir, "a"), "utf8")).toBe("2");
  expect(readdirSync(dir).toSorted()).toEqual(["..data", readlinkSync(join(dir, "..data")), "a", "new"].toSorted());
  expect(existsSync(join(dir, old))).toBe(false);
});

test("the mode is the file's own, whatever the umask", () => {
  writeFilesVolume(dir, [file("a", "1", 0o666)]);
  expect(statSync(join(dir, "a")).mode & 0o7777).toBe(0o666);
});

test.each(["", "/etc/passwd", "../x", "a/../../x", "a//b", "..data", "a\0b"])("path %j is refused", (path) => {
  expect(() => writeFilesVolume(dir, [file(path, "x")])).toThrow(/must be relative and stay inside/);
});

test("binary content and a name that begins with one dot are kept", () => {
  writeFilesVolume(dir, [{ path: ".hidden", mode: 0o600, content_b64: Buffer.from([0, 255, 10]).toString("base64") }]);
  expect(readFileSync(join(dir, ".hidden"))).toEqual(Buffer.from([0, 255, 10]));
});

test("a folder is made with those above it, and is none of a second caller's", () => {
  makeFolder(join(dir, "a/b/c"));
  makeFolder(join(dir, "a/b/c"));
  expect(statSync(join(dir, "a/b/c")).isDirectory()).toBe(true);
});

test.runIf(process.platform === "linux")("where no folder can be made, that is said and not tried for ever", () => {
  expect(() => makeFolder("/proc/vmlet/state")).toThrow(/ENOENT.*mkdir '\/proc\/vmlet'/);
});
