/** What a user does with kubectl, through the real API server, against pods that run as machines. */
import { spawn } from "node:child_process";
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { get } from "node:http";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { Environment } from "./cases/environment.ts";
import { Pods, serve, shell } from "./cases/pods.ts";
import { startRealEnvironment } from "./cases/start.ts";
import { kubectlBinary } from "./harness/binaries.ts";
import { createKubectl, type Kubectl } from "./harness/kubectl.ts";
import { freePort } from "./harness/ports.ts";
import { must, waitFor } from "./harness/wait.ts";

let env: Environment;
let pods: Pods;
beforeAll(async () => {
  env = await startRealEnvironment({ nodeName: "vmlet-kubectl" });
  pods = new Pods(env.client, "default", env.nodeName);
}, 1_200_000);
afterAll(() => env?.[Symbol.asyncDispose]());

describe.each(["current", "old"] as const)("kubectl (%s)", (which) => {
  let kubectl: Kubectl;
  const name = (base: string) => `${base}-${which}`;
  beforeAll(async () => {
    kubectl = await createKubectl(env.kubeconfig, which);
  });

  test("get shows the node as Ready and the pod as Running on it", async () => {
    await pods.create(name("shown"), { containers: [shell("main", serve)] });
    await kubectl.run(["wait", `pod/${name("shown")}`, "--for=condition=Ready", "--timeout=60s"]);
    expect(await kubectl.run(["get", "nodes"])).toMatch(new RegExp(`^${env.nodeName}\\s+Ready\\s`, "m"));
    expect(await kubectl.run(["get", "pods", "-o", "wide"])).toMatch(
      new RegExp(`^${name("shown")}\\s+1/1\\s+Running\\s+0\\s.*\\s${env.nodeName}\\s`, "m"),
    );
  });

  test("logs prints what a container wrote, and its last lines only when asked", async () => {
    await pods.create(name("writes"), {
      restartPolicy: "Never",
      containers: [shell("main", "echo one; echo two >&2; echo three")],
    });
    await pods.untilPhase(name("writes"), "Succeeded");
    expect((await kubectl.run(["logs", name("writes")])).split("\n").toSorted()).toEqual(["", "one", "three", "two"]);
    expect((await kubectl.run(["logs", name("writes"), "--tail=1"])).trim()).not.toContain("\n");
  });

  test("logs -f follows a container to its end", async () => {
    await pods.create(name("counts"), {
      restartPolicy: "Never",
      containers: [shell("main", "for i in 1 2 3; do echo $i; sleep 1; done")],
    });
    await pods.until(name("counts"), "to run", (pod) => pod.status.phase === "Running");
    expect(await kubectl.run(["logs", "-f", name("counts")])).toBe("1\n2\n3\n");
  });

  test("logs --previous prints the output of the instance before", async () => {
    const file = join(env.dir, name("second-try"));
    const script = `if [ -e ${file} ]; then echo second; ${serve}; else touch ${file}; echo first; exit 1; fi`;
    await pods.create(name("restarts"), { containers: [shell("main", script)] });
    await pods.until(name("restarts"), "to run again", (pod) => pod.status.containerStatuses?.[0]?.restartCount === 1);
    expect(await kubectl.run(["logs", "--previous", name("restarts")])).toBe("first\n");
  });

  test("exec passes input, both outputs and the exit code", async () => {
    await pods.create(name("executes"), { containers: [shell("main", serve)] });
    await pods.untilReady(name("executes"));
    const result = await kubectl.try(
      ["exec", "-i", name("executes"), "--", "sh", "-c", "cat; echo problem >&2; exit 42"],
      { input: "hello" },
    );
    expect(result).toMatchObject({ code: 42, stdout: "hello" });
    expect(result.stderr).toContain("problem");
  });

  test("cp brings a file there and back unchanged", async () => {
    await pods.create(name("copies"), { containers: [shell("main", serve)] });
    await pods.untilReady(name("copies"));
    const folder = join(env.dir, name("cp"));
    await mkdir(folder);
    const content = Buffer.alloc(3_000_000, "0123456789abcdef\n");
    await writeFile(join(folder, "from"), content);
    await kubectl.run(["cp", join(folder, "from"), `${name("copies")}:${join(folder, "there")}`]);
    await kubectl.run(["cp", `${name("copies")}:${join(folder, "there")}`, join(folder, "back")]);
    expect((await readFile(join(folder, "back"))).equals(content)).toBe(true);
  });

  test("port-forward reaches a server in the pod", async () => {
    const port = await freePort();
    const script = `require("http").createServer((_, reply) => reply.end("from the pod")).listen(${port}, "127.0.0.1")`;
    await pods.create(name("listens"), {
      containers: [
        { ...shell("main", ""), command: [process.execPath, "-e", script], ports: [{ containerPort: port }] },
      ],
    });
    await pods.untilReady(name("listens"));
    const local = await freePort();
    const child = spawn(await kubectlBinary(which), ["port-forward", name("listens"), `${local}:${port}`], {
      env: { KUBECONFIG: env.kubeconfig, HOME: env.dir, PATH: process.env["PATH"] },
      stdio: "ignore",
    });
    try {
      const body = await waitFor({ what: "an answer through the forwarded port" }, () => fetchText(local));
      expect(body).toBe("from the pod");
    } finally {
      child.kill("SIGKILL");
    }
  });

  test("delete waits until the pod is gone", async () => {
    await pods.create(name("leaves"), { containers: [shell("main", serve)] });
    await pods.untilReady(name("leaves"));
    await kubectl.run(["delete", "pod", name("leaves"), "--timeout=30s"]);
    expect((await kubectl.try(["get", "pod", name("leaves")])).stderr).toContain("NotFound");
  });
});

function fetchText(port: number): Promise<string> {
  return new Promise((resolve, reject) => {
    get({ host: "127.0.0.1", port, agent: false }, (reply) => {
      let text = "";
      reply.on("data", (chunk: Buffer) => (text += chunk.toString()));
      reply.on("end", () => resolve(text));
    }).once("error", reject);
  }).then((text) => {
    must(text !== "", "an empty answer");
    return text as string;
  });
}
