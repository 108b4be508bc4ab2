/** What `hostPath` is where machines are virtual: a path of the machine's own. */
import { existsSync } from "node:fs";
import { expect, test } from "vitest";
import type { ContainerSpec, Volume } from "../../../src/provider/machine.ts";
import type { Bench } from "../backend/suite.ts";

type PathType = Extract<Volume, { type: "host_path" }>["path_type"];

const MADE = "/var/lib/vmlet-own-path";
const mounts = [{ volume: "v", path: "/v" }];

export function ownPathTests(bench: () => Bench): void {
  const paths = (path: string, path_type?: PathType): Volume[] => [
    { name: "v", type: "host_path", path, ...(path_type !== undefined && { path_type }) },
  ];
  const create = (volumes: Volume[], scripts: readonly string[], more: Partial<ContainerSpec> = {}) =>
    bench().create({
      volumes,
      containers: scripts.map((script, index) => bench().shell("ab"[index]!, script, { mounts, ...more })),
    });
  const says = async (volumes: Volume[], script: string, more: Partial<ContainerSpec> = {}) => {
    const id = await create(volumes, [script], more);
    await bench().terminated(id, "a");
    return await bench().log(id, "a");
  };

  test("a path is the machine's, for all of its containers, and no other machine's nor the host's", async () => {
    const script = "until [ -e /v/said ]; do sleep 0.1; done; cat /v/said";
    const id = await create(paths(MADE), ["echo here > /v/said; sleep 1000", script]);
    await bench().terminated(id, "b");
    expect(await bench().log(id, "b")).toEqual(["here"]);
    expect(existsSync(MADE)).toBe(false);
    expect(await says(paths(MADE, "DirectoryOrCreate"), "ls -A /v; stat -c %a /v")).toEqual(["755"]);
  });

  test("what a container writes there is there after its restart", async () => {
    const id = await bench().create({
      volumes: paths(MADE),
      restart_policy: "on_failure",
      containers: [bench().shell("a", "cat /v/said && exit 0; echo before > /v/said; exit 1", { mounts })],
    });
    await bench().reaches(id, "stopped");
    expect((await bench().log(id, "a")).at(-1)).toBe("before");
  });

  test.each<[string, PathType, string, string]>([
    ["a file is made", "FileOrCreate", "/etc/vmlet-made", "stat -c '%F %a' /v"],
    ["a device is found", "CharDevice", "/dev/null", "stat -c %F /v"],
    ["what is there is taken", undefined, "/proc/version", "grep -o ^Linux /v"],
  ])("%s", async (_name, type, path, script) => {
    const answers = { FileOrCreate: "regular empty file 644", CharDevice: "character special file", any: "Linux" };
    expect(await says(paths(path, type), script)).toEqual([answers[(type ?? "any") as keyof typeof answers]]);
  });

  test.each<[PathType, string, string]>([
    ["Directory", "/proc/version", "a directory"],
    ["File", "/nothing", "a file"],
    ["Socket", "/dev/null", "a socket file"],
    ["BlockDevice", "/dev/null", "a block device"],
  ])("no %s is %s: the container waits with a kubelet's words", async (type, path, kind) => {
    const id = await create(paths(path, type), ["true"]);
    await bench().until(async () =>
      expect(await bench().container(id, "a")).toMatchObject({
        state: "waiting",
        reason: "CreateContainerConfigError",
        message: `hostPath type check failed: ${path} is not ${kind}`,
      }),
    );
    await bench().provider.deletePod(id, { force: true, signal: bench().signal });
  });

  test("a part of it is mounted, and only read where the mount says so", async () => {
    const part = { mounts: [{ ...mounts[0]!, sub_path: "a/b", read_only: true }] };
    expect(await says(paths(MADE), "ls -A /v; touch /v/no 2>/dev/null || echo refused", part)).toEqual(["refused"]);
  });

  test("what runs containers is out of its reach", async () => {
    const id = await create(paths("/"), ["rm -rf /v/bin /v/run /v/scratch; ls /v/bin; echo done; sleep 1000"]);
    await bench().until(async () => expect(await bench().log(id, "a")).toContain("done"));
    const { stdout } = await bench().exec(id, "a", ["echo", "still served"]);
    const chunks = [];
    for await (const chunk of stdout!) chunks.push(String(chunk));
    expect(chunks.join("")).toBe("still served\n");
  });
}
