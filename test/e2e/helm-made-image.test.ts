/** `npm run image`: images that are made without an engine, pushed to a registry, and run. */
import { mkdtemp, open, readFile, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test, vi } from "vitest";
import { nativeArchitecture } from "../../helm/image.ts";
import { startBackend } from "../../providers/local/backend.ts";
import { parseBackendConfig } from "../../providers/local/config.ts";
import { OciEngine } from "../../providers/local/engines/oci/engine.ts";
import { findTool } from "../../providers/local/host/command.ts";
import { HostNetwork } from "../../providers/local/network/network.ts";
import { silentLogger } from "../../src/telemetry/logger.ts";
import { systemClock } from "../../src/util/clock.ts";
import { testNetwork } from "../support/host.ts";
import { leaveOut } from "../support/left-out.ts";
import { missingForImages, startRegistry } from "../support/registry.ts";
import { runCommand, tryCommand } from "./harness/exec.ts";
import { dockerInstructions } from "./helm-rootfs.ts";

interface Manifest {
  config: { digest: string };
  layers: { digest: string }[];
  platform?: { architecture: string };
  digest: string;
}

const repository = join(import.meta.dirname, "../..");
const { dir: _dir, ...network } = testNetwork("");
const engine = new OciEngine({ stateDir: "/nonexistent", clock: systemClock, logger: silentLogger, network });
const noEngine = (await engine.check()).filter(({ fatal }) => fatal).map(({ problem }) => problem);
const without = (...tools: string[]) => tools.filter((tool) => findTool(tool) === undefined);
const missing = without("mmdebstrap", "skopeo");
const ELF = Buffer.from([0x7f, 0x45, 0x4c, 0x46]);
/** `e_machine`. */
const MACHINES: Record<string, number> = { amd64: 62, arm64: 183 };

