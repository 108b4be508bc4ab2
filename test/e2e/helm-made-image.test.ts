/**
 * `npm run image`: images that are made without an engine, pushed to a registry, and run, by engine `oci` and by the chart.
 * With VMLET_TEST_SLICE, as in CI, the backend's is not made: its programs take minutes to compile.
 */
import { mkdtempSync } from "node:fs";
import { lstat, mkdir, mkdtemp, open, readFile, readdir, readlink, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test, vi } from "vitest";
import { dockerStage, runConfigOf, treeOf } from "../../helm/dockerfile.ts";
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
import { cached, cacheKey } from "./harness/cache.ts";
import { runCommand, tryCommand } from "./harness/exec.ts";
import { describeInCluster } from "./helm-in-cluster-suite.ts";
import { dockerInstructions } from "./helm-rootfs.ts";

interface Manifest {
  config: { digest: string };
  folder: string;
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
const isWhole = process.env["VMLET_TEST_SLICE"] === undefined;
const ELF = Buffer.from([0x7f, 0x45, 0x4c, 0x46]);
/** `e_machine`. */
const MACHINES: Record<string, number> = { amd64: 62, arm64: 183 };

const cannotRun = [...noEngine, ...[missingForImages() ?? []].flat()];
const compilers = { amd64: "x86_64-linux-gnu-gcc", arm64: "aarch64-linux-gnu-gcc" };
/** Of the backend's image. */
const architectures = ["amd64", "arm64"] as const;
const uncompiled = [...missing, ...without("go", "pkg-config", ...architectures.map((each) => compilers[each]))];

const dir = mkdtempSync(join(tmpdir(), "vmlet-images-"));
afterAll(() => rm(dir, { recursive: true, force: true }));

/** Runs the command with another umask and temporary folder than this process. @returns the digest that it prints */
async function make(folder: string, ...options: string[]): Promise<string> {
  const temporary = await mkdtemp(join(dir, "tmp-"));
  const script = 'umask 077; exec "$@"';
  const command = [process.execPath, join(repository, "helm/image.ts"), join(dir, folder), ...options];
  const env = { ...process.env, TMPDIR: temporary };
  const { stdout } = await runCommand("sh", ["-c", script, "sh", ...command], { env });
  return /(sha256:[0-9a-f]{64})$/m.exec(stdout)![1]!;
}
async function blob<T>(folder: string, name: string): Promise<T> {
  return JSON.parse(await readFile(join(dir, folder, "blobs", name.replace(":", "/")), "utf8")) as T;
}
async function manifestsOf(folder: string, index: string): Promise<Manifest[]> {
  const { manifests } = await blob<{ manifests: Manifest[] }>(folder, index);
  return await Promise.all(
    manifests.map(async (each) => ({ ...(await blob<Manifest>(folder, each.digest)), ...each, folder })),
  );
}
const isNative = ({ platform }: Manifest): boolean => platform!.architecture === nativeArchitecture;
async function rootfs(manifest: Manifest): Promise<string> {
  const folder = await mkdtemp(join(dir, "rootfs-"));
  for (const layer of manifest.layers) {
    const archive = join(dir, manifest.folder, "blobs", layer.digest.replace(":", "/"));
    await runCommand("tar", ["-xzf", archive, "-C", folder]);
  }
  return folder;
}
async function expectPrograms(manifest: Manifest, ...programs: string[]): Promise<void> {
  const { architecture } = manifest.platform!;
  const machines = await machinesOf(await rootfs(manifest));
  for (const program of programs) expect(machines.get(program), program).toBe(MACHINES[architecture]);
  expect([...machines].filter(([, machine]) => machine !== MACHINES[architecture])).toEqual([]);
}
async function expectOwnersAreRoot(manifest: Manifest): Promise<void> {
  for (const { digest } of manifest.layers) {
    const archive = join(dir, manifest.folder, "blobs", digest.replace(":", "/"));
    const { stdout } = await runCommand("tar", ["--numeric-owner", "-tvzf", archive]);
    const lines = stdout.split("\n").filter((line) => line !== "");
    // And nothing makes others root.
    expect(lines.filter((line) => !/^\S+ 0\/0 /.test(line) || /^.(?:..[sS]|.....[sS])/.test(line))).toEqual([]);
  }
}
async function expectNothingOfHere(manifest: Manifest): Promise<void> {
  const words = [`${repository}/`, `${dir}/`].flatMap((each) => ["-e", each]);
  const { stdout } = await tryCommand("grep", ["-rlF", ...words, await rootfs(manifest)]);
  expect(stdout).toBe("");
}

if (missing.length > 0) {
  leaveOut("images without an engine", missing);
} else {
  let digest: string;

  beforeAll(async () => {
    digest = await make("layout", "--images", "vmlet");
  }, 1_800_000);

  test("there is one for each architecture, run as the Dockerfile says", async () => {
    const { ENTRYPOINT, CMD, USER } = await dockerInstructions();
    const run = { Entrypoint: ENTRYPOINT, Cmd: CMD, User: USER![0] };
    const manifests = await manifestsOf("layout", digest);
    const configs = await Promise.all(manifests.map(({ config }) => blob<object>("layout", config.digest)));
    expect(configs).toMatchObject(["amd64", "arm64"].map((architecture) => ({ architecture, config: run })));
    expect(manifests.map(({ platform }) => platform?.architecture)).toEqual(["amd64", "arm64"]);
  });

  test("every program and library in it is of its architecture", async () => {
    for (const manifest of await manifestsOf("layout", digest)) await expectPrograms(manifest, "app/bin/node");
  }, 300_000);

  test("it holds no shell and no package manager, trusts Debian's authorities, and belongs to nobody but root", async () => {
    const manifests = await manifestsOf("layout", digest);
    const folder = await rootfs(manifests.find(isNative)!);
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
    for (const manifest of manifests) await expectOwnersAreRoot(manifest);
  }, 300_000);

  test("it tells nothing of where it was made", async () => {
    const [manifest] = await manifestsOf("layout", digest);
    await expectNothingOfHere(manifest!);
  }, 300_000);

  test("it is the same when it is made again", async () => {
    const again = await make("again", "--images", "vmlet", "--platforms", nativeArchitecture);
    const [made] = await manifestsOf("again", again);
    const first = (await manifestsOf("layout", digest)).find(isNative);
    expect({ ...made, folder: "layout" }).toEqual(first);
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

if (isWhole && uncompiled.length > 0) {
  leaveOut(`the backend's image for ${architectures.join(" and ")}`, uncompiled);
} else
  describe.runIf(isWhole)("the backend's image", () => {
    let digest: string;
    let native: Manifest;
    beforeAll(async () => {
      digest = await make("backend", "--images", "vmlet-backend", "--platforms", architectures.join());
      native = (await manifestsOf("backend", digest)).find(isNative)!;
    }, 1_800_000);

    test("is there for each architecture, run as the Dockerfile says, with Debian's PATH", async () => {
      const { Env: env = [], ...run } = runConfigOf(await dockerStage("backend"));
      const manifests = await manifestsOf("backend", digest);
      const configs = await Promise.all(manifests.map(({ config }) => blob<object>("backend", config.digest)));
      const config = { ...run, Env: [expect.stringMatching(/^PATH=\/usr\/local\/sbin:/), ...env] };
      expect(configs).toMatchObject(architectures.map((architecture) => ({ architecture, config })));
    });

    test("has programs and libraries of its architecture, and Go's own", async () => {
      const built = ["containerd", "containerd-shim-runc-v2", "runc"].map((name) => `usr/local/bin/${name}`);
      for (const manifest of await manifestsOf("backend", digest))
        await expectPrograms(manifest, "app/bin/node", "usr/bin/tini", ...built);
    }, 300_000);

    test("tells nothing of where it was made, and belongs to root", async () => {
      await expectNothingOfHere(native);
      await expectOwnersAreRoot(native);
    }, 300_000);

    test("has whatever Debian's package manager would install, as it would", async () => {
      const folder = await rootfs(native);
      const installed = await installedByDebian();
      const [made, wanted] = [await filesOf(folder), await filesOf(installed)];
      expect([...wanted.keys()].length).toBeGreaterThan(3000);
      expect([...wanted.keys()].filter((path) => !made.has(path) && !UNMADE.test(path))).toEqual([]);
      const others = [...wanted].filter(([path, what]) => made.has(path) && made.get(path) !== what);
      expect(others.map(([path]) => path).filter((path) => !CONFIGURED.test(path))).toEqual([]);
    }, 600_000);

    test("is the same when it is made again", async () => {
      const again = await make("backend-again", "--images", "vmlet-backend", "--platforms", nativeArchitecture);
      const [made] = await manifestsOf("backend-again", again);
      expect({ ...made, folder: "backend" }).toEqual(native);
    }, 1_800_000);

    test.skipIf(without("qemu-aarch64").length > 0)(
      "of arm64 runs its programs, emulated",
      async () => {
        const folder = await rootfs((await manifestsOf("backend", digest)).find((each) => !isNative(each))!);
        const run = async (...words: string[]) => (await runCommand("qemu-aarch64", ["-L", folder, ...words])).stdout;
        expect(await run(join(folder, "usr/local/bin/runc"), "--version")).toContain("libseccomp: 2.");
        expect(await run(join(folder, "usr/local/bin/containerd"), "--version")).toContain("containerd/v2 v2.");
        expect(await run(join(folder, "usr/bin/ip"), "-V")).toMatch(/^ip utility, iproute2-/);
        const main = [join(folder, "app/bin/node"), join(folder, "app/dist/src/cli/main.js")];
        expect(await run(...main, "version")).toMatch(/^vmlet \d+\.\d+\.\d+ \(node 24\./);
      },
      300_000,
    );

    describeInCluster({
      engine: "cri",
      images: () => [`oci:${join(dir, "layout")}:vmlet`, `oci:${join(dir, "backend")}:vmlet-backend`],
    });
  });

/**
 * What is not made of a package manager's work: its own notes, what people read, links to authorities beside the bundle that
 * programs read, what is for logins, init systems and kernels of whole machines, and caches.
 */
const UNMADE =
  /^(?:usr\/share\/(?:bash-completion|bug|doc|doc-base|info|lintian|locale|man|menu)\/|var\/lib\/(?:dpkg|apt|pam|systemd)\/|var\/lib\/shells\.state|var\/(?:cache|log)\/|var\/(?:spool\/)?mail$|etc\/ssl\/certs\/|etc\/(?:alternatives\/(?:README|\S*\.gz$)|apt\/sources\.list|systemd\/|rc\w\.d\/|pam\.d\/common-|security\/opasswd|profile|environment|fstab|hostname|hosts|networks|motd|localtime|timezone|shells|resolv\.conf|ld\.so\.cache|ca-certificates\.conf|dpkg\/origins\/default|\.pwd\.lock|gshadow|shadow|sub[ug]id|passwd-|group-)|usr\/local\/(?:man$|share\/man)|root\/\.)/;
/** Written by scripts from the same templates, with passwords in a file of their own, which is of no use without logins. */
const CONFIGURED = /^etc\/(?:passwd|group|ssl\/certs\/)/;

/** The smallest Debian with the backend's packages, installed by its own package manager with all of their scripts. */
async function installedByDebian(): Promise<string> {
  const { packages } = treeOf(await dockerStage("backend"));
  const archive = await cached(`backend-packages-${cacheKey([packages.join(" ")])}.tar`, async (temporary) => {
    const args = ["--variant=minbase", "--skip=output/dev", "--format=tar", `--include=${packages.join(",")}`];
    await runCommand("mmdebstrap", ["--quiet", ...args, "bookworm", temporary]);
  });
  const folder = join(dir, "installed");
  await mkdir(folder);
  await runCommand("tar", ["-xf", archive, "-C", folder]);
  return folder;
}

/** By path, what each file is: its bytes' hash and whether it is run, or where a link leads. */
async function filesOf(folder: string): Promise<Map<string, string>> {
  const files = new Map<string, string>();
  for (const entry of await readdir(folder, { recursive: true, withFileTypes: true })) {
    const path = join(entry.parentPath, entry.name);
    if (entry.isDirectory()) continue;
    const what = entry.isSymbolicLink()
      ? `to ${await readlink(path)}`
      : `${((await lstat(path)).mode & 0o111) > 0} ${cacheKey([await readFile(path)])}`;
    files.set(path.slice(folder.length + 1), what);
  }
  return files;
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
