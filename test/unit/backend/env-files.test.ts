/** Variables whose values are in files that a machine's containers have written: what starts, what waits, what is read. */
import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, truncateSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { beforeEach, describe, expect, onTestFinished, test } from "vitest";
import { readVolumeFile } from "../../../providers/local/bundle/host-volumes.ts";
import { validateSpec } from "../../../providers/local/machine/valid-spec.ts";
import { ANSWER_MS } from "../../../providers/local/machine/engine-deadlines.ts";
import { ENV_FILE_BYTES } from "../../../src/provider/env-files.ts";
import type { ContainerSpec, EnvVar, MachineSpec } from "../../../src/provider/machine.ts";
import { main, World } from "./world.ts";

const inFile = (name: string, rest: Partial<NonNullable<EnvVar["from_file"]>> = {}): EnvVar => ({
  name,
  value: "",
  from_file: { volume: "config", path: "app.env", key: "KEY", ...rest },
});

const reading = (...env: EnvVar[]): Partial<MachineSpec> & { containers: ContainerSpec[] } => ({
  containers: [{ ...main("a"), env }],
  volumes: [{ name: "config", type: "empty_dir", medium: "disk" }],
});

describe("a container with variables in files", () => {
  let world: World;
  beforeEach(async () => {
    world = await World.create();
  });

  const environment = () => world.instance("a").launch.spec.env;

  test("starts with what they have, and with what they have then when it starts again", async () => {
    world.files.set("config/app.env", "KEY='one'");
    await world.create({ ...reading(inFile("A")), restart_policy: "always" });
    expect(environment()).toEqual([{ name: "A", value: "one" }]);
    world.files.set("config/app.env", "KEY='two'");
    await world.exit("a", 0);
    await world.advance(1000);
    expect([world.instance("a").attempt, environment()]).toEqual([1, [{ name: "A", value: "two" }]]);
  });

  test("waits for its file as for any other part of its configuration, and starts when it is there", async () => {
    await world.create(reading(inFile("A")));
    expect(await world.container("a")).toMatchObject({
      state: "waiting",
      reason: "CreateContainerConfigError",
      message: `couldn't parse env file: file "app.env" of volume "config": it does not exist`,
    });
    expect(await world.notices()).toContain(
      `Failed: Error: couldn't parse env file: file "app.env" of volume "config": it does not exist`,
    );
    expect([world.running(), world.prepared.size]).toEqual([[], 0]);
    world.files.set("config/app.env", "KEY='late'");
    await world.advance(10_000);
    expect([world.running(), environment()]).toEqual([["a"], [{ name: "A", value: "late" }]]);
  });

  test("is not given a file's bytes that are no text", async () => {
    world.files.set("config/app.env", Buffer.from([...Buffer.from("KEY='"), 0xff, 0x27]));
    await world.create(reading(inFile("A")));
    expect((await world.container("a")).message).toContain("it is no UTF-8 text");
  });

  test("reads so many bytes of all its files together", async () => {
    const half = `KEY='x'\n#${"x".repeat(1000)}\n`.repeat(ENV_FILE_BYTES / 2000);
    for (const path of ["a.env", "b.env", "c.env"]) world.files.set(`config/${path}`, half);
    await world.create(reading(...["a.env", "b.env", "c.env"].map((path) => inFile("A", { path }))));
    expect((await world.container("a")).message).toContain("it is too long");
  });

  test("does not wait for ever for an engine that does not answer", async () => {
    world.hung.add("readVolumeFile");
    await world.create(reading(inFile("A")));
    await world.advance(ANSWER_MS.readVolumeFile);
    expect((await world.container("a")).message).toContain("the engine has not answered within 30 s");
  });

  test("keeps its values out of what is told of the machine", async () => {
    world.files.set("config/app.env", "KEY='hunter2'");
    await world.create(reading(inFile("A"), inFile("B", { key: "NONE", optional: true })));
    expect(JSON.stringify(await world.machine())).not.toContain("hunter2");
  });
});

test.each([
  ["does not exist", { volume: "other" }],
  ["is no empty_dir", { volume: "files" }],
])("a volume that %s is refused", (problem, from) => {
  const spec: MachineSpec = { labels: {}, restart_policy: "never", ...reading(inFile("A", from)) };
  spec.volumes!.push({ name: "files", type: "files", version: "1", files: [] });
  expect(() => validateSpec(spec)).toThrow(
    `container "a" reads variables from volume "${from.volume}", which ${problem}`,
  );
});

test("a container that reads more files than one start should is refused", () => {
  const env = Array.from({ length: 33 }, (_, index) => inFile(`V${index}`, { path: `${index}.env` }));
  expect(() => validateSpec({ labels: {}, restart_policy: "never", ...reading(...env) })).toThrow(
    "33 files, more than 32",
  );
});

describe.runIf(process.platform === "linux")("a file of a volume that its containers write to", () => {
  let home: string;
  let volume: string;
  beforeEach(() => {
    home = mkdtempSync(join(tmpdir(), "vmlet-env-"));
    const made = home;
    onTestFinished(() => rmSync(made, { recursive: true, force: true }));
    volume = join(home, "volumes/config");
    mkdirSync(volume, { recursive: true });
    writeFileSync(join(home, "secret"), "KEY='stolen'");
  });

  const read = (path: string) => readVolumeFile({ dir: home }, "config", path, 100).toString();

  test("is read through the volume's own links", () => {
    mkdirSync(join(volume, "v1"));
    writeFileSync(join(volume, "v1/app.env"), "KEY='v'");
    symlinkSync("v1", join(volume, "current"));
    symlinkSync("/current/app.env", join(volume, "app.env"));
    expect(read("app.env")).toBe("KEY='v'");
  });

  test.each(["../../secret", "../../../../../../../../etc/passwd"])("is none behind a link to %s", (target) => {
    symlinkSync(target, join(volume, "app.env"));
    expect(() => read("app.env")).toThrow("it does not exist");
  });

  test("is none behind a link to a path of the host", () => {
    symlinkSync(join(home, "secret"), join(volume, "app.env"));
    expect(() => read("app.env")).toThrow("it does not exist");
  });

  test("is not told by its path on the host", () => {
    symlinkSync("app.env", join(volume, "app.env"));
    expect(() => read("app.env")).toThrow(/^it cannot be read: ELOOP$/);
  });

  test("is not waited for where it is a FIFO that nobody writes to", () => {
    execFileSync("mkfifo", [join(volume, "app.env")]);
    expect(() => read("app.env")).toThrow("it is no regular file");
  });

  test("is no folder", () => {
    expect(() => read(".")).toThrow("it is no regular file");
  });

  test("is not read where it is larger than it may be, however large", () => {
    writeFileSync(join(volume, "app.env"), "");
    truncateSync(join(volume, "app.env"), 2 ** 40);
    expect(() => read("app.env")).toThrow("it has more than 100 bytes");
  });
});
