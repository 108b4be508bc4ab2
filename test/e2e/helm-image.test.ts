/** What the Dockerfile puts into the image, without an engine: the tree runs on a root that nobody may write, as nobody. */
import { chmod, mkdir, readFile, readdir, readlink, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { assemble } from "../../helm/assemble.ts";
import { startDevCluster, type DevCluster } from "../../src/devcluster/index.ts";
import { silentLogger } from "../../src/telemetry/logger.ts";
import { systemClock } from "../../src/util/clock.ts";
import { clientOf, createClient, type Client } from "./harness/client.ts";
import { runCommand, tryCommand } from "./harness/exec.ts";
import { freePorts } from "./harness/ports.ts";
import { createSandbox, failWhenExited, type ManagedProcess, type Sandbox } from "./harness/processes.ts";
import { must, waitFor } from "./harness/wait.ts";
import { addLibraries, dockerInstructions } from "./helm-rootfs.ts";

const USER = 65532;
const isRoot = process.getuid?.() === 0;
const reason = isRoot ? "" : " (skipped: making a root file system needs root)";

let sandbox: Sandbox;
let root: string;

beforeAll(async () => {
  sandbox = await createSandbox("image");
  root = join(sandbox.dir, "image");
  await assemble(root);
}, 300_000);
afterAll(() => sandbox?.close());

describe("the run-time tree", () => {
  test("holds no development dependency, no shell and no package manager", async () => {
    const files = await readdir(root, { recursive: true });
    const found = files.filter((file) =>
      /(^|\/)(vitest|typescript|oxlint|fast-check|nock|npm|npx|sh|bash|busybox)$/.test(file),
    );
    expect(found).toEqual([]);
  });

  test("has of packages what it loads, and of those that were packed their terms alone", async () => {
    const files = (await readdir(join(root, "app/node_modules"), { recursive: true, withFileTypes: true }))
      .filter((file) => file.isFile())
      .map(({ parentPath, name }) => join(parentPath, name).slice(join(root, "app/node_modules/").length));
    const isLoaded = (file: string) => /^@(?:bufbuild|connectrpc|lydell)\//.test(file);
    expect(files).toEqual(
      expect.arrayContaining(["pino/LICENSE", "openid-client/LICENSE.md", "@connectrpc/connect/package.json"]),
    );
    expect(
      files.filter(
        (file) => !isLoaded(file) && !/\/(?:package\.json|(?:licen[cs]e|notice|copying|authors)[^/]*)$/i.test(file),
      ),
    ).toEqual([]);
    // What client-node has for archives and sockets, which nothing here asks for.
    expect(files.filter((file) => /^(?:tar-fs|bare-fs|isomorphic-ws)\//.test(file))).toEqual([]);
  });

  test("prints its version", async () => {
    const { stdout } = await runCommand(join(root, "app/bin/node"), [
      join(root, "app/dist/src/cli/main.js"),
      "version",
    ]);
    expect(stdout).toMatch(/^vmlet \d+\.\d+\.\d+ \(node 24\./);
  });

  test("loads every command", async () => {
    for (const command of ["run", "check", "backend", "conformance", "smoke", "node"]) {
      const { code, stderr } = await tryCommand(join(root, "app/bin/node"), [
        join(root, "app/dist/src/cli/main.js"),
        command,
        "--help",
      ]);
      expect([command, code, stderr]).toEqual([command, 0, ""]);
    }
  });

  test("carries no cluster of its own, and says so", async () => {
    const main = join(root, "app/dist/src/cli/main.js");
    const { code, stderr } = await tryCommand(join(root, "app/bin/node"), [main, "dev"]);
    expect([code, stderr]).toEqual([2, expect.stringContaining("vmlet dev is not in the container image")]);
  });

  test("gives its kit to a provider module that is mounted beside it", async () => {
    const module = join(sandbox.dir, "opt/provider.mjs");
    await mkdir(join(sandbox.dir, "opt"), { recursive: true });
    await writeFile(
      module,
      `import { ProviderError } from "vmlet/provider-kit";
       const getInfo = async () => { throw new ProviderError("unauthorized", "this is the module"); };
       export const createProvider = () => ({ getInfo, close: async () => {} });`,
    );
    const config = join(sandbox.dir, "opt/vmlet.yaml");
    const nodes = [{ name: "image", provider: { type: "module", module: "./provider.mjs" } }];
    const agent = { apiVersion: "vmlet.dev/v1", kind: "AgentConfig", kubeconfig: "none", nodes };
    await writeFile(config, JSON.stringify(agent));
    const main = join(root, "app/dist/src/cli/main.js");
    const { stdout } = await tryCommand(join(root, "app/bin/node"), [main, "check", "--config", config]);
    expect(stdout).toContain("answers, but not as it should: this is the module");
  });

  test("is the same whenever it is assembled", async () => {
    const again = join(sandbox.dir, "again");
    await assemble(again);
    expect(await digest(again)).toBe(await digest(root));
  }, 300_000);
});

describe.runIf(isRoot)(`on a read-only root, as an unprivileged user without capabilities,${reason}`, () => {
  let cluster: DevCluster;
  let client: Client;
  let agent: ManagedProcess;
  let healthUrl: string;

  beforeAll(async () => {
    const rootfs = join(sandbox.dir, "rootfs");
    await runCommand("cp", ["--archive", root, rootfs]);
    await addLibraries(rootfs);
    for (const folder of ["proc", "dev", "etc"]) await mkdir(join(rootfs, folder), { recursive: true });
    for (const device of ["null", "urandom"]) await writeFile(join(rootfs, "dev", device), "");
    const [healthPort, kubeletPort] = await freePorts(2);
    healthUrl = `http://127.0.0.1:${healthPort}`;
    cluster = await startDevCluster({ clock: systemClock, logger: silentLogger });
    await writeConfiguration(rootfs, { healthPort: healthPort!, kubeletPort: kubeletPort! });
    client = await createClient(join(rootfs, "etc/vmlet/kubeconfig"));
    const { ENTRYPOINT } = await dockerInstructions();
    // What a container runtime does: a mount namespace, the image as a root that is read only, the user, no new privileges.
    const script = `
      set -e
      mount --bind "$1" "$1"
      mount -t proc proc "$1/proc"
      mount --bind /dev/null "$1/dev/null"
      mount --bind /dev/urandom "$1/dev/urandom"
      mount -o remount,bind,ro "$1"
      cd /
      exec setpriv --no-new-privs chroot --userspec=${USER}:${USER} --groups=${USER} "$@"`;
    agent = sandbox.spawn(
      "agent",
      "unshare",
      ["--mount", "--", "sh", "-c", script, "sh", rootfs, ...ENTRYPOINT!, "run", "--config", "/etc/vmlet/vmlet.yaml"],
      { env: { PATH: process.env["PATH"] } },
    );
    const health = clientOf(healthUrl);
    await Promise.race([
      failWhenExited(agent),
      waitFor({ what: `the agent to be ready (log: ${agent.logFile})`, timeoutMs: 60_000 }, () =>
        health.text("/readyz"),
      ),
    ]);
    health.close();
  }, 120_000);
  afterAll(async () => {
    await agent?.stop();
    client?.close();
    await cluster?.close();
  });

  test("it may do nothing that is privileged", async () => {
    const status = await readFile(`/proc/${agent.pid}/status`, "utf8");
    const field = (name: string) => new RegExp(`^${name}:\\s+(.*)$`, "m").exec(status)?.[1]!.trim();
    expect(field("Uid")).toBe(Array(4).fill(USER).join("\t"));
    expect([field("CapEff"), field("CapPrm"), field("CapInh"), field("NoNewPrivs")]).toEqual([
      "0000000000000000",
      "0000000000000000",
      "0000000000000000",
      "1",
    ]);
  });

  test("it sees a root of its own that is read only", async () => {
    expect(await readlink(`/proc/${agent.pid}/root`)).toMatch(/rootfs$/);
    const mounts = await readFile(`/proc/${agent.pid}/mountinfo`, "utf8");
    const own = mounts.split("\n").find((line) => line.split(" ")[4] === "/");
    expect(own?.split(" ")[5]).toMatch(/^ro/);
  });

  test("it registers its node and runs a pod", async () => {
    await waitFor({ what: "the node to be Ready" }, async () => {
      const { status } = await client.get("/api/v1/nodes/image");
      must(
        status.conditions?.some(
          (each: { type: string; status: string }) => each.type === "Ready" && each.status === "True",
        ),
        status,
      );
    });
    await client.create("/api/v1/namespaces/default/pods", {
      metadata: { name: "in-image" },
      spec: { nodeName: "image", containers: [{ name: "main", image: "busybox" }] },
    });
    await waitFor({ what: "the pod to run" }, async () => {
      const { status } = await client.get("/api/v1/namespaces/default/pods/in-image");
      must(status.phase === "Running", status);
    });
  });

  async function writeConfiguration(rootfs: string, ports: { healthPort: number; kubeletPort: number }): Promise<void> {
    const folder = join(rootfs, "etc/vmlet");
    await mkdir(folder, { recursive: true });
    await writeFile(join(folder, "kubeconfig"), cluster.kubeConfigYaml);
    await writeFile(
      join(folder, "vmlet.yaml"),
      JSON.stringify({
        apiVersion: "vmlet.dev/v1",
        kind: "AgentConfig",
        clusterId: "image",
        kubeconfig: "/etc/vmlet/kubeconfig",
        health: { port: ports.healthPort },
        nodes: [
          {
            name: "image",
            provider: { type: "memory" },
            addresses: ["127.0.0.1"],
            kubelet: { port: ports.kubeletPort, certificate: "self-signed" },
          },
        ],
      }),
    );
    await chmod(join(folder, "kubeconfig"), 0o644);
  }
});

describe("the Dockerfile", () => {
  test("starts the tree that npm run assemble makes, as nobody", async () => {
    const { USER: user, ENTRYPOINT } = await dockerInstructions();
    expect(user).toEqual([`${USER}:${USER}`]);
    const files = new Set(await readdir(root, { recursive: true }));
    for (const path of ENTRYPOINT!.filter((word) => word.startsWith("/"))) expect(files).toContain(path.slice(1));
  });

  test("refuses bases that are not given by digest", async () => {
    const text = await readFile(join(import.meta.dirname, "../../Dockerfile"), "utf8");
    const check = /^RUN (for image[^]*?done)$/m.exec(text)![1]!.replaceAll("\\\n", "\n");
    const run = (image: string) =>
      tryCommand("sh", ["-c", check], {
        env: { PATH: process.env["PATH"], BUILD_IMAGE: "node@sha256:ab", BASE_IMAGE: image },
      });
    expect((await run("cc@sha256:ab")).code).toBe(0);
    expect((await run("cc:latest")).stderr).toContain("cc:latest: give the image by digest");
  });
});

/** Names, modes, times and contents of a tree. */
async function digest(folder: string): Promise<string> {
  const tar = `tar --create --sort=name --owner=0 --group=0 --numeric-owner --directory "$1" app | sha256sum`;
  return (await runCommand("sh", ["-c", tar, "sh", folder])).stdout;
}
