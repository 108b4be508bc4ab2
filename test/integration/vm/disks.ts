/** Volumes that outlive machines as disks of virtual machines. */
import { execFileSync } from "node:child_process";
import { existsSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { QEMU } from "../../../providers/local/engines/vm/qemu.ts";
import type { Bench } from "../backend/suite.ts";
import { text } from "../backend/suite.ts";
import { anyVolumeTests, newVolumeId, volumeBench } from "../backend/volumes.ts";

const MIB = 2 ** 20;

/** @param qemuOf process ids of a machine's QEMU */
export function diskTests(bench: () => Bench, qemuOf: (machine: string) => Promise<number[]>): void {
  anyVolumeTests(bench);
  const { volume, shown } = volumeBench(bench);
  const mounts = [{ volume: "data", path: "/v" }];
  const claim = (id: string, more: object = {}) => [{ name: "data", type: "persistent" as const, volume: id, ...more }];
  const get = (id: string) => bench().provider.volumes!.get(id, { signal: bench().signal });
  const output = async (machine: string, script: string) =>
    (await text((await bench().exec(machine, "a", ["sh", "-c", script])).stdout)).trim();
  const running = async (spec: object) => {
    const machine = await bench().create({ containers: [bench().shell("a", "sleep 1000", { mounts })], ...spec });
    await bench().reaches(machine, "running");
    return machine;
  };
  const remove = async (machine: string, options: object = {}) => {
    await bench().provider.deletePod(machine, { force: true, signal: bench().signal, ...options });
    await bench().reaches(machine, "deleted");
  };

  test("what a program wrote and did not sync is on the volume when its machine has ended", async () => {
    const id = await volume();
    await shown(id, "head -c 4000000 /dev/urandom > /v/big; md5sum < /v/big > /v/sum");
    expect(await shown(id, "md5sum < /v/big | cmp - /v/sum && echo same")).toEqual(["same"]);
  });

  test("a machine whose QEMU is killed has lost nothing that was synced, and gets its volume back", async () => {
    const id = await volume();
    const machine = await running({ volumes: claim(id) });
    await output(machine, "echo synced > /v/said; sync");
    const [pid] = await qemuOf(machine);
    process.kill(pid!, "SIGKILL");
    await bench().reaches(machine, "failed");
    await bench().until(async () => expect((await get(id)).attachments).toEqual([]));
    expect(await shown(id, "cat /v/said")).toEqual(["synced"]);
  });

  test("while a machine has a volume no other gets it, and QEMU itself refuses a second one", async () => {
    const id = await volume();
    const machine = await running({ volumes: claim(id) });
    await expect(shown(id, "true")).rejects.toMatchObject({ code: "in_use" });
    const file = join(bench().stateDir, "volumes", id, "disk.img");
    const block = { driver: "file", filename: file, "node-name": "disk", locking: "on" };
    const second = ["-M", "microvm", "-display", "none", "-nodefaults", "-S", "-blockdev", JSON.stringify(block)];
    const start = () =>
      execFileSync(QEMU, [...second, "-device", "virtio-blk-device,drive=disk"], { stdio: "pipe", timeout: 60_000 });
    expect(start).toThrow(/Failed to get "?write"? lock/);
    await remove(machine);
  });

  test("read-only, nobody writes to it, not even the guest's own kernel", async () => {
    const id = await volume();
    await shown(id, "echo kept > /v/said");
    const machine = await running({ volumes: claim(id, { read_only: true }), security: {} });
    expect(await output(machine, "cat /v/said; echo more >> /v/said || echo refused")).toContain("kept\nrefused");
    await remove(machine);
  });

  test("read-only, what a machine that was killed had in its journal is there", async () => {
    const id = await volume();
    const machine = await running({ volumes: claim(id) });
    await output(machine, "mkdir /v/a /v/b; echo synced > /v/a/said; sync; echo more > /v/b/said");
    const [pid] = await qemuOf(machine);
    process.kill(pid!, "SIGKILL");
    await bench().reaches(machine, "failed");
    await bench().until(async () => expect((await get(id)).attachments).toEqual([]));
    expect(await shown(id, "cat /v/a/said", { claim: { read_only: true } })).toEqual(["synced"]);
  });

  test("a volume that grows while a machine has it is larger at once, for its programs", async () => {
    const id = await volume();
    const machine = await running({ volumes: claim(id) });
    const size = async () => Number(await output(machine, "df -m /v | tail -1 | awk '{ print $2 }'"));
    const before = await size();
    const grown = await bench().provider.volumes!.resize(id, 96 * MIB, { signal: bench().signal });
    expect(grown.size_bytes).toBe(96 * MIB);
    expect(await size()).toBeGreaterThan(before + 40);
    await remove(machine);
  });

  test("a volume that grows while no machine has it is larger for the next", async () => {
    const id = await volume();
    await bench().provider.volumes!.resize(id, 96 * MIB, { signal: bench().signal });
    expect(await shown(id, "df -m /v | tail -1 | awk '{ print ($2 > 70) }'")).toEqual(["1"]);
  });

  test("a block device is a container's, with all that was written to it", async () => {
    const id = await volume({ mode: "block" });
    const devices = [{ volume: "data", path: "/dev/xvda" }];
    const container = { mounts: [], devices };
    const write =
      "printf kept | dd of=/dev/xvda bs=4 seek=1000 conv=notrunc 2>/dev/null; [ -b /dev/xvda ] && echo block";
    expect(await shown(id, write, { container })).toEqual(["block"]);
    const read = "dd if=/dev/xvda bs=4 skip=1000 count=1 2>/dev/null; wc -c < /dev/xvda";
    expect((await shown(id, read, { container })).join("")).toBe(`kept${32 * MIB}`);
  });

  test("a container does not get the device of a file system", async () => {
    const devices = [{ volume: "data", path: "/dev/xvda" }];
    await expect(shown(await volume(), "true", { container: { mounts: [], devices } })).rejects.toMatchObject({
      code: "invalid",
    });
  });

  test("a copy has what its source had, and is a volume of its own", async () => {
    const { provider, signal } = bench();
    const [source, copy] = [await volume(), newVolumeId()];
    await shown(source, "echo kept > /v/said");
    const spec = { labels: {}, size_bytes: 64 * MIB, mode: "filesystem", source: { volume: source } } as const;
    await provider.volumes!.create(copy, spec, { signal });
    await shown(source, "echo changed > /v/said");
    expect(await shown(copy, "cat /v/said; df -m /v | tail -1 | awk '{ print ($2 > 40) }'")).toEqual(["kept", "1"]);
  });

  test("two volumes of one machine are not taken for each other, and a part of one is mounted", async () => {
    const [first, second] = [await volume(), await volume()];
    await shown(second, "mkdir /v/part; echo second > /v/part/said");
    const machine = await bench().create({
      volumes: [
        { name: "one", type: "persistent", volume: first },
        { name: "two", type: "persistent", volume: second },
      ],
      containers: [
        bench().shell("a", "cat /two/said; ls /one | wc -l; echo new > /new/file; ls -d /two/../two", {
          mounts: [
            { volume: "one", path: "/one" },
            { volume: "two", path: "/two", sub_path: "part" },
            { volume: "two", path: "/new", sub_path: "made/deep" },
          ],
        }),
      ],
    });
    await bench().terminated(machine, "a");
    expect((await bench().log(machine, "a")).slice(0, 1)).toEqual(["second"]);
    await bench().reaches(machine, "stopped");
    expect(await shown(second, "cat /v/made/deep/file")).toEqual(["new"]);
  });

  test("a volume's use is told with its machine's", async () => {
    const id = await volume();
    const machine = await running({ volumes: claim(id) });
    await output(machine, "head -c 8000000 /dev/urandom > /v/big; sync");
    const all = await bench().provider.getStats({ labels: {}, signal: bench().signal });
    const sample = all.find((each) => each.id === machine)?.volumes?.find(({ name }) => name === "data");
    expect(sample).toMatchObject({ inodes_used: expect.any(Number) });
    expect(sample!.used_bytes).toBeGreaterThan(7_000_000);
    expect(sample!.capacity_bytes).toBeGreaterThan(20 * MIB);
    expect(sample!.capacity_bytes).toBeLessThanOrEqual(32 * MIB);
    await remove(machine);
  });

  test("a volume larger than the machine's own disk can be written to its end", async () => {
    const size = 12 * 2 ** 30;
    const id = newVolumeId();
    const { provider, signal } = bench();
    await provider.volumes!.create(id, { labels: {}, size_bytes: size, mode: "block" }, { signal });
    const devices = [{ volume: "data", path: "/dev/xvda" }];
    const write = `printf last | dd of=/dev/xvda bs=4 seek=${size / 4 - 1} conv=notrunc 2>/dev/null && echo written`;
    expect(await shown(id, write, { container: { mounts: [], devices } })).toEqual(["written"]);
    await provider.volumes!.delete(id, { signal });
  });

  test("a backend that was killed finds a machine's volume in its guest, and gives it to nobody else", async () => {
    const id = await volume();
    const machine = await running({ volumes: claim(id) });
    await output(machine, "echo kept > /v/said");
    await bench().provider.close();
    await bench().open();
    await bench().reaches(machine, "running");
    await expect(shown(id, "true")).rejects.toMatchObject({ code: "in_use" });
    await bench().provider.volumes!.resize(id, 64 * MIB, { signal: bench().signal });
    expect(await output(machine, "cat /v/said; df -m /v | tail -1 | awk '{ print ($2 > 40) }'")).toBe("kept\n1");
    await remove(machine);
    expect(await shown(id, "cat /v/said")).toEqual(["kept"]);
  });

  test("a volume that was an engine's folder is not taken for an empty disk", async () => {
    const id = await volume();
    const dir = join(bench().stateDir, "volumes", id);
    const image = join(dir, "disk.img");
    expect(statSync(image).size).toBe(32 * MIB);
    execFileSync("mv", [image, `${image}.away`]);
    execFileSync("mkdir", [join(dir, "data")]);
    writeFileSync(join(dir, "data/said"), "kept");
    const machine = await bench().create({
      volumes: claim(id),
      containers: [bench().shell("a", "true", { mounts })],
    });
    await bench().until(async () => expect((await bench().get(machine)).message).toMatch(/is a folder/));
    expect(existsSync(image)).toBe(false);
    await bench().provider.deletePod(machine, { force: true, signal: bench().signal });
  });
}
