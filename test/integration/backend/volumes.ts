/** Volumes that outlive machines, in the containers of every engine that has them as disks in files. */
import { execFileSync } from "node:child_process";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { mountPoints } from "../../../providers/local/host/mounts.ts";
import type { PersistentVolumeSpec } from "../../../src/provider/volume.ts";
import type { Bench } from "./suite.ts";

const MIB = 2 ** 20;
let made = 0;

export const newVolumeId = (): string => `disk-${++made}`;

/** What makes volumes of 32 MiB, and machines that have one. */
export function volumeBench(bench: () => Bench) {
  const volume = async (more: Partial<PersistentVolumeSpec> = {}): Promise<string> => {
    const id = newVolumeId();
    const spec = { labels: {}, size_bytes: 32 * MIB, mode: "filesystem", ...more } as const;
    await bench().provider.volumes!.create(id, spec, { signal: bench().signal });
    return id;
  };
  /** What a script prints that has this volume at /v. */
  const shown = async (id: string, script: string, { claim = {}, container = {}, machine = {} } = {}) => {
    const mounts = [{ volume: "data", path: "/v" }];
    const created = await bench().create({
      volumes: [{ name: "data", type: "persistent", volume: id, ...claim }],
      containers: [bench().shell("a", script, { mounts, ...container })],
      ...machine,
    });
    await bench().terminated(created, "a");
    const lines = await bench().log(created, "a");
    await bench().reaches(created, "stopped");
    return lines;
  };
  return { volume, shown };
}

/** Of every engine. */
export function anyVolumeTests(bench: () => Bench): void {
  const { volume, shown } = volumeBench(bench);

  test("a volume has its size, is one for all containers of its machine, and is free when that is over", async () => {
    const id = await volume();
    const script =
      "dd if=/dev/zero of=/v/big bs=1M count=64 2>&1 | grep -o 'No space left'; rm /v/big; echo kept > /v/said";
    expect(await shown(id, script)).toEqual(["No space left"]);
    const { attachments } = await bench().provider.volumes!.get(id, { signal: bench().signal });
    expect(attachments).toEqual([]);
    expect(readFileSync("/proc/self/mountinfo", "utf8")).not.toContain(`/volumes/${id}/`);
    expect(await shown(id, "cat /v/said; df -m /v | tail -1 | awk '{ print ($2 <= 32) }'")).toEqual(["kept", "1"]);
  });

  test("a mount option that is not allowed is invalid, with its field", async () => {
    const claim = { mount_options: ["noatime", "noexec"] };
    await expect(shown(await volume(), "true", { claim })).rejects.toMatchObject({
      code: "invalid",
      field: "volumes.0.mount_options",
    });
  });

  test("a link that leads out of a volume is no sub path, and the container does not begin", async () => {
    const { provider, signal, stateDir } = bench();
    const id = await volume();
    writeFileSync(join(stateDir, "secret"), "of this host");
    await shown(id, `ln -s ${stateDir} /v/out; ln -s / /v/root; ln -s .. /v/above; mkdir /v/in; ln -s in /v/inside`);
    for (const part of ["out", "root", "above"]) {
      const machine = await bench().create({
        volumes: [{ name: "data", type: "persistent", volume: id }],
        containers: [bench().shell("a", "ls /v", { mounts: [{ volume: "data", path: "/v", sub_path: part }] })],
      });
      await bench().until(async () =>
        expect(await bench().container(machine, "a")).toMatchObject({
          state: "waiting",
          reason: "CreateContainerConfigError",
          message: expect.stringContaining("failed to prepare subPath"),
        }),
      );
      await provider.deletePod(machine, { force: true, signal });
      await bench().until(async () => expect((await provider.volumes!.get(id, { signal })).attachments).toEqual([]));
    }
    const mounts = [{ volume: "data", path: "/v", sub_path: "inside" }];
    expect(await shown(id, "ls /v | wc -l", { container: { mounts } })).toEqual(["0"]);
  });

  test("its files are the group's that the machine names", async () => {
    const id = await volume();
    await shown(id, "mkdir /v/a; touch /v/a/file; chmod 600 /v/a/file");
    const machine = { security: { fs_group: 4321 } };
    const container = { security: { user: 1234, group: 1234 } };
    const script = "stat -c '%g %a' /v/a/file; echo more >> /v/a/file && stat -c '%s' /v/a/file";
    expect(await shown(id, script, { machine, container })).toEqual(["4321 660", "5"]);
  });

  test("a volume whose file system is damaged is not mounted, and its machine says so", async () => {
    const id = await volume();
    const image = join(bench().stateDir, "volumes", id, "disk.img");
    execFileSync("debugfs", ["-w", "-R", "set_super_value state 2", image], { stdio: "ignore" });
    execFileSync("dd", ["if=/dev/urandom", `of=${image}`, "bs=1k", "seek=4", "count=256", "conv=notrunc"], {
      stdio: "ignore",
    });
    const created = await bench().create({
      volumes: [{ name: "data", type: "persistent", volume: id }],
      containers: [bench().shell("a", "true", { mounts: [{ volume: "data", path: "/v" }] })],
    });
    await bench().until(async () => {
      const { message } = await bench().get(created);
      expect(message).toMatch(/damaged, and is not mounted: run e2fsck/);
    });
    await bench().provider.deletePod(created, { force: true, signal: bench().signal });
  });

  test("deleted, nothing of it is left on this host", async () => {
    const id = await volume();
    await shown(id, "echo x > /v/said");
    await bench().provider.volumes!.delete(id, { signal: bench().signal });
    expect(existsSync(join(bench().stateDir, "volumes", id, "disk.img"))).toBe(false);
    expect(execFileSync("losetup", ["--list"]).toString()).not.toContain(`/volumes/${id}/`);
  });
}

