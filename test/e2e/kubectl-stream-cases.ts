/**
 * What every combination of kubectl's version and transport must show alike: exec, attach, cp and port-forward. The pods are
 * made once, since the cases only talk to them.
 */
import { mkdtemp, readFile, writeFile } from "node:fs/promises";
import { connect } from "node:net";
import { join } from "node:path";
import { randomBytes } from "node:crypto";
import { beforeAll, describe, expect, test } from "vitest";
import type { Environment } from "./cases/environment.ts";
import { Pods, serve, shell } from "./cases/pods.ts";
import { workload } from "./cases/workload.ts";
import { runCommand } from "./harness/exec.ts";
import { createKubectl, type Kubectl } from "./harness/kubectl.ts";
import { freePorts } from "./harness/ports.ts";
import { must, waitFor } from "./harness/wait.ts";
import {
  Digest,
  kubectlTerminal,
  memoryGrowth,
  roundTrip,
  sha256,
  startForward,
  startKubectl,
  untilAtRest,
  type Transport,
  type Version,
} from "./kubectl-support.ts";

/** Pods that the cases talk to. */
export interface StreamPods {
  pods: Pods;
  /** A shell that waits; two containers, `main` and `side`. */
  shell: string;
  /** A shell on a terminal that repeats what is typed. */
  terminal: string;
  /** A pod that repeats its standard input until that ends. */
  echo: string;
  /** A server: HTTP on `httpPort`; on `echoPort` TCP that answers when the client has ended its half. */
  server: string;
  httpPort: number;
  echoPort: number;
}

const serverProgram = (httpPort: number, echoPort: number) => `
  require("node:http").createServer((request, reply) => reply.end("from the pod")).listen(${httpPort}, "127.0.0.1");
  require("node:net").createServer({ allowHalfOpen: true }, (socket) => {
    const chunks = [];
    socket.on("data", (chunk) => chunks.push(chunk));
    socket.on("end", () => socket.end(Buffer.concat(chunks)));
    socket.on("error", () => {});
  }).listen(${echoPort}, "127.0.0.1");`;

export async function createStreamPods(env: Environment): Promise<StreamPods> {
  const pods = new Pods(env.client, "default", env.nodeName);
  const [httpPort, echoPort] = (await freePorts(2)) as [number, number];
  await Promise.all([
    pods.create("shell", { containers: [shell("main", serve), shell("side", serve)] }),
    pods.create("terminal", {
      containers: [shell("main", 'while read -r line; do echo "got $line"; done', { stdin: true, tty: true })],
    }),
    pods.create("echo", { containers: [shell("main", "cat", { stdin: true })] }),
    pods.create("server", {
      containers: [{ ...shell("main", ""), command: [workload().node, "-e", serverProgram(httpPort, echoPort)] }],
    }),
  ]);
  const names = { shell: "shell", terminal: "terminal", echo: "echo", server: "server" };
  await Promise.all(Object.values(names).map((name) => pods.untilReady(name)));
  return { pods, ...names, httpPort, echoPort };
}

