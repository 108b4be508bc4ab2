/**
 * What a user is told when a session cannot be had: the API server passes the kubelet's refusal on, or makes one of its own where it
 * translates.
 */
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { Pods, shell } from "./cases/pods.ts";
import { startRealEnvironment } from "./cases/start.ts";
import { createKubectl } from "./harness/kubectl.ts";
import { transports, versions } from "./kubectl-support.ts";

const variants = versions.flatMap((version) => transports.map((transport) => ({ version, transport })));

describe.each([
  ["passes WebSockets on", []],
  ["translates WebSockets to SPDY", ["--feature-gates=ExtendWebSocketsToKubelet=false"]],
])("with an API server that %s", (_how, apiServerFlags) => {
  let env: Awaited<ReturnType<typeof startRealEnvironment>>;
  beforeAll(async () => {
    env = await startRealEnvironment({
      nodeName: "vmlet-refused",
      node: { taints: [] },
      cluster: { apiServerFlags },
    });
    const pods = new Pods(env.client, "default", env.nodeName);
    await pods.create("alone", { containers: [shell("main", "sleep infinity")] });
    await pods.untilReady("alone");
    await env.backend.kill("SIGKILL");
  }, 1_200_000);
  afterAll(() => env?.[Symbol.asyncDispose]());

  const why = `the backend of node vmlet-refused is unavailable: `;

  test.each(variants)("kubectl $version says over $transport that the backend is down", async (variant) => {
    const kubectl = await createKubectl(env.kubeconfig, variant.version, variant.transport === "WebSocket");
    for (const args of ["exec alone -- true", "attach alone", "cp /etc/hostname alone:/tmp/x"]) {
      const { code, stderr } = await kubectl.try(args.split(" "));
      expect([args, code, stderr]).toEqual([args, 1, expect.stringContaining(why)]);
    }
  });
});