/** Of those whose containers share this host's kernel. */
export function volumeTests(bench: () => Bench): void {
  const { volume, shown } = volumeBench(bench);
  anyVolumeTests(bench);
  const devices = [{ volume: "data", path: "/dev/xvda" }];
  const container = { mounts: [], devices };

  test("mount options are the volume's, and on this host none makes its files the host's", async () => {
    const id = await volume();
    const machine = await bench().create({
      volumes: [{ name: "data", type: "persistent", volume: id, mount_options: ["noatime"] }],
      containers: [
        bench().shell("a", "grep ' /v ' /proc/mounts; while [ ! -e /v/end ]; do sleep 0.1; done", {
          mounts: [{ volume: "data", path: "/v" }],
        }),
      ],
    });
    await bench().until(async () => expect((await bench().log(machine, "a"))[0]).toContain("noatime"));
    const data = join(bench().stateDir, "volumes", id, "data");
    const options = (await mountPoints()).find(({ path }) => path === data)?.options;
    expect(options).toEqual(expect.arrayContaining(["nosuid", "nodev"]));
    writeFileSync(join(data, "end"), "");
    await bench().reaches(machine, "stopped");
  });

  test("a block device is its container's, also when that has detached it, and has what was written to it", async () => {
    const id = await volume({ mode: "block" });
    const write =
      "losetup -d /dev/xvda; printf kept | dd of=/dev/xvda bs=4 seek=1000 conv=notrunc 2>/dev/null && echo written";
    expect((await shown(id, write, { container })).at(-1)).toBe("written");
    const read = "dd if=/dev/xvda bs=4 skip=1000 count=1 2>/dev/null; wc -c < /dev/xvda";
    expect((await shown(id, read, { container })).join("")).toBe(`kept${32 * MIB}`);
    expect(execFileSync("losetup", ["--list"]).toString()).not.toContain(`/volumes/${id}/`);
  });

  test("a block device that is claimed read-only is not written", async () => {
    const id = await volume({ mode: "block" });
    const write = "printf kept | dd of=/dev/xvda conv=notrunc 2>&1 | grep -c 'not permitted'";
    expect(await shown(id, write, { container, claim: { read_only: true } })).toEqual(["1"]);
  });

  test("a container does not get the device of a file system", async () => {
    await expect(shown(await volume(), "true", { container })).rejects.toMatchObject({
      code: "invalid",
      field: "volumes.0.volume",
    });
  });
}