export function describeStreams(
  variant: { version: Version; transport: Transport },
  place: () => { env: Environment; on: StreamPods },
  options: { largeReadMiB?: number; copyMiB: number },
): void {
  const { version, transport } = variant;
  const { largeReadMiB = 0 } = options;
  describe(`kubectl (${version}) over ${transport} [X05]`, () => {
    let kubectl: Kubectl;
    let env: Environment;
    let on: StreamPods;
    beforeAll(async () => {
      ({ env, on } = place());
      kubectl = await createKubectl(env.kubeconfig, version, transport === "WebSocket");
    });

    test("exec keeps both outputs apart and passes the exit code on [X01]", async () => {
      const result = await kubectl.try(["exec", on.shell, "--", "sh", "-c", "echo out; echo problem >&2; exit 3"]);
      expect(result).toMatchObject({ code: 3, stdout: "out\n" });
      expect(result.stderr).toMatch(/^problem$/m);
    });

    test("exec -it has a terminal of kubectl's size, and follows its changes [X02]", async () => {
      const script =
        'until [ "$(stty size)" = "17 91" ]; do sleep 0.05; done; echo initial-size; ' +
        "trap 'stty size; exit 7' WINCH; echo waiting; while :; do sleep 0.1; done";
      const terminal = kubectlTerminal(kubectl, ["exec", "-it", on.shell, "--", "sh", "-c", script], {
        cols: 91,
        rows: 17,
      });
      await terminal.shows("initial-size");
      await terminal.shows("waiting");
      terminal.resize(92, 18);
      await terminal.shows("18 92");
      expect(await terminal.exitCode).toBe(7);
    });

    test("exec -i ends its command with the end of the input, of any length [X03]", async () => {
      const input = "a line of input\n".repeat(100_000);
      const { code, stdout } = await kubectl.try(["exec", "-i", on.shell, "--", "cat"], { input });
      expect({ code, sha: sha256(Buffer.from(stdout)) }).toEqual({ code: 0, sha: sha256(Buffer.from(input)) });
    });

    test("cp carries a file there and back unchanged [X04]", async () => {
      // The old kubectl may begin to read before it has made its streams, and lose the first data: then it is tried again.
      const folder = await mkdtemp(join(env.dir, `cp-${version}-${transport}-`));
      const content = randomBytes(options.copyMiB * 1024 * 1024);
      await writeFile(join(folder, "from"), content);
      const there = join(workload().seesHost ? folder : "/tmp", `there-${version}-${transport}`);
      await kubectl.run(["cp", join(folder, "from"), `${on.shell}:${there}`]);
      await kubectl.run(["cp", `${on.shell}:${there}`, join(folder, "back")]);
      expect(sha256(await readFile(join(folder, "back")))).toBe(sha256(content));
    });

    test("port-forward serves HTTP, twenty half-closing connections at a time, and one held open throughout [X06]", async () => {
      const http = await startForward(kubectl, on.server, on.httpPort);
      const echo = await startForward(kubectl, on.server, on.echoPort);
      try {
        const held = connect({ port: echo.port, host: "127.0.0.1", allowHalfOpen: true });
        const heldChunks: Buffer[] = [];
        held.on("data", (chunk: Buffer) => heldChunks.push(chunk));
        held.write("first ");
        expect(await (await fetch(`http://127.0.0.1:${http.port}`)).text()).toBe("from the pod");
        const payloads = Array.from({ length: 20 }, (_, index) => randomBytes(20_000 * (index + 1)));
        const echoed = await Promise.all(payloads.map((payload) => roundTrip(echo.port, payload)));
        expect(echoed.map(sha256)).toEqual(payloads.map(sha256));
        held.end("last");
        await new Promise((resolve) => held.once("end", resolve));
        expect(Buffer.concat(heldChunks).toString()).toBe("first last");
      } finally {
        await http.stop();
        await echo.stop();
      }
    });

    test("exec takes a command of 20,000 characters", async () => {
      const word = "a".repeat(20_000);
      expect(await kubectl.run(["exec", on.shell, "--", "echo", word])).toBe(`${word}\n`);
    });

    test("exec in a container that is not there says so at once [X07]", async () => {
      const { code, stderr } = await kubectl.try(["exec", on.shell, "-c", "missing", "--", "ls"]);
      expect(code).toBe(1);
      expect(stderr).toContain("container missing is not valid for pod shell");
    });

    test("exec of a program that is not there says so", async () => {
      const { code, stderr } = await kubectl.try(["exec", on.shell, "--", "no-such-program"]);
      expect(code).not.toBe(0);
      expect(stderr).toContain("no-such-program");
    });

    test("attach -it types into a running terminal and leaves the pod running [X09]", async () => {
      const terminal = kubectlTerminal(kubectl, ["attach", "-it", on.terminal]);
      await waitFor({ what: "the pod to answer what is typed", intervalMs: 200 }, () => {
        terminal.write(`typed over ${transport}\r`);
        must(terminal.output().includes(`got typed over ${transport}`), terminal.output());
      });
      terminal.kill();
      expect((await on.pods.get(on.terminal)).status.containerStatuses[0].state.running).toBeDefined();
    });

    test("attach -i ends with its input and leaves a container running that keeps its own open", async () => {
      const { code, stderr } = await kubectl.try(["attach", "-i", on.echo], {
        input: `ended ${version} ${transport}\n`,
      });
      expect({ code, stderr }).toMatchObject({ code: 0 });
      await waitFor({ what: "the container to repeat the input" }, async () =>
        must((await kubectl.run(["logs", on.echo])).includes(`ended ${version} ${transport}`), "not yet"),
      );
      expect((await on.pods.get(on.echo)).status.containerStatuses[0].state.running).toBeDefined();
    });

    test("run -it --rm shows the program's output, removes the pod and passes its exit code on [X09]", async () => {
      const name = `run-${version}-${transport.toLowerCase()}`;
      const args = ["run", name, "-it", "--rm", "--restart=Never", `--image=${workload().image}`, "--command", "--"];
      const terminal = kubectlTerminal(kubectl, [...args, "sh", "-c", 'read -r line; echo "got $line"; exit 4']);
      await waitFor({ what: "the program to answer what is typed", intervalMs: 200 }, () => {
        terminal.write("hello\r");
        must(terminal.output().includes("got hello"), terminal.output());
      });
      expect(await terminal.exitCode).toBe(4);
      await expect(on.pods.get(name)).rejects.toMatchObject({ status: 404 });
    });

    test("port-forward to a port where nobody listens tells why and ends the connection [X13]", async () => {
      const forward = await startForward(kubectl, on.server, 1);
      try {
        const socket = connect(forward.port, "127.0.0.1");
        const ended = new Promise((resolve) => socket.once("close", resolve));
        socket.on("error", () => undefined).resume();
        await ended;
        await waitFor({ what: "kubectl to tell why" }, () =>
          must(/error forwarding port 1 to pod server, uid [0-9a-f-]{36}: /.test(forward.output()), forward.output()),
        );
      } finally {
        await forward.stop();
      }
    });

    test("killing kubectl ends its command in the pod", async () => {
      const mark = `31536.${version === "current" ? 1 : 2}${transport === "SPDY" ? 1 : 2}`;
      const running = startKubectl(kubectl, ["exec", on.shell, "--", "sh", "-c", `echo begun; exec sleep ${mark}`]);
      await waitFor({ what: "the command to run" }, () => must(running.output().includes("begun"), running.output()));
      await running.stop();
      await waitFor({ what: "the command to be gone" }, async () =>
        must((await kubectl.try(["exec", on.shell, "--", "pgrep", "-f", `^sleep ${mark}$`])).code === 1, "it runs"),
      );
    });

    if (largeReadMiB > 0)
      test(`exec loses nothing of ${largeReadMiB} MiB whose reader pauses, and the agent does not hold it [X11]`, async () => {
        const size = largeReadMiB * 1024 * 1024;
        const digest = new Digest();
        const growth = await memoryGrowth(env.agent.pid, async () => {
          const { child } = startKubectl(
            kubectl,
            ["exec", on.shell, "--", "sh", "-c", `${pattern} | head -c ${size}`],
            digest,
          );
          await waitFor({ what: "the first tenth", intervalMs: 5 }, () => must(digest.bytes > size / 10, digest.bytes));
          // What the reader does not take must wait in the pod, not in the agent.
          child.kill("SIGSTOP");
          await untilAtRest(env.agent.pid);
          expect(digest.bytes).toBeLessThan(size);
          child.kill("SIGCONT");
          await new Promise((resolve) => child.once("close", resolve));
        });
        expect(digest.bytes).toBe(size);
        expect(digest.hex()).toBe(
          (await runCommand("sh", ["-c", `${pattern} | head -c ${size} | sha256sum`])).stdout.slice(0, 64),
        );
        expect(growth).toBeLessThan(150);
      });
  });
}

/** Bytes in an order, so that a lost or doubled piece shows. */
const pattern = "seq 1 999999999";
