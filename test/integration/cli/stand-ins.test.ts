/** What everybody types first into `vmlet dev`: `kubectl run` with images, on a machine that has none. */
import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parse } from "yaml";
import { afterAll, beforeAll, expect, test, vi } from "vitest";
import { type Api, connect, type Json } from "../../e2e/fidelity/api.ts";
import { availableNamespaces } from "../../../providers/local/engines/process/view.ts";
import { create, PODS, podWhen } from "../devcluster/support.ts";

const program = join(import.meta.dirname, "../../../src/cli/main.ts");
const PATIENCE = { timeout: 60_000 };
const dir = mkdtempSync(join(tmpdir(), "vmlet-dev-"));
const child = spawn(process.execPath, [program, "dev", "--engine", "process", "--port", "0", "--state-dir", dir]);
const ended = new Promise<number | null>((resolve) => child.once("exit", resolve));
let api: Api;

beforeAll(async () => {
  let said = "";
  for (const stream of [child.stdout, child.stderr]) stream.on("data", (chunk) => (said += chunk));
  await vi.waitFor(() => expect(said).toContain("A cluster of one virtual node is up"), PATIENCE);
  const { clusters, users } = parse(readFileSync(join(dir, "kubeconfig"), "utf8"));
  const ca = clusters[0].cluster["certificate-authority-data"];
  api = connect({
    url: clusters[0].cluster.server,
    token: users[0].user.token,
    ...(ca !== undefined && { ca: Buffer.from(ca, "base64").toString() }),
  });
}, 90_000);
afterAll(async () => {
  api?.close();
  child.kill("SIGTERM");
  await ended;
  rmSync(dir, { recursive: true, force: true });
}, 60_000);

/** As `kubectl run NAME --image=IMAGE` makes it. */
const run = (name: string, container: Json, spec: Json = {}) =>
  create(api, PODS, {
    metadata: { name, labels: { run: name } },
    spec: { containers: [{ name, ...container }], ...spec },
  });

const log = async (name: string) => String((await api.request("GET", `${PODS}/${name}/log`)).body);

const eventsOf = async (name: string): Promise<Json[]> => {
  const { body } = await api.request("GET", "/api/v1/namespaces/default/events");
  return body.items.filter(({ involvedObject }: Json) => involvedObject.name === name);
};

const isReady = ({ status }: Json) =>
  status?.conditions?.some(({ type, status }: Json) => type === "Ready" && status === "True");

test("nginx answers on port 80, and its log begins with what it is", { timeout: 90_000 }, async () => {
  await run("web", { image: "nginx", readinessProbe: { httpGet: { port: 80, path: "/" }, periodSeconds: 1 } });
  await podWhen(api, "web", isReady);
  await expect
    .poll(() => log("web"), PATIENCE)
    .toMatch(/^vmlet's stand-in for image nginx serves on .*\n.*"GET \/" 200/);
});

test(
  "a pod whose image is stood in for has an event that says so, and it is no warning",
  { timeout: 90_000 },
  async () => {
    await run("caddy", { image: "caddy" });
    await expect
      .poll(() => eventsOf("caddy"), PATIENCE)
      .toContainEqual(expect.objectContaining({ reason: "StandIn", type: "Normal" }));
  },
);

test("busybox runs the command that its args are", { timeout: 90_000 }, async () => {
  await run("box", { image: "busybox", args: ["sh", "-c", "echo hello; exit 3"] }, { restartPolicy: "Never" });
  const { status } = await podWhen(api, "box", ({ status }) => status?.phase === "Failed");
  expect(status.containerStatuses[0].state.terminated.exitCode).toBe(3);
  expect(await log("box")).toBe("hello\n");
});

test("an image that nothing is known of runs", { timeout: 90_000 }, async () => {
  await run("shop", { image: "example.com/shop:1" });
  await podWhen(api, "shop", isReady);
});

test("a pod's own command is run without a word of stand-ins", { timeout: 90_000 }, async () => {
  await run("own", { image: "nginx", command: ["echo", "own"] }, { restartPolicy: "Never" });
  await podWhen(api, "own", ({ status }) => status?.phase === "Succeeded");
  expect(await log("own")).toBe("own\n");
  const reasons = async () => (await eventsOf("own")).map(({ reason }) => reason);
  await expect.poll(reasons, PATIENCE).toContain("Started");
  expect(await reasons()).not.toContain("StandIn");
});

test(
  "a Service is reached by its name from within a pod, where the host gives mount namespaces",
  { timeout: 90_000 },
  async () => {
    if ((await availableNamespaces()) === undefined) return;
    await run("shop-web", { image: "nginx", readinessProbe: { httpGet: { port: 80, path: "/" }, periodSeconds: 1 } });
    await podWhen(api, "shop-web", isReady);
    const spec = { selector: { run: "shop-web" }, ports: [{ port: 8080, targetPort: 80 }] };
    await create(api, "/api/v1/namespaces/default/services", { metadata: { name: "front" }, spec });
    const ask =
      "until node -e 'fetch(process.argv[1]).then((r) => console.log(r.status))' http://front:8080/; do sleep 0.2; done";
    await run("client", { image: "busybox", command: ["sh", "-c", ask] }, { restartPolicy: "Never" });
    await podWhen(api, "client", ({ status }) => status?.phase === "Succeeded");
    expect((await log("client")).trim().split("\n").at(-1)).toBe("200");
  },
);
