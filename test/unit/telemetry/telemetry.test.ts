import { execFile } from "node:child_process";
import { once } from "node:events";
import { connect, type Socket } from "node:net";
import { afterEach, describe, expect, test } from "vitest";
import { HealthChecks, startHealthServer } from "../../../src/telemetry/health.ts";
import { silentLogger as logger } from "../../../src/telemetry/logger.ts";
import { createMetrics, unusedMetrics } from "../../../src/telemetry/metrics.ts";

async function serve(livez: HealthChecks, readyz: HealthChecks) {
  const server = await startHealthServer({
    host: "127.0.0.1",
    port: 0,
    livez,
    readyz,
    metrics: unusedMetrics(),
    logger,
  });
  const get = async (path: string, method = "GET") => {
    const response = await fetch(`http://127.0.0.1:${server.port}${path}`, { method });
    return { status: response.status, body: await response.text() };
  };
  return { get, [Symbol.asyncDispose]: () => server.close() };
}

describe("health endpoints", () => {
  test("answer ok, and every check with ?verbose", async () => {
    await using it = await serve(new HealthChecks("livez"), new HealthChecks("readyz"));
    expect(await it.get("/livez")).toEqual({ status: 200, body: "ok" });
    expect(await it.get("/readyz?verbose")).toEqual({ status: 200, body: "[+]ping ok\nreadyz check passed\n" });
  });

  test("name what fails with 500", async () => {
    const readyz = new HealthChecks("readyz");
    readyz.add("informer-sync", () => "pods are not listed yet");
    await using it = await serve(new HealthChecks("livez"), readyz);
    expect(await it.get("/readyz")).toEqual({
      status: 500,
      body: "[+]ping ok\n[-]informer-sync failed: pods are not listed yet\nreadyz check failed\n",
    });
    expect((await it.get("/livez")).status).toBe(200);
  });

  test("take a check that throws for one that fails", async () => {
    const livez = new HealthChecks("livez");
    livez.add("loop", () => Promise.reject(new Error("stuck")));
    await using it = await serve(livez, new HealthChecks("readyz"));
    expect((await it.get("/livez")).body).toContain("[-]loop failed: stuck");
  });

  test("leave out what is excluded, and answer for a single check", async () => {
    const livez = new HealthChecks("livez");
    livez.add("loop", () => "stuck");
    await using it = await serve(livez, new HealthChecks("readyz"));
    const statuses = await Promise.all(
      ["/livez?exclude=loop", "/livez/ping", "/livez/loop", "/livez/none"].map((path) => it.get(path)),
    );
    expect(statuses.map(({ status }) => status)).toEqual([200, 200, 500, 404]);
  });

  test("serve metrics and nothing else", async () => {
    await using it = await serve(new HealthChecks("livez"), new HealthChecks("readyz"));
    expect((await it.get("/metrics")).body).toContain("# TYPE kubelet_running_pods gauge");
    expect((await it.get("/pods")).status).toBe(404);
    expect((await it.get("/livez", "POST")).status).toBe(405);
  });
});

