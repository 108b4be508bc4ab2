/** The guest's own functions (guest/vmlet), in the shell that runs them there, on folders of this host. */
import { execFile, execFileSync } from "node:child_process";
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { expect, onTestFinished, test } from "vitest";
import { commandLine } from "../../../providers/local/engines/vm/control.ts";
import { writeFilesVolume } from "../../../providers/local/bundle/volume-files.ts";
import { findTool } from "../../../providers/local/host/command.ts";
import { leaveOut } from "../../support/left-out.ts";

const VMLET = new URL("../../../providers/local/engines/vm/guest/vmlet", import.meta.url).pathname;
const busybox = findTool("busybox");

if (busybox === undefined) leaveOut("the guest's functions", ["busybox"]);
else {
  /** A folder in place of the guest's /scratch and its control groups; `run` has its shell run a script. */
  function guest() {
    const dir = mkdtempSync(join(tmpdir(), "vmlet-guest-"));
    onTestFinished(() => rmSync(dir, { recursive: true, force: true }));
    for (const name of ["containers/a-0", "volumes", "groups"]) mkdirSync(join(dir, name), { recursive: true });
    const begin = `. ${VMLET}; scratch=${dir}; all=${dir}/containers; groups=${dir}/groups; set -e`;
    const run = async (script: string) => await promisify(execFile)(busybox!, ["ash", "-c", `${begin}\n${script}`]);
    return { dir, run };
  }

  test("files of a volume whose names begin with a dot are there, are replaced, and go", async () => {
    const { dir, run } = guest();
    const apply = async (files: Record<string, string>) => {
      const host = join(dir, "host");
      const described = Object.entries(files).map(([path, content]) => ({
        path,
        mode: 0o644,
        content_b64: Buffer.from(content).toString("base64"),
      }));
      writeFilesVolume(host, described);
      const tar = execFileSync("tar", ["-C", host, "-cf", "-", "."]).toString("base64");
      await run(`printf %s ${tar} | vm_files v ${readlinkSync(join(host, "..data"))}`);
      const names = readdirSync(join(dir, "volumes/v")).filter((name) => !name.startsWith(".."));
      return Object.fromEntries(names.map((name) => [name, readFileSync(join(dir, "volumes/v", name), "utf8")]));
    };
    for (const files of [{ ".k": "one", a: "one" }, { ".k": "two", a: "two" }, { b: "three" }])
      expect(await apply(files)).toEqual(files);
  });

  test.each([
    ["folder/file", "folder/file"],
    ["link", "folder"],
    ["link/file", "folder/file"],
    ["link/../link/new", "folder/new"],
    ["root", "."],
    ["root/etc", "etc"],
    ["absolute", "folder/file"],
    ["above/x", "x"],
    ["dangling", "to/come"],
    ["a b/'c'", "a b/'c'"],
  ])("a sub_path %j is found, or made, inside its volume", async (path, found) => {
    const { dir, run } = guest();
    const volume = join(dir, "volumes/v");
    mkdirSync(join(volume, "folder"), { recursive: true });
    writeFileSync(join(volume, "folder/file"), "");
    const links = { link: "folder", root: "/", absolute: "/folder/file", above: "../../..", dangling: "to/come" };
    for (const [name, target] of Object.entries(links)) symlinkSync(target, join(volume, name));
    await run(commandLine(["sub_path", "a-0", "0", volume, path, "make", "-"]));
    expect(join(readlinkSync(join(dir, "containers/a-0/sub-0")))).toBe(join(volume, found));
    expect(statSync(join(volume, found)).isFile()).toBe(found.endsWith("file"));
  });

  test.each([
    ["missing", "no such file or directory"],
    ["loop", "too many levels of symbolic links"],
  ])("a sub_path that is %s is refused where none may be made", async (path, why) => {
    const { dir, run } = guest();
    const volume = join(dir, "volumes/v");
    mkdirSync(volume);
    symlinkSync("loop", join(volume, "loop"));
    await expect(run(commandLine(["sub_path", "a-0", "0", volume, path, "-", "-"]))).rejects.toMatchObject({
      stdout: `subPath ${path}: ${why}\n`,
    });
  });

  test.each(["root/etc", "above", "folder/../../x"])(
    "a sub_path %j that leaves its volume is refused",
    async (path) => {
      const { dir, run } = guest();
      const volume = join(dir, "volumes/v");
      mkdirSync(join(volume, "folder"), { recursive: true });
      for (const [name, target] of Object.entries({ root: "/", above: "..", inside: "folder" }))
        symlinkSync(target, join(volume, name));
      const ask = (of: string) => run(commandLine(["sub_path", "a-0", "0", volume, of, "make", "refused"]));
      await expect(ask(path)).rejects.toMatchObject({ stdout: `subPath ${path}: a symbolic link leads outside\n` });
      await ask("inside/new");
      expect(readlinkSync(join(dir, "containers/a-0/sub-0"))).toBe(join(volume, "folder/new"));
    },
  );

  test("a file of a volume is read up to a limit, and no link leads out of the volume", async () => {
    const { dir, run } = guest();
    const volume = join(dir, "empty/v");
    mkdirSync(join(volume, "etc"), { recursive: true });
    symlinkSync(volume, join(dir, "volumes/v"));
    writeFileSync(join(volume, "etc/passwd"), "own\0bytes");
    for (const [name, target] of Object.entries({ out: "/etc/passwd", above: "../../../etc/passwd" }))
      symlinkSync(target, join(volume, name));
    const read = async (path: string, bytes = 100) =>
      Buffer.from((await run(commandLine(["read", "v", path, String(bytes)]))).stdout, "base64").toString();
    expect(await Promise.all(["etc/passwd", "out", "above"].map((path) => read(path)))).toEqual(
      Array(3).fill("own\0bytes"),
    );
    expect(await read("out", 3)).toBe("own");
  });

  test.each([
    ["missing", "it does not exist"],
    ["folder", "it is no regular file"],
    ["pipe", "it is no regular file"],
    ["loop", "too many levels of symbolic links"],
  ])("a file of a volume that is a %s is not read, and it is said why", async (path, why) => {
    const { dir, run } = guest();
    const volume = join(dir, "volumes/v");
    mkdirSync(join(volume, "folder"), { recursive: true });
    symlinkSync("loop", join(volume, "loop"));
    execFileSync("mkfifo", [join(volume, "pipe")]);
    await expect(run(commandLine(["read", "v", path, "100"]))).rejects.toMatchObject({ stdout: `${why}\n` });
  });

  test("how a container ended is told before its files are gone", async () => {
    const { dir, run } = guest();
    mkdirSync(join(dir, "groups/a-0"));
    writeFileSync(join(dir, "groups/a-0/memory.events"), "oom 1\noom_kill 1\n");
    writeFileSync(join(dir, "containers/a-0/termination-log"), "bye");
    execFileSync("mkfifo", [join(dir, "go")]);
    const removal = `rm() { exec ${busybox} ash -c 'read -r _ < "$0"; exec ${busybox} rm "$@"' ${dir}/go "$@"; }`;
    const { stdout } = await run(`${removal}\nvm_conclude a-0`);
    expect(stdout).toBe(`oom 1\nmessage ${Buffer.from("bye").toString("base64")}\n`);
    expect(existsSync(join(dir, "containers/a-0"))).toBe(false);
    expect(existsSync(join(dir, "gone-a-0"))).toBe(true);
    writeFileSync(join(dir, "go"), "\n");
    await expect.poll(() => existsSync(join(dir, "gone-a-0")), { timeout: 5000 }).toBe(false);
  });
}
