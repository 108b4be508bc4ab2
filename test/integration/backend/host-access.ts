/** Machines with access to this host: who has it, and what it is, on each engine that has it. */
import { execFileSync } from "node:child_process";
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { hostname, tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, afterEach, beforeEach, describe, expect, test } from "vitest";
import { ownCapabilities } from "../../../providers/local/bundle/own-capabilities.ts";
import { run } from "../../../providers/local/host/command.ts";
import { hasLoopVolumes } from "../../../providers/local/volumes/loop-files.ts";
import { attachLoop, resizeLoop } from "../../../providers/local/volumes/loop-devices.ts";
import type { ContainerSpec, MachineSpec, Volume } from "../../../src/provider/machine.ts";
import { LABEL_NAMESPACE } from "../../../src/provider/owner.ts";
import type { Bench } from "./suite.ts";

const labels = { [LABEL_NAMESPACE]: "kube-system" };

/** What the engine's owner says. */
export const HOST = { namespaces: ["kube-system"] };

/** @param bench its backend is open in each test */
export function hostAccessTests(bench: Bench): void {
  const folder = mkdtempSync(join(tmpdir(), "vmlet-host-path-"));
  afterAll(async () => {
    await run("umount", ["-R", join(folder, "shared")]).catch(() => undefined);
    rmSync(folder, { recursive: true, force: true });
  }, 60_000);

  const says = async (script: string, spec: Partial<MachineSpec>, more: Partial<ContainerSpec> = {}) => {
    const id = await bench.create({ labels, ...spec, containers: [bench.shell("a", script, more)] });
    const { exit_code, message } = await bench.terminated(id, "a");
    const lines = await bench.log(id, "a");
    expect(exit_code, [message, ...lines].join("\n")).toBe(0);
    return lines;
  };
  const ofThisHost = (name: string) => readlinkSync(`/proc/self/ns/${name}`);
  const hosts = (path: string, path_type?: Extract<Volume, { type: "host" }>["path_type"]): Volume[] => [
    { name: "v", type: "host", path, ...(path_type && { path_type }) },
  ];
  const mounts = [{ volume: "v", path: "/v" }];

  test("the backend says for whom it is", async () => {
    const { capabilities, reserved } = await bench.provider.getInfo({ signal: bench.signal });
    expect(reserved).toEqual({
      capabilities: [
        "host_network",
        "host_pid",
        "host_ipc",
        "volumes.host",
        "volumes.host_growth",
        "mount_propagation",
        "privileged",
      ],
      namespaces: ["kube-system"],
    });
    expect(capabilities).toEqual(expect.arrayContaining(reserved!.capabilities));
  });

  test.each<[string, Partial<MachineSpec>, string]>([
    ["its network", { host: { network: true } }, "host.network"],
    ["its processes", { host: { pid: true } }, "host.pid"],
    ["its IPC namespace", { host: { ipc: true } }, "host.ipc"],
    ["its files", { volumes: hosts("/etc") }, "volumes.0"],
  ])("%s is refused to a machine of another namespace, and to one that tells of none", async (_name, spec, field) => {
    for (const other of [{}, { [LABEL_NAMESPACE]: "default" }]) {
      const asked = bench.create({ ...spec, labels: other, containers: [bench.shell("a", "true")] });
      await expect(asked).rejects.toMatchObject({ code: "unsupported", field });
    }
  });

  test("privileges are refused to others, and had by machines of the namespace", async () => {
    const container = bench.shell("a", "true", { security: { privileged: true } });
    await expect(bench.create({ labels: {}, containers: [container] })).rejects.toMatchObject({
      code: "unsupported",
      field: "containers.security.privileged",
    });
    // Any client may name the namespace; only one with the verb for it, a privileged container.
    const security = { capabilities_add: ["SYS_ADMIN"] };
    const asked = bench.create({
      labels: { [LABEL_NAMESPACE]: "kube-system" },
      containers: [bench.shell("a", "true", { security })],
    });
    await expect(asked).rejects.toMatchObject({ field: "containers.security.capabilities_add" });
    const [capabilities] = await says("grep CapEff /proc/self/status", {}, { security: { privileged: true } });
    expect(capabilities).toBe(/^CapEff:.*$/m.exec(readFileSync("/proc/self/status", "latin1"))![0]);
  });

  test("a kernel parameter of what is the host's is refused", async () => {
    const security = { sysctls: [{ name: "net.ipv4.tcp_syncookies", value: "0" }] };
    const asked = bench.create({
      labels,
      security,
      host: { network: true },
      containers: [bench.shell("a", "true")],
    });
    await expect(asked).rejects.toMatchObject({ code: "invalid", field: "security.sysctls" });
  });

  test("a folder of it becomes the machine's group's where that is asked for, and stays as it is otherwise", async () => {
    const path = join(folder, "grouped");
    mkdirSync(path);
    writeFileSync(join(path, "file"), "", { mode: 0o600 });
    const security = { fs_group: 4321 };
    const script = "stat -c %g:%a /v /v/file";
    const before = await says(script, { security, volumes: hosts(path, "Directory") }, { mounts });
    expect(before).toEqual(["0:755", "0:600"]);
    const volumes = hosts(path, "Directory").map((each) => ({ ...each, fs_group: true }) as Volume);
    expect(await says(script, { security, volumes }, { mounts })).toEqual(["4321:2775", "4321:660"]);
  });

  test("a block device of it is a container's", async () => {
    const name = readdirSync("/dev").find((each) => statSync(join("/dev", each)).isBlockDevice())!;
    const devices = [{ volume: "v", path: "/dev/own" }];
    const script = "test -b /dev/own && ls -l /dev/own | cut -c 1";
    expect(await says(script, { volumes: hosts(join("/dev", name), "BlockDevice") }, { devices })).toEqual(["b"]);
    const readOnly = hosts(join("/dev", name), "BlockDevice").map((each) => ({ ...each, read_only: true }) as Volume);
    const writes = "dd if=/dev/own of=/dev/null bs=512 count=1 2>/dev/null; (: <>/dev/own) 2>/dev/null || echo kept";
    expect(await says(writes, { volumes: readOnly }, { devices })).toEqual(["kept"]);
    const id = await bench.create({
      labels,
      volumes: hosts("/dev/null", "BlockDevice"),
      containers: [bench.shell("a", "true", { devices })],
    });
    const message = "hostPath type check failed: /dev/null is not a block device";
    await bench.until(async () => expect(await bench.container(id, "a")).toMatchObject({ state: "waiting", message }));
  });

  describe.skipIf(!hasLoopVolumes())("a block device of it, as the file system that is on it", () => {
    let device: Awaited<ReturnType<typeof attachLoop>>;
    let made = 0;
    const asFiles = (fs_type = "ext4"): Volume[] =>
      hosts(device.path, "Directory").map((each) => ({ ...each, fs_type, fs_group: true }) as Volume);
    const security = { fs_group: 4321 };
    const fileOf = () => join(folder, `device-${made}`);

    beforeEach(async () => {
      // Machines of the test before may have theirs still.
      made++;
      const file = fileOf();
      writeFileSync(file, "");
      truncateSync(file, 64 * 1024 ** 2);
      device = await attachLoop(file, { readOnly: false });
    });
    // It goes with the last of its mounts.
    afterEach(() => run("losetup", ["--detach", device.path]));

    test("is made where there is none, is the machine's group's, and has for the next machine what is written", async () => {
      const script = "grep ' /v ' /proc/mounts | cut -d ' ' -f 3; stat -c %g /v; echo kept >/v/x";
      expect(await says(script, { volumes: asFiles(), security }, { mounts })).toEqual(["ext4", "4321"]);
      expect(await says("cat /v/x", { volumes: asFiles(), security }, { mounts })).toEqual(["kept"]);
    });

    test("is told of as a disk: how large it is, and how much is on it", async () => {
      const script = "dd if=/dev/zero of=/v/x bs=1M count=8 2>/dev/null; sync; echo done; sleep 1000";
      const volumes = asFiles();
      const id = await bench.create({ labels, volumes, containers: [bench.shell("a", script, { mounts })] });
      await bench.until(async () => expect(await bench.log(id, "a")).toEqual(["done"]));
      const [stats] = await bench.provider.getStats({ labels, signal: bench.signal });
      const [disk] = stats?.volumes?.filter(({ name }) => name === "v") ?? [];
      expect(disk).toMatchObject({ inodes: expect.any(Number), inodes_free: expect.any(Number) });
      expect(disk!.capacity_bytes).toBeGreaterThan(40 * 1024 ** 2);
      expect(disk!.capacity_bytes).toBeLessThanOrEqual(64 * 1024 ** 2);
      expect(disk!.used_bytes).toBeGreaterThanOrEqual(8 * 1024 ** 2);
      await bench.provider.deletePod(id, { force: true, signal: bench.signal });
    });

    test("is one for two machines at a time, made once", async () => {
      const both = (own: string) => `echo ${own} >/v/${own}; until [ -e /v/a ] && [ -e /v/b ]; do sleep 0.1; done`;
      await Promise.all(["a", "b"].map((own) => says(both(own), { volumes: asFiles() }, { mounts })));
      expect(await says("cat /v/a /v/b", { volumes: asFiles() }, { mounts })).toEqual(["a", "b"]);
    });

    test("is looked at, and mended, before it is mounted again", async () => {
      await says("echo kept >/v/x", { volumes: asFiles() }, { mounts });
      const { provider, signal } = bench;
      for (const { id } of (await provider.getPods({ labels, signal })).items) {
        await provider.deletePod(id, { force: true, signal });
        await bench.reaches(id, "deleted");
      }
      // The kernel has seen faults in it.
      await run("debugfs", ["-w", "-R", "ssv state 3", device.path]);
      expect(await says("cat /v/x", { volumes: asFiles() }, { mounts })).toEqual(["kept"]);
      const { stdout } = await run("dumpe2fs", ["-h", device.path]);
      expect(stdout.toString()).toMatch(/^Filesystem state: +clean$/m);
    });

    test.each(["xfs", ...(ownCapabilities().includes("CAP_SYS_RESOURCE") ? ["ext4"] : [])])(
      "grows to all of it while a machine has it, when that is asked for (%s)",
      async (fsType) => {
        const { provider, signal } = bench;
        // The least that tools make of XFS.
        truncateSync(fileOf(), 512 * 1024 ** 2);
        await resizeLoop(device);
        const script = "stat -f -c '%b %S' /v; while [ ! -e /v/go ]; do sleep 0.1; done; stat -f -c '%b %S' /v";
        const id = await bench.create({
          labels,
          volumes: asFiles(fsType),
          containers: [bench.shell("a", script, { mounts })],
        });
        const sizes = async () => {
          const lines = await bench.log(id, "a");
          return lines.map((line) => line.split(" ").map(Number)).map(([blocks = 0, bytes = 0]) => blocks * bytes);
        };
        await bench.until(async () => expect(await sizes()).toHaveLength(1));
        truncateSync(fileOf(), 1024 ** 3);
        await resizeLoop(device);
        await provider.updatePod(id, { host_volumes: [{ name: "v" }] }, { signal });
        await provider.updatePod(id, { host_volumes: [{ name: "v" }] }, { signal });
        await bench.exec(id, "a", ["touch", "/v/go"]);
        await bench.until(async () => expect(await sizes()).toHaveLength(2));
        const [before = 0, after = 0] = await sizes();
        expect(after / before).toBeGreaterThan(1.8);
        const other = provider.updatePod(id, { host_volumes: [{ name: "w" }] }, { signal });
        await expect(other).rejects.toMatchObject({ code: "conflict" });
      },
    );

    test.each<[string, (path: string) => unknown, string]>([
      ["another file system", (path) => run("mkfs.ext2", ["-q", "-F", path]), "already has ext2"],
      ["data that is none", (path) => writeFileSync(path, "its own"), "already has data that is no file system"],
    ])("is not made over %s", async (_, fill, words) => {
      await fill(device.path);
      const content = () =>
        execFileSync("dd", [`if=${device.path}`, "bs=64k", "count=1", "iflag=direct", "status=none"]);
      execFileSync("sync");
      const before = content();
      const id = await bench.create({
        labels,
        volumes: asFiles(),
        containers: [bench.shell("a", "true", { mounts })],
      });
      await bench.until(async () => expect(JSON.stringify(await bench.get(id))).toContain(words));
      execFileSync("sync");
      expect(content().equals(before)).toBe(true);
    });
  });

  test("its namespaces are the container's, one by one", async () => {
    const script = "for n in net pid ipc uts; do readlink /proc/self/ns/$n; done";
    const of = async (host: NonNullable<MachineSpec["host"]>) => {
      const [net, pid, ipc] = await says(script, { host });
      return { net: net === ofThisHost("net"), pid: pid === ofThisHost("pid"), ipc: ipc === ofThisHost("ipc") };
    };
    expect(await of({ network: true })).toEqual({ net: true, pid: false, ipc: false });
    expect(await of({ pid: true })).toEqual({ net: false, pid: true, ipc: false });
    expect(await of({ ipc: true })).toEqual({ net: false, pid: false, ipc: true });
  });

  test("on its network a machine has the host's name, names and ports, and no address of its own", async () => {
    const server = createServer((_request, reply) => void reply.end("from the host\n"));
    await new Promise<void>((resolve) => void server.listen(0, "127.0.0.1", resolve));
    const { port } = server.address() as AddressInfo;
    const script = `hostname; cat /etc/hosts; wget -qO- http://127.0.0.1:${port}/; sleep 1000`;
    const id = await bench.create({
      labels,
      host: { network: true },
      hosts: [{ ip: "192.0.2.9", names: ["alias.example"] }],
      containers: [bench.shell("a", script)],
    });
    const lines = await bench.until(async () => {
      const all = await bench.log(id, "a");
      expect(all).toContain("from the host");
      return all;
    });
    expect(lines[0]).toBe(hostname());
    expect(lines[1]).toBe("# Kubernetes-managed hosts file (host network).");
    expect(lines).toContain("192.0.2.9\talias.example");
    const own = readFileSync("/etc/hosts", "utf8").trimEnd().split("\n");
    expect(lines).toEqual(expect.arrayContaining(own));
    expect((await bench.get(id)).addresses).toEqual([]);
    server.close();
    await bench.provider.deletePod(id, { force: true, signal: bench.signal });
    await bench.reaches(id, "deleted");
  });

  test("a machine on its network is probed and reached on its ports, and found by the backend's successor", async () => {
    const port = 38_471;
    const probe = { initial_delay_s: 0, period_s: 1, timeout_s: 1, success: 1, failure: 3 };
    const id = await bench.create({
      labels,
      restart_policy: "always",
      host: { network: true },
      containers: [
        bench.shell("a", `mkdir /w; echo served > /w/index.html; httpd -f -p ${port} -h /w`, {
          probes: { readiness: { ...probe, http: { path: "/", port } } },
        }),
      ],
    });
    await bench.until(async () => expect((await bench.container(id, "a")).ready).toBe(true));
    await bench.provider.close();
    await bench.open();
    const { restart_count } = await bench.container(id, "a");
    expect([restart_count, (await bench.get(id)).state]).toEqual([0, "running"]);
    expect(await (await fetch(`http://127.0.0.1:${port}/`)).text()).toBe("served\n");
    const stream = await bench.provider.portForward(id, port, { signal: bench.signal });
    stream.end("GET / HTTP/1.0\r\n\r\n");
    let reply = "";
    for await (const chunk of stream) reply += String(chunk);
    expect(reply).toContain("served");
    await bench.provider.deletePod(id, { force: true, signal: bench.signal });
    await bench.reaches(id, "deleted");
  });

  test("its files are read, and written where the mount lets them be", async () => {
    writeFileSync(join(folder, "told"), "by the host\n");
    expect(await says("cat /v/told; echo by the machine > /v/answer", { volumes: hosts(folder) }, { mounts })).toEqual([
      "by the host",
    ]);
    expect(readFileSync(join(folder, "answer"), "utf8")).toBe("by the machine\n");
    const readOnly = { mounts: [{ ...mounts[0]!, read_only: true }] };
    expect(await says("touch /v/no 2>/dev/null || echo refused", { volumes: hosts(folder) }, readOnly)).toEqual([
      "refused",
    ]);
    const part = { mounts: [{ ...mounts[0]!, sub_path: "told" }] };
    expect(await says("cat /v", { volumes: hosts(folder) }, part)).toEqual(["by the host"]);
  });

  test("its files are not written where the machine as a whole has them read-only", async () => {
    writeFileSync(join(folder, "fixed"), "as it is\n");
    const volumes = hosts(folder, "Directory").map((each) => ({ ...each, read_only: true }) as Volume);
    const script = "cat /v/fixed; touch /v/new 2>/dev/null || echo kept";
    expect(await says(script, { volumes }, { mounts })).toEqual(["as it is", "kept"]);
  });

  test("what has to be there is made, or is waited for with a kubelet's words", async () => {
    const made = join(folder, "made/deep");
    expect(await says("ls -A /v", { volumes: hosts(made, "DirectoryOrCreate") }, { mounts })).toEqual([]);
    expect(existsSync(made)).toBe(true);
    expect(await says("wc -c < /v", { volumes: hosts(join(made, "file"), "FileOrCreate") }, { mounts })).toEqual(["0"]);
    const id = await bench.create({
      labels,
      volumes: hosts(join(folder, "told"), "Directory"),
      containers: [bench.shell("a", "true", { mounts })],
    });
    await bench.until(async () =>
      expect(await bench.container(id, "a")).toMatchObject({
        state: "waiting",
        reason: "CreateContainerConfigError",
        message: `hostPath type check failed: ${join(folder, "told")} is not a directory`,
      }),
    );
  });

  test("a mount of the host that lets nothing through is not taken for one that does", async () => {
    const own = join(folder, "private");
    mkdirSync(own);
    await run("mount", ["--bind", own, own]);
    await run("mount", ["--make-private", own]);
    const id = await bench.create({
      labels,
      volumes: hosts(own),
      containers: [
        bench.shell("a", "true", {
          mounts: [{ volume: "v", path: "/v", propagation: "bidirectional" }],
          security: { privileged: true },
        }),
      ],
    });
    await bench.until(async () =>
      expect(await bench.container(id, "a")).toMatchObject({
        state: "waiting",
        message: expect.stringContaining(`is mounted on "${own}" but it is not a shared mount`),
      }),
    );
    await bench.provider.deletePod(id, { force: true, signal: bench.signal });
    await bench.reaches(id, "deleted");
    await run("umount", [own]);
  });

  test("what a container with the host's processes has started ends with it", async () => {
    const id = await bench.create({
      labels,
      host: { pid: true },
      containers: [bench.shell("a", "sleep 7357 & sleep 7357 & exit 0")],
    });
    await bench.terminated(id, "a");
    await bench.until(async () => {
      const { stdout } = await run("ps", ["-eo", "args"]);
      expect(stdout.toString()).not.toContain("sleep 7357");
    });
  });

  test("mounts go the way that they were asked to", async () => {
    const shared = join(folder, "shared");
    mkdirSync(shared);
    await run("mount", ["--bind", shared, shared]);
    await run("mount", ["--make-shared", shared]);
    for (const name of ["in", "out"]) mkdirSync(join(shared, name));
    const id = await bench.create({
      labels,
      volumes: hosts(shared),
      containers: [
        bench.shell("a", "mount -t tmpfs made /v/out && echo inside > /v/out/file; sleep 1000", {
          mounts: [{ volume: "v", path: "/v", propagation: "bidirectional" }],
          security: { privileged: true },
        }),
        bench.shell("b", "until [ -e /v/in/file ]; do sleep 0.1; done; cat /v/in/file; sleep 1000", {
          mounts: [{ volume: "v", path: "/v", propagation: "host_to_container" }],
        }),
      ],
    });
    await bench.until(() => expect(readFileSync(join(shared, "out/file"), "utf8")).toBe("inside\n"));
    await run("mount", ["-t", "tmpfs", "made", join(shared, "in")]);
    writeFileSync(join(shared, "in/file"), "outside\n");
    await bench.until(async () => expect(await bench.log(id, "b")).toEqual(["outside"]));
    await bench.provider.deletePod(id, { force: true, signal: bench.signal });
    await bench.reaches(id, "deleted");
  });
}
