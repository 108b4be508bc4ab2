/** What is believed of the folder of static pods: on a real disk, since what is told apart are its kinds of file. */
import { execFileSync } from "node:child_process";
import { mkdir, mkdtemp, rename, rm, symlink, truncate, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { beforeEach, expect, test } from "vitest";
import { StaticPodFolder } from "../../../src/agent/static-pod-folder.ts";

const pod = (name: string) =>
  `apiVersion: v1\nkind: Pod\nmetadata: { name: ${name} }\nspec: { containers: [{ name: m, image: i }] }\n`;

let base: string;
let path: string;
let folder: StaticPodFolder;

beforeEach(async () => {
  base = await mkdtemp(join(tmpdir(), "static-"));
  path = join(base, "pods");
  await mkdir(path);
  folder = new StaticPodFolder(path, "n");
});

const write = (name: string, text: string) => writeFile(join(path, name), text);

/** Names of pods, kinds of what is none, by file. */
async function look(): Promise<Record<string, string> | string> {
  const seen = await folder.look();
  if (seen.kind === "unknown") return `unknown: ${seen.fault}`;
  return Object.fromEntries(
    [...seen.files].map(([name, file]) => [
      name,
      file.kind === "pod" ? file.pod.name : file.kind === "fault" ? file.fault : "changing",
    ]),
  );
}
async function second() {
  await look();
  return look();
}

test("a file is taken when it was the same at two looks", async () => {
  await write("a.yaml", pod("a"));
  expect(await look()).toEqual({ "a.yaml": "changing" });
  expect(await look()).toEqual({ "a.yaml": "a-n" });
  expect(await look()).toEqual({ "a.yaml": "a-n" });
});

test("a file that is being written is unknown until that is over", async () => {
  await write("a.yaml", pod("a"));
  await second();
  for (const name of ["b", "bc", "bcd"]) {
    await write("a.yaml", pod(name));
    expect(await look()).toEqual({ "a.yaml": "changing" });
  }
  expect(await look()).toEqual({ "a.yaml": "bcd-n" });
});

test("files are in the order of their names; those with a dot before it are no files", async () => {
  for (const name of ["b.yaml", ".hidden.yaml", "a.json"]) await write(name, pod("x"));
  expect(Object.keys(await second())).toEqual(["a.json", "b.yaml"]);
});

test("a folder that is gone is unknown, and one that came back is read again", async () => {
  await write("a.yaml", pod("a"));
  await second();
  await rename(path, join(base, "away"));
  expect(await look()).toContain(`unknown: ${path}: cannot be read: ENOENT`);
  await rename(join(base, "away"), path);
  expect(await look()).toEqual({ "a.yaml": "a-n" });
});

test("a file in place of the folder is unknown", async () => {
  await rm(path, { recursive: true });
  await writeFile(path, pod("a"));
  expect(await look()).toContain("ENOTDIR");
});

test("a folder that is emptied is empty", async () => {
  await write("a.yaml", pod("a"));
  await second();
  await rm(join(path, "a.yaml"));
  expect(await look()).toEqual({});
});

test("a mount that is gone is unknown, though it leaves an empty folder", async () => {
  await write("a.yaml", pod("a"));
  const [link, elsewhere] = [join(base, "link"), await mkdtemp("/dev/shm/static-")];
  await symlink(path, link);
  folder = new StaticPodFolder(link, "n");
  await second();
  await rm(link);
  await symlink(elsewhere, link);
  const seen = await look();
  await rm(elsewhere, { recursive: true });
  expect(seen).toContain(`unknown: ${link}: is empty, and not where its files were`);
});

test("a folder of too many files is unknown", async () => {
  for (let n = 0; n <= 500; n++) await write(`${n}`, "");
  expect(await look()).toContain("holds more than 500 files; give static pods a folder of their own");
});

test("links within the folder are followed, as those of a mounted ConfigMap", async () => {
  await mkdir(join(path, "..2026"));
  await write("..2026/a.yaml", pod("a"));
  await symlink("..2026", join(path, "..data"));
  await symlink("..data/a.yaml", join(path, "a.yaml"));
  expect(await second()).toEqual({ "a.yaml": "a-n" });
  // It is exchanged for another version.
  await mkdir(join(path, "..2027"));
  await write("..2027/a.yaml", pod("b"));
  await symlink("..2027", join(path, "..new"));
  await rename(join(path, "..new"), join(path, "..data"));
  expect(await second()).toEqual({ "a.yaml": "b-n" });
});

test("links out of the folder, or to nowhere, are refused", async () => {
  await writeFile(join(base, "outside"), pod("a"));
  await symlink("../outside", join(path, "out"));
  await symlink("/dev/zero", join(path, "device"));
  await symlink("missing", join(path, "nowhere"));
  const seen = await second();
  expect(seen).toMatchObject({
    out: expect.stringContaining("is a link out of the folder"),
    device: expect.stringContaining("is a link out of the folder"),
    nowhere: expect.stringContaining("cannot be read: ENOENT"),
  });
});

test("what is no regular file is never opened", async () => {
  // To open it would wait for a writer.
  execFileSync("mkfifo", [join(path, "fifo")]);
  await mkdir(join(path, "folder"));
  const words = "is no regular file; remove it from the folder";
  expect(await second()).toEqual({ fifo: words, folder: words });
});

test("a file larger than any pod is not read", async () => {
  await write("a.yaml", "");
  await truncate(join(path, "a.yaml"), 262_145);
  expect(await second()).toEqual({ "a.yaml": expect.stringContaining("is larger than 262144 bytes") });
});

test("a broken file is its own fault alone", async () => {
  await write("a.yaml", pod("a").slice(0, -5));
  await write("b.yaml", pod("b"));
  expect(await second()).toEqual({ "a.yaml": expect.stringContaining("is no YAML"), "b.yaml": "b-n" });
});
