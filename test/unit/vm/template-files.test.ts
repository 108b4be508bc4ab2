import { existsSync, mkdirSync, mkdtempSync, rmSync, statSync, writeFileSync } from "node:fs";
import { open, type FileHandle } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { beforeEach, expect, onTestFinished, test, vi } from "vitest";
import { nameTemplate, ProvenTemplates } from "../../../providers/local/engines/vm/template-files.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

let dir: string;
let work: string;
/** What was flushed, by inode, and whether the template had its name then. */
let flushed: { inode: number; isNamed: boolean }[];
/** Which flush the disk refuses, from 1. */
let refused: number;

beforeEach(async () => {
  const root = mkdtempSync(join(tmpdir(), "vmlet-template-"));
  [dir, work, flushed, refused] = [join(root, "template"), join(root, "t-work"), [], 0];
  mkdirSync(work);
  for (const name of ["ram.img", "disk.img", "state.bin"]) writeFileSync(join(work, name), name);
  const any = await open(work);
  const handles = Object.getPrototypeOf(any) as FileHandle;
  await any.close();
  const sync = vi.spyOn(handles, "sync").mockImplementation(async function (this: FileHandle) {
    flushed.push({ inode: (await this.stat()).ino, isNamed: existsSync(dir) });
    if (flushed.length === refused) throw Object.assign(new Error("EIO"), { code: "EIO" });
  });
  onTestFinished(() => {
    sync.mockRestore();
    rmSync(root, { recursive: true });
  });
});

test("a template's memory, disk, state and folder are on the disk before it has its name, and the name is afterwards", async () => {
  const before = [...["ram.img", "disk.img", "state.bin"].map((name) => join(work, name)), work];
  const inodes = before.map((path) => statSync(path).ino);
  await nameTemplate(work, dir);
  expect(flushed.filter(({ isNamed }) => !isNamed).map(({ inode }) => inode)).toEqual(inodes);
  expect(flushed.filter(({ isNamed }) => isNamed).map(({ inode }) => inode)).toEqual([statSync(join(dir, "..")).ino]);
});

test.each([1, 2, 3, 4])("a template does not get its name when flush %d of it fails", async (number) => {
  refused = number;
  await expect(nameTemplate(work, dir)).rejects.toThrow("EIO");
  expect(existsSync(dir)).toBe(false);
});

test("a template takes the place of one that led to no guest", async () => {
  mkdirSync(dir);
  writeFileSync(join(dir, "left"), "");
  await nameTemplate(work, dir);
  expect([existsSync(join(dir, "left")), existsSync(join(dir, "ram.img")), existsSync(work)]).toEqual([
    false,
    true,
    false,
  ]);
});

test("a template whose copy does not answer is suspect, unless another copy has answered since that one began", async () => {
  const clock = new VirtualClock();
  const templates = new ProvenTemplates(clock);
  const isFirstSuspect = templates.begin("a");
  await clock.advance(10);
  templates.answered("a");
  await clock.advance(10);
  const isSecondSuspect = templates.begin("a");
  templates.answered("b");
  expect([isFirstSuspect(), isSecondSuspect()]).toEqual([false, true]);
});
