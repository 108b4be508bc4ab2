/** The real kubectl, two versions, over SPDY and over WebSockets, through the forwarding of an API server to the kubelet API. */
import { createHash } from "node:crypto";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { connect, createServer, type AddressInfo, type Socket } from "node:net";
import { spawn, type ChildProcess } from "node:child_process";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { spawn as spawnPty } from "@lydell/node-pty";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { ProviderError } from "../../../src/provider/errors.ts";
import { kubectlBinary } from "../../e2e/harness/binaries.ts";
import { tryCommand } from "../../e2e/harness/exec.ts";
import { must, waitFor } from "../../e2e/harness/wait.ts";
import { startFakeApi, startKubelet, type TestKubelet } from "./support.ts";

const VERSIONS = ["current", "old"] as const;
const TRANSPORTS = ["WebSocket", "SPDY"] as const;
const CASES = VERSIONS.flatMap((version) => TRANSPORTS.map((transport) => ({ version, transport })));

describe.skipIf(process.arch !== "x64" || process.platform !== "linux").each(CASES)(
  "kubectl ($version) over $transport",
  ({ version, transport }) => {
    let kubelet: TestKubelet;
    let api: Awaited<ReturnType<typeof startFakeApi>>;
    let dir: string;
    let binary: string;
    let env: NodeJS.ProcessEnv;

    beforeAll(async () => {
      binary = await kubectlBinary(version);
      kubelet = await startKubelet();
      api = await startFakeApi(kubelet);
      dir = await mkdtemp(join(tmpdir(), "vmlet-kubectl-"));
      const config = {
        apiVersion: "v1",
        kind: "Config",
        "current-context": "test",
        contexts: [{ name: "test", context: { cluster: "test", user: "test" } }],
        clusters: [{ name: "test", cluster: { server: api.url } }],
        users: [{ name: "test", user: {} }],
      };
      await writeFile(join(dir, "kubeconfig"), JSON.stringify(config));
      const webSockets = String(transport === "WebSocket");
      env = {
        PATH: process.env["PATH"],
        HOME: dir,
        KUBECONFIG: join(dir, "kubeconfig"),
        KUBECTL_REMOTE_COMMAND_WEBSOCKETS: webSockets,
        KUBECTL_PORT_FORWARD_WEBSOCKETS: webSockets,
      };
    });
    afterAll(async () => {
      await api[Symbol.asyncDispose]();
      await kubelet[Symbol.asyncDispose]();
      await rm(dir, { recursive: true });
    });

    const kubectl = (args: string[], input?: string) => tryCommand(binary, args, { env, input });

    test("keeps stdout, stderr and the exit code of a command apart", async () => {
      const result = await kubectl(["exec", "p", "--", "sh", "-c", "echo out; echo err >&2; exit 3"]);
      expect(result).toMatchObject({ code: 3, stdout: "out\n" });
      expect(result.stderr).toContain("err\n");
    });

    test("ends a command by the end of its input", async () => {
      const input = "line\n".repeat(60_000);
      const { code, stdout } = await kubectl(["exec", "-i", "p", "--", "cat"], input);
      expect([code, stdout === input]).toEqual([0, true]);
    });

    test("loses nothing of a large output", async () => {
      const { stdout } = await kubectl(["exec", "p", "--", "sh", "-c", "seq 1 2000000 | sha256sum; seq 1 2000000"]);
      const [sum = "", ...lines] = stdout.split("\n");
      expect(createHash("sha256").update(lines.join("\n")).digest("hex")).toBe(sum.split(" ")[0]);
    });

    test("gives a terminal its size, at the start and when it changes", async () => {
      const pty = spawnPty(binary, ["exec", "-it", "p", "--", "sh", "-c", "read _; stty size"], {
        cols: 91,
        rows: 17,
        env,
      });
      let output = "";
      pty.onData((data) => (output += data));
      const sizes = kubelet.provider.resizes;
      await waitFor({ what: "the first size arrived" }, () =>
        must(
          sizes.some(([columns]) => columns === 91),
          "not yet",
        ),
      );
      pty.resize(92, 18);
      await waitFor({ what: "the second size arrived" }, () =>
        must(
          sizes.some(([columns]) => columns === 92),
          "not yet",
        ),
      );
      pty.write("\r");
      await new Promise((resolve) => pty.onExit(resolve));
      expect(output).toContain("18 92");
    });

    test("says before anything runs that a container does not exist", async () => {
      const { code, stderr } = await kubectl(["exec", "p", "-c", "missing", "--", "ls"]);
      expect([code, stderr]).toEqual([1, expect.stringContaining("missing")]);
    });

    test.each(["exec p -- true", "attach p", "cp /etc/hostname p:/tmp/x"])(
      "says why %s was refused, although the reason has a colon in it",
      async (args) => {
        const { exec, attach } = kubelet.provider;
        const down = () => Promise.reject(new ProviderError("unavailable", "GET /v1/x failed: connect ECONNREFUSED"));
        Object.assign(kubelet.provider, { exec: down, attach: down });
        try {
          const { code, stderr } = await kubectl(args.split(" "));
          expect([code, stderr]).toEqual([
            1,
            expect.stringContaining("the backend of node vm-1 is unavailable: GET /v1/x failed: connect ECONNREFUSED"),
          ]);
        } finally {
          Object.assign(kubelet.provider, { exec, attach });
        }
      },
    );

    test("says why a port-forward was refused", async () => {
      const { portForward } = kubelet.provider;
      Object.assign(kubelet.provider, { portForward: undefined });
      try {
        const { code, stderr } = await kubectl(["port-forward", "p", ":80"]);
        expect([code, stderr]).toEqual([
          1,
          expect.stringContaining("the backend process-test cannot forward ports: it lacks capability port_forward"),
        ]);
      } finally {
        Object.assign(kubelet.provider, { portForward });
      }
    });

    test("ends the command in the machine when it is killed", async () => {
      const child = spawn(binary, ["exec", "p", "--", "sleep", "1000"], { env, stdio: "ignore" });
      await waitFor({ what: "the session is open" }, () => must(kubelet.provider.openSessions === 1, "not yet"));
      child.kill("SIGKILL");
      await waitFor({ what: "the session is over" }, () => must(kubelet.provider.openSessions === 0, "not yet"));
    });

    test("attaches to a running process", async () => {
      const { code, stdout } = await kubectl(["attach", "-i", "-q", "p"], "typed\n");
      expect([code, stdout]).toEqual([0, "attached\ntyped\n"]);
    });

    test("copies files both ways", async () => {
      const bytes = Buffer.alloc(10_000_000, "0123456789abcdef");
      await writeFile(join(dir, "here"), bytes);
      await kubectl(["cp", join(dir, "here"), `p:${join(dir, "there")}`]);
      await kubectl(["cp", `p:${join(dir, "there")}`, join(dir, "back")]);
      expect((await readFile(join(dir, "back"))).equals(bytes)).toBe(true);
    });

    test("serves twenty sessions at a time", async () => {
      const results = await Promise.all(
        Array.from({ length: 20 }, (_, i) => kubectl(["exec", "p", "--", "echo", String(i)])),
      );
      expect(results.map(({ stdout }) => stdout.trim())).toEqual(Array.from({ length: 20 }, (_, i) => String(i)));
    });

    test("forwards connections in parallel, each with its half-close", async () => {
      const echo = createServer({ allowHalfOpen: true }, (socket) => socket.on("error", () => {}).pipe(socket));
      await new Promise<void>((resolve) => echo.listen(0, "127.0.0.1", resolve));
      const forward = await startForward(binary, env, (echo.address() as AddressInfo).port);
      const sizes = Array.from({ length: 20 }, (_, i) => 10_000 * (i + 1));
      const echoed = await Promise.all(sizes.map((size) => roundTrip(forward.port, size)));
      forward.child.kill();
      echo.close();
      expect(echoed).toEqual(sizes);
    });

    test("says that nobody listens on a forwarded port", async () => {
      const forward = await startForward(binary, env, 1);
      const socket = connect(forward.port, "127.0.0.1");
      socket.on("error", () => {}).resume();
      await waitFor({ what: "kubectl told why" }, () =>
        must(forward.output().includes("error forwarding port 1 to pod p, uid uid-1"), "not yet"),
      );
      socket.destroy();
      forward.child.kill();
    });

    test("shows logs with kubectl's options", async () => {
      kubelet.provider.lines.length = 0;
      for (let i = 1; i <= 5; i++) kubelet.provider.log(`line ${i}`, { at: `2026-01-01T00:00:0${i}.5Z` });
      const outputs = await Promise.all([
        kubectl(["logs", "p", "--tail=2"]),
        kubectl(["logs", "p", "--tail=0"]),
        kubectl(["logs", "p", "--timestamps", "--tail=1"]),
        kubectl(["logs", "p", "--limit-bytes=10"]),
        kubectl(["logs", "p", "--since-time=2026-01-01T00:00:05Z"]),
      ]);
      expect(outputs.map(({ stdout }) => stdout)).toEqual([
        "line 4\nline 5\n",
        "",
        "2026-01-01T00:00:05.500000000Z line 5\n",
        "line 1\nlin",
        "line 5\n",
      ]);
    });
  },
);

async function startForward(binary: string, env: NodeJS.ProcessEnv, remotePort: number) {
  const child: ChildProcess = spawn(binary, ["port-forward", "p", `:${remotePort}`, "--address=127.0.0.1"], {
    env,
    stdio: "pipe",
  });
  let output = "";
  for (const stream of [child.stdout!, child.stderr!])
    stream.on("data", (chunk: Buffer) => (output += chunk.toString()));
  const port = await waitFor({ what: "kubectl listens" }, () => {
    const found = /127\.0\.0\.1:(\d+) ->/.exec(output)?.[1];
    must(found !== undefined, output);
    return found;
  });
  return { child, port: Number(port), output: () => output };
}

/** Sends so many bytes, ends, and returns how many came back. */
function roundTrip(port: number, size: number): Promise<number> {
  return new Promise((resolve, reject) => {
    const socket: Socket = connect({ port, host: "127.0.0.1", allowHalfOpen: true });
    let received = 0;
    socket.on("data", (chunk: Buffer) => (received += chunk.length));
    socket.on("end", () => resolve(received));
    socket.on("error", reject);
    socket.end(Buffer.alloc(size));
  });
}
