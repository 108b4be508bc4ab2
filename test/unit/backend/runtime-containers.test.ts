/** Containers of a runtime that is not there all the time. */
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer, type ServerHttp2Session } from "node:http2";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Code, ConnectError } from "@connectrpc/connect";
import { connectNodeAdapter } from "@connectrpc/connect-node";
import { expect, onTestFinished, test } from "vitest";
import { ContainerState, RuntimeService } from "../../../providers/local/engines/cri/api.gen.js";
import { CriClient } from "../../../providers/local/engines/cri/client.ts";
import { RuntimeContainers } from "../../../providers/local/engines/cri/containers.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";

/** A runtime with one container, `r`, whose starts are `onStart`'s; all its connections can be cut. */
async function runtime(onStart: (cut: () => void) => Promise<void>) {
  const dir = mkdtempSync(join(tmpdir(), "vmlet-runtime-"));
  const path = join(dir, "s");
  const container = { id: "r", state: ContainerState.CONTAINER_CREATED, starts: 0 };
  const sessions = new Set<ServerHttp2Session>();
  const cut = () => sessions.forEach((session) => session.destroy());
  const server = createServer(
    connectNodeAdapter({
      routes: (router) => {
        router.service(RuntimeService, {
          async startContainer() {
            container.starts++;
            await onStart(cut);
            container.state = ContainerState.CONTAINER_RUNNING;
            return {};
          },
          containerStatus: () => ({
            status: {
              id: "r",
              state: container.state,
              ...(container.state === ContainerState.CONTAINER_RUNNING && { startedAt: 1n }),
            },
          }),
          listContainers: () => ({ containers: [{ id: "r", state: container.state }] }),
          listPodSandbox: () => ({ items: [] }),
        });
      },
    }),
  ).listen(path);
  server.on("session", (session) => {
    sessions.add(session);
    session.once("close", () => sessions.delete(session));
  });
  await once(server, "listening");
  const client = new CriClient(path);
  const containers = new RuntimeContainers({
    client,
    clock: systemClock,
    logger: silentLogger,
    backend: "b",
    logLimits: { maxBytes: 1024, maxFiles: 2 },
  });
  containers.open();
  onTestFinished(() => {
    containers.close();
    client.close();
    cut();
    server.close();
    rmSync(dir, { recursive: true, force: true });
  });
  return { containers, container, ref: { name: "a", id: "i", dir, attempt: 0 } };
}

const command = { runtimeId: "r", tty: false, stdin: false, stdinOnce: false, socket: "" };

test("a container whose start was cut off is started by the runtime that comes after", async () => {
  const { containers, container, ref } = await runtime(async (cut) => {
    if (container.starts > 1) return;
    cut();
    throw new ConnectError("it has ended", Code.Unavailable);
  });
  await containers.start(ref, command);
  await new Promise<void>((started, ended) =>
    containers.watch(ref, "", { started: () => started(), exited: (exit) => ended(exit), gone() {} }),
  );
  expect(container.starts).toBe(2);
});

test("a container that the runtime refuses to start is told with the reason", async () => {
  const { containers, ref } = await runtime(() => Promise.reject(new ConnectError("exec: no such file", Code.Unknown)));
  await expect(containers.start(ref, command)).rejects.toThrow("exec: no such file");
});