describe("the health port", () => {
  const open: Socket[] = [];
  afterEach(() => {
    for (const socket of open.splice(0)) socket.destroy();
  });

  async function serveMetrics(text: string) {
    const metrics = unusedMetrics();
    metrics.render = () => Promise.resolve(text);
    const checks = { livez: new HealthChecks("livez"), readyz: new HealthChecks("readyz") };
    const server = await startHealthServer({ host: "127.0.0.1", port: 0, probePort: 0, ...checks, metrics, logger });
    const reach = (request: string) => {
      const socket = connect({ port: server.port, host: "127.0.0.1" }).on("error", () => {});
      open.push(socket);
      socket.write(request);
      return socket;
    };
    const probe = async (port = server.port) => (await fetch(`http://127.0.0.1:${port}/livez`)).status;
    return { server, reach, probe, [Symbol.asyncDispose]: () => server.close() };
  }

  test.each([
    ["say nothing", ""],
    ["begin a request and stop", "GET /livez HTTP/1.1\r\nHost: x\r\nX-Slow: "],
  ])("answers each probe while two thousand connections %s, and come back when they are cut", async (_what, bytes) => {
    await using it = await serveMetrics("");
    let attacking = true;
    const attack = () => {
      if (attacking) it.reach(bytes).once("close", attack);
    };
    for (let i = 0; i < 2000; i++) attack();
    const statuses: number[] = [];
    for (let i = 0; i < 30; i++) statuses.push(await it.probe());
    attacking = false;
    expect(statuses).toEqual(statuses.map(() => 200));
  });

  test("breaks off the oldest of many scrapes that nobody reads: each is held in memory", async () => {
    await using it = await serveMetrics("#".repeat(32 * 1024 * 1024));
    const first = it.reach("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    await once(first, "readable");
    const cut = once(first, "close");
    const others = Array.from({ length: 32 }, () => it.reach("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"));
    await Promise.all(others.map((socket) => once(socket, "readable")));
    first.resume();
    await cut;
    expect(await it.probe()).toBe(200);
  });

  test("renders the metrics once for all who ask at the same moment", async () => {
    let renders = 0;
    const metrics = unusedMetrics();
    metrics.render = () => Promise.resolve(`# ${++renders}\n`);
    const checks = { livez: new HealthChecks("livez"), readyz: new HealthChecks("readyz") };
    const server = await startHealthServer({ host: "127.0.0.1", port: 0, ...checks, metrics, logger });
    const socket = connect({ port: server.port, host: "127.0.0.1" });
    open.push(socket);
    socket.write("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".repeat(20));
    let text = "";
    for await (const chunk of socket) if ((text += String(chunk)).split("# 1\n").length > 20) break;
    await server.close();
    expect(renders).toBe(1);
  });

  test("has another one for probes alone, when that is wanted", async () => {
    await using it = await serveMetrics("");
    const port = it.server.probePort!;
    expect(await it.probe(port)).toBe(200);
    expect((await fetch(`http://127.0.0.1:${port}/readyz`)).status).toBe(200);
    expect((await fetch(`http://127.0.0.1:${port}/metrics`)).status).toBe(404);
  });
});

describe("the agent's metrics", () => {
  test("are updated before each scrape by whoever asked for it", async () => {
    const metrics = unusedMetrics();
    metrics.onScrape(() => metrics.runningPods.set(7));
    expect(await metrics.render()).toContain("kubelet_running_pods 7\n");
  });

  test("tell a node's own scrapers of that node alone, and whoever asks the process of all", async () => {
    const metrics = createMetrics({ nodeNames: ["a", "b"], version: "1.0.0" });
    for (const node of ["a", "b"]) metrics.backendUp.set({ node }, 1);
    metrics.onScrape((node) => metrics.runningPods.set(node === undefined ? 3 : 1));
    const [ofNode, ofProcess] = [await metrics.render("a"), await metrics.render()];
    const nodes = (text: string) =>
      [...text.matchAll(/^(kubelet_node_name|vmlet_backend_up)\{node="(.)"/gm)].map((m) => m[2]);
    expect([nodes(ofNode), nodes(ofProcess)]).toEqual([
      ["a", "a"],
      ["a", "b", "a", "b"],
    ]);
    expect(ofNode).toContain("kubelet_running_pods 1\n");
    expect(ofProcess).toContain("kubelet_running_pods 3\n");
  });

  test("tell nothing more of a node that is served no more: its lease would be taken for one that stands still", async () => {
    const metrics = createMetrics({ nodeNames: ["gone", "stays"], version: "1.0.0" });
    for (const node of ["gone", "stays"]) {
      metrics.backendUp.set({ node }, 1);
      metrics.leaseLastRenew.set({ node }, 1);
      metrics.machinesMissing.set({ node }, 1);
      metrics.nodeLeaving.set({ node }, 1);
      metrics.workqueue.depth.set({ name: node }, 1);
    }
    metrics.removeNode("gone");
    const text = await metrics.render();
    expect(text).not.toContain('"gone"');
    expect(text.match(/"stays"/g)).toHaveLength(6);
  });

  test("say of an agent that has read its configuration once that it could be used", async () => {
    expect(await unusedMetrics().render()).toContain("vmlet_config_last_reload_successful 1\n");
  });

  test("carry the names that the kubernetes-mixin alerts and dashboards read", async () => {
    const text = await createMetrics({ nodeNames: ["vm-1"], version: "1.0.0" }).render();
    const names = [
      'kubelet_node_name{node="vm-1"} 1',
      "kubelet_running_pods",
      "kubelet_running_containers",
      "kubelet_pleg_relist_duration_seconds_bucket",
      "kubelet_pod_start_duration_seconds_bucket",
      "kubelet_pod_worker_duration_seconds",
      "kubelet_runtime_operations_total",
      "kubelet_runtime_operations_errors_total",
      "kubelet_certificate_manager_server_ttl_seconds",
      "kubelet_server_expiration_renew_errors",
      "kubelet_evictions 0",
      "rest_client_requests_total",
      "rest_client_request_duration_seconds",
      "workqueue_depth",
      "process_cpu_seconds_total",
      "process_resident_memory_bytes",
    ];
    expect(names.filter((name) => !text.includes(name))).toEqual([]);
  });

  test("show no certificate as one that never expires, as a kubelet's do, so that no alert on its end fires", async () => {
    const text = await unusedMetrics().render();
    for (const side of ["server", "client"])
      expect(text).toContain(`kubelet_certificate_manager_${side}_ttl_seconds +Inf\n`);
  });

  test("tell of the process only where the process is asked, so that a node that is scraped too is not counted as an agent", async () => {
    const metrics = createMetrics({ nodeNames: ["vm-1", "vm-2"], version: "1.0.0" });
    expect(await metrics.render()).toContain('vmlet_build_info{version="1.0.0"} 1');
    expect(await metrics.render("vm-1")).not.toContain("vmlet_build_info");
  });

  test("pass promtool's checks", async ({ skip }) => {
    const text = await createMetrics({ nodeNames: ["vm-1"], version: "1.0.0" }).render();
    const result = await promtool(text);
    if (result === undefined) return skip("promtool is not installed");
    expect(result).toBe("");
  });

  test("have the kubelet's buckets for the start of a pod", async () => {
    const text = await unusedMetrics().render();
    const buckets = [...text.matchAll(/kubelet_pod_start_sli_duration_seconds_bucket\{le="([^"]+)"\}/g)].map(
      ([, le]) => le,
    );
    expect(buckets.join(" ")).toBe(
      "0.5 1 2 3 4 5 6 8 10 20 30 45 60 120 180 240 300 360 480 600 900 1200 1800 2700 3600 +Inf",
    );
  });
});

/** What it complains about, or undefined where there is no promtool. */
function promtool(text: string): Promise<string | undefined> {
  return new Promise((resolve) => {
    const child = execFile("promtool", ["check", "metrics"], (error, stdout, stderr) => {
      resolve(error && "code" in error && error.code === "ENOENT" ? undefined : stdout + stderr);
    });
    child.stdin?.on("error", () => {});
    child.stdin?.end(text);
  });
}