if (missing.length > 0) {
  leaveOut("images without an engine", missing);
} else {
  let dir: string;
  let digest: string;

  /** Runs the command with another umask and temporary folder than this process. @returns the digest that it prints */
  async function make(folder: string, ...options: string[]): Promise<string> {
    const temporary = await mkdtemp(join(dir, "tmp-"));
    const script = 'umask 077; exec "$@"';
    const command = [process.execPath, join(repository, "helm/image.ts"), join(dir, folder), ...options];
    const env = { ...process.env, TMPDIR: temporary };
    const { stdout } = await runCommand("sh", ["-c", script, "sh", ...command], { env });
    return /vmlet (sha256:[0-9a-f]{64})$/m.exec(stdout)![1]!;
  }
  async function blob<T>(folder: string, name: string): Promise<T> {
    return JSON.parse(await readFile(join(dir, folder, "blobs", name.replace(":", "/")), "utf8")) as T;
  }
  async function manifestsOf(folder: string, index: string): Promise<Manifest[]> {
    const { manifests } = await blob<{ manifests: Manifest[] }>(folder, index);
    return await Promise.all(
      manifests.map(async (each) => ({ ...(await blob<Manifest>(folder, each.digest)), ...each })),
    );
  }
  async function rootfs(manifest: Manifest): Promise<string> {
    const folder = await mkdtemp(join(dir, "rootfs-"));
    for (const layer of manifest.layers)
      await runCommand("tar", ["-xzf", join(dir, "layout/blobs", layer.digest.replace(":", "/")), "-C", folder]);
    return folder;
  }

  beforeAll(async () => {
    dir = await mkdtemp(join(tmpdir(), "vmlet-images-"));
    digest = await make("layout", "--images", "vmlet");
  }, 1_800_000);
  afterAll(() => rm(dir, { recursive: true, force: true }));

  test("there is one for each architecture, run as the Dockerfile says", async () => {
    const { ENTRYPOINT, CMD, USER } = await dockerInstructions();
    const run = { Entrypoint: ENTRYPOINT, Cmd: CMD, User: USER![0] };
    const manifests = await manifestsOf("layout", digest);
    const configs = await Promise.all(manifests.map(({ config }) => blob<object>("layout", config.digest)));
    expect(configs).toMatchObject(["amd64", "arm64"].map((architecture) => ({ architecture, config: run })));
    expect(manifests.map(({ platform }) => platform?.architecture)).toEqual(["amd64", "arm64"]);
  });

  test("every program and library in it is of its architecture", async () => {
    for (const manifest of await manifestsOf("layout", digest)) {
      const { architecture } = manifest.platform!;
      const machines = await machinesOf(await rootfs(manifest));
      expect(machines.get("app/bin/node"), architecture).toBe(MACHINES[architecture]);
      expect([...machines].filter(([, machine]) => machine !== MACHINES[architecture])).toEqual([]);
    }
  }, 300_000);

  test("it holds no shell and no package manager, trusts Debian's authorities, and belongs to nobody but root", async () => {
    const manifests = await manifestsOf("layout", digest);
    const folder = await rootfs(manifests.find(({ platform }) => platform?.architecture === nativeArchitecture)!);
    const files = (await readdir(folder, { recursive: true, withFileTypes: true })).filter(
      (file) => !file.isDirectory(),
    );
    expect(files.length).toBeGreaterThan(500);
    const foreign = /^(?:sh|bash|dash|apt|dpkg|npm|perl|busybox)$/;
    expect(
      files.filter(({ name }) => foreign.test(name)).map(({ parentPath, name }) => join(parentPath, name)),
    ).toEqual([]);
    const certificates = await readFile(join(folder, "etc/ssl/certs/ca-certificates.crt"), "utf8");
    expect(certificates.match(/-----BEGIN CERTIFICATE-----/g)!.length).toBeGreaterThan(50);
    const layers = manifests.flatMap(({ layers: each }) => each.map((layer) => layer.digest.replace(":", "/")));
    for (const layer of layers) {
      const listed = await runCommand("tar", ["--numeric-owner", "-tvzf", join(dir, "layout/blobs", layer)]);
      expect(listed.stdout.split("\n").filter((line) => line !== "" && !/^\S+ 0\/0 /.test(line))).toEqual([]);
    }
  }, 300_000);

  test("it tells nothing of where it was made", async () => {
    const [manifest] = await manifestsOf("layout", digest);
    const folder = await rootfs(manifest!);
    const { stdout } = await tryCommand("grep", ["-rlF", "-e", `${repository}/`, "-e", `${dir}/`, folder]);
    expect(stdout).toBe("");
  }, 300_000);

  test("it is the same when it is made again", async () => {
    const again = await make("again", "--images", "vmlet", "--platforms", nativeArchitecture);
    const [made] = await manifestsOf("again", again);
    const first = (await manifestsOf("layout", digest)).find(
      ({ platform }) => platform!.architecture === nativeArchitecture,
    );
    expect(made).toEqual(first);
  }, 1_800_000);

  const noEmulator = without("qemu-aarch64");
  if (noEmulator.length > 0) leaveOut("the arm64 image, emulated", noEmulator);
  else
    test("vmlet of the arm64 image says its version", async () => {
      const manifests = await manifestsOf("layout", digest);
      const folder = await rootfs(manifests.find(({ platform }) => platform!.architecture === "arm64")!);
      const main = [join(folder, "app/bin/node"), join(folder, "app/dist/src/cli/main.js")];
      const { stdout } = await runCommand("qemu-aarch64", ["-L", folder, ...main, "version"]);
      expect(stdout).toMatch(/^vmlet \d+\.\d+\.\d+ \(node 24\./);
    });

  const cannotRun = [...noEngine, ...[missingForImages() ?? []].flat()];
  describe.skipIf(cannotRun.length > 0)(
    `pushed to a registry (needs engine oci: ${cannotRun.join(", ") || "here"})`,
    () => {
      test("it is pulled and run by engine oci", async () => {
        const registry = await startRegistry();
        await using stack = new AsyncDisposableStack();
        stack.defer(() => registry.stop());
        const image = `${registry.host}/vmlet/vmlet:1`;
        const from = `oci:${join(dir, "layout")}:vmlet`;
        await runCommand("skopeo", ["copy", "--all", "--dest-tls-verify=false", from, `docker://${image}`]);
        const pushed = await fetch(`http://${registry.host}/v2/vmlet/vmlet/manifests/1`, {
          headers: { accept: "application/vnd.oci.image.index.v1+json" },
        });
        expect(pushed.headers.get("docker-content-digest")).toBe(digest);

        const config = {
          ...{ apiVersion: "vmlet.dev/v1", kind: "BackendConfig", stateDir: join(dir, "state") },
          listen: { socket: join(dir, "api.sock") },
          engine: { type: "oci", network, images: { insecureRegistries: [registry.host] } },
        };
        const surroundings = { clock: systemClock, logger: silentLogger, version: "0" };
        stack.defer(() => new HostNetwork({ dir: "/nonexistent/network", ...network }).remove());
        const backend = await startBackend(parseBackendConfig(JSON.stringify(config), "test"), surroundings);
        stack.defer(() => backend.close());
        const { provider } = backend;
        const signal = AbortSignal.timeout(120_000);
        const containers = [{ name: "a", image, args: ["version"] }];
        await provider.createPod("m", { labels: {}, restart_policy: "never", containers }, { signal });
        const state = async () => (await provider.getPod("m", { signal })).state;
        await vi.waitFor(async () => expect(await state()).toBe("stopped"), { timeout: 120_000, interval: 50 });
        let output = "";
        for await (const line of provider.getLogs("m", "a", { signal })) output += line.content.toString();
        expect(output).toMatch(/^vmlet \d+\.\d+\.\d+ \(node 24\./);
        await provider.deletePod("m", { force: true, signal });
        await vi.waitFor(async () => expect(await state()).toBe("deleted"), { timeout: 30_000, interval: 50 });
      }, 300_000);
    },
  );
}

/** Of each ELF file below a folder, for which machine it is. */
async function machinesOf(folder: string): Promise<Map<string, number>> {
  const machines = new Map<string, number>();
  for (const entry of await readdir(folder, { recursive: true, withFileTypes: true })) {
    if (!entry.isFile()) continue;
    const path = join(entry.parentPath, entry.name);
    await using file = await open(path);
    const { buffer, bytesRead } = await file.read(Buffer.alloc(20), 0, 20, 0);
    if (bytesRead === 20 && buffer.subarray(0, 4).equals(ELF))
      machines.set(path.slice(folder.length + 1), buffer.readUInt16LE(18));
  }
  return machines;
}
