/** A runtime of the host's whose network comes after the backend, and may go. */
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:http2";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { connectNodeAdapter } from "@connectrpc/connect-node";
import { expect, onTestFinished, test } from "vitest";
import { createEngine } from "../../../providers/local/engines/index.ts";
import { RuntimeService } from "../../../providers/local/engines/cri/api.gen.js";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";

interface Told {
  status: boolean;
  reason?: string;
  message?: string;
}

/** An engine on a runtime that says of its network what `told` has at the time. */
async function engineOn(told: { network: Told | undefined }) {
  const dir = mkdtempSync(join(tmpdir(), "vmlet-runtime-"));
  const socket = join(dir, "s");
  const server = createServer(
    connectNodeAdapter({
      routes: (router) => {
        router.service(RuntimeService, {
          version: () => ({ runtimeName: "containerd", runtimeVersion: "v2.2.0" }),
          status: () => ({
            status: {
              conditions: [
                { type: "RuntimeReady", status: true },
                ...(told.network === undefined ? [] : [{ type: "NetworkReady", ...told.network }]),
              ],
            },
          }),
        });
      },
    }),
  );
  await once(server.listen(socket), "listening");
  const engine = createEngine({ type: "cri", socket }, { stateDir: dir, clock: systemClock, logger: silentLogger });
  onTestFinished(async () => {
    await engine.close();
    server.close();
    rmSync(dir, { recursive: true, force: true });
  });
  return engine;
}

const NOT_READY = { status: false, reason: "NetworkPluginNotReady", message: "cni plugin not initialized" };

test("the Node is told while there is no network, and when there is one", async () => {
  const told: { network: Told | undefined } = { network: NOT_READY };
  const engine = await engineOn(told);
  expect(await engine.conditions!()).toEqual([
    {
      type: "NetworkUnavailable",
      status: "True",
      reason: "NetworkPluginNotReady",
      message:
        "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:cni plugin not initialized",
    },
  ]);
  told.network = { status: true };
  expect(await engine.conditions!()).toMatchObject([{ type: "NetworkUnavailable", status: "False" }]);
});

test("a runtime that says nothing of its network has one", async () => {
  const engine = await engineOn({ network: undefined });
  expect(await engine.conditions!()).toMatchObject([{ status: "False" }]);
});

test("a runtime that does not answer says nothing: the Node keeps what it has", async () => {
  const options = { stateDir: "/nonexistent", clock: systemClock, logger: silentLogger };
  const engine = createEngine({ type: "cri", socket: "/nonexistent/s" }, options);
  onTestFinished(() => engine.close());
  expect(await engine.conditions!()).toEqual([]);
});

test("a lack of a network is told at the start, with what brings one, and lets the backend begin", async () => {
  const engine = await engineOn({ network: NOT_READY });
  const problems = await engine.check();
  expect(problems.find(({ problem }) => problem.includes("NetworkReady"))).toMatchObject({
    fatal: false,
    cure: expect.stringContaining("DaemonSet"),
  });
});
