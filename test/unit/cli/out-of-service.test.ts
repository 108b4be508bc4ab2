/** What the driver of volumes believes of a node by its taints: only what the API server says makes it stop machines. */
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { readOutOfService } from "../../../src/cli/out-of-service.ts";
import { collectingLogger } from "../../support/collecting-logger.ts";
import { failure, type Handler, json, KubeServer } from "../../support/kube-server.ts";

const TAINT = { key: "node.kubernetes.io/out-of-service", value: "nodeshutdown", effect: "NoExecute" };

describe("a node", () => {
  let server: KubeServer;
  let folder: string;
  let logger: ReturnType<typeof collectingLogger>;
  let nodes: ReturnType<typeof readOutOfService>;

  beforeEach(async () => {
    server = await KubeServer.start();
    folder = mkdtempSync(join(tmpdir(), "out-of-service-"));
    const kubeconfig = join(folder, "kubeconfig");
    writeFileSync(kubeconfig, server.kubeConfig().exportConfig());
    logger = collectingLogger();
    nodes = readOutOfService({ kubeconfig, logger });
  });
  afterEach(async () => {
    vi.restoreAllMocks();
    await nodes.close();
    await server.stop();
    rmSync(folder, { recursive: true });
  });

  const saying = (taints: readonly object[] | undefined) =>
    (server.handler = (_request, reply) => json(reply, 200, { spec: { taints } }));
  const ask = (name = "burst-0", signal = new AbortController().signal) => nodes.isOutOfService(name, signal);

  test("is out of service when its owner has tainted it so, whatever else it is", async () => {
    saying([{ key: "node.kubernetes.io/unreachable", effect: "NoSchedule" }, TAINT]);
    expect(await ask()).toBe(true);
    expect(server.received.map(({ method, url }) => `${method} ${url}`)).toEqual(["GET /api/v1/nodes/burst-0"]);
  });

  test.each<[string, object[] | undefined]>([
    ["no taints", undefined],
    ["the taint of a node that is out of sight", [{ key: "node.kubernetes.io/unreachable", effect: "NoExecute" }]],
    ["a taint that begins alike", [{ key: `${TAINT.key}-soon`, effect: "NoExecute" }]],
  ])("with %s is in service", async (_what, taints) => {
    saying(taints);
    expect(await ask()).toBe(false);
    expect(logger.lines).toEqual([]);
  });

  test("is asked for anew each time: the taint may be taken away", async () => {
    saying([TAINT]);
    expect(await ask()).toBe(true);
    saying([]);
    expect(await ask()).toBe(false);
  });

  test.each<[string, Handler]>([
    ["is gone", (_request, reply) => json(reply, 404, failure(404, "NotFound"))],
    ["may not be read", (_request, reply) => json(reply, 403, failure(403, "Forbidden"))],
  ])("that %s counts as in service, and the log says so", async (_why, handler) => {
    server.handler = handler;
    expect(await ask()).toBe(false);
    expect(logger.lines).toMatchObject([{ level: "warn", fields: { node: "burst-0" } }]);
  });

  test("that the API server does not tell of in time counts as in service", async () => {
    const time = new AbortController();
    vi.spyOn(AbortSignal, "timeout").mockReturnValue(time.signal);
    server.handler = () => time.abort(new Error("time is up"));
    expect(await ask()).toBe(false);
    expect(logger.lines).toHaveLength(1);
  });

  test("counts as in service for a caller that is gone", async () => {
    saying([TAINT]);
    expect(await ask("burst-0", AbortSignal.abort())).toBe(false);
  });

  test("by a name that would be another path is not asked for", async () => {
    saying([TAINT]);
    expect(await ask("../nodes/burst-0")).toBe(false);
    expect(server.received).toEqual([]);
  });
});
