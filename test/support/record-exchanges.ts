/**
 * Records what this release's agent and backend say to each other: `node test/support/record-exchanges.ts >
 * test/fixtures/wire/last-release.json`, when a release is made. The next one is tested against it
 * (test/unit/http-vm/last-release.test.ts).
 */
import { createServer, request as ask } from "node:http";
import { once } from "node:events";
import type { AddressInfo } from "node:net";
import { HttpVmProvider, MachineApiServer } from "../../providers/http-vm/index.ts";
import { MemoryProvider } from "../../providers/memory/index.ts";
import type { ContainerSpec, Machine, MachineSpec } from "../../src/provider/machine.ts";
import { silentLogger } from "../../src/telemetry/logger.ts";

/** One request, and the reply to it. Bodies that are JSON are values. */
export interface RecordedExchange {
  method: string;
  path: string;
  body?: unknown;
  status: number;
  type?: string | undefined;
  reply?: unknown;
}

const labels = { "vmlet.dev/cluster": "c1", "vmlet.dev/node": "burst-0" };
const signal = AbortSignal.timeout(60_000);
const extended = [{ name: "nvidia.com/gpu", count: 1 }];

const web: ContainerSpec = {
  name: "web",
  image: "registry.example/web:1",
  pull_policy: "always",
  args: ["--port=80"],
  env: [{ name: "A", value: "b" }],
  mounts: [{ volume: "cfg", path: "/etc/app", read_only: true }],
  ports: [{ name: "http", port: 80, protocol: "tcp" }],
  resources: { requests: { cpu_millis: 500, extended }, limits: { memory_bytes: 2 ** 29, extended } },
  probes: {
    readiness: {
      http: { path: "/", port: 80 },
      initial_delay_s: 0,
      period_s: 10,
      timeout_s: 1,
      success: 1,
      failure: 3,
    },
  },
  termination_message: { path: "/dev/termination-log", policy: "file" },
};
const spec: MachineSpec = {
  labels,
  restart_policy: "on_failure",
  termination_grace_s: 30,
  resources: { requests: { cpu_millis: 500, memory_bytes: 2 ** 29, extended } },
  volumes: [
    { name: "tmp", type: "empty_dir", medium: "disk" },
    { name: "cfg", type: "files", version: "1", files: [{ path: "app.yaml", mode: 420, content_b64: "YTogMQo=" }] },
  ],
  init_containers: [{ name: "first", image: "registry.example/init:1", command: ["sh", "-c", "exit 0"] }],
  containers: [web],
  registry_auth: [{ registry: "registry.example", username: "u", password: "p" }],
  registry_auth_version: "7",
};
const job: MachineSpec = {
  labels,
  restart_policy: "never",
  containers: [{ name: "main", image: "i", command: ["sh", "-c", "echo hello; exit 3"] }],
};

/** A backend, and a proxy before it that writes down what passes. */
async function recorded(work: (url: string) => Promise<void>): Promise<RecordedExchange[]> {
  const gpus = [{ name: "nvidia.com/gpu", count: 2 }];
  const capacity = { cpu_millis: 8000, memory_bytes: 2 ** 33, pods: 110, extended: gpus };
  const memory = new MemoryProvider({ capacity: { allocatable: capacity } });
  const server = new MachineApiServer({ provider: memory, logger: silentLogger });
  const { url } = await server.listen({ host: "127.0.0.1", port: 0 });
  const exchanges: RecordedExchange[] = [];
  const front = createServer((request, reply) => {
    const { method = "", url: path = "", headers } = request;
    void Array.fromAsync(request).then((parts) => {
      const sent = Buffer.concat(parts as Buffer[]).toString();
      ask(new URL(path, url), { method, headers }, (answer) => {
        void Array.fromAsync(answer).then((pieces) => {
          const text = Buffer.concat(pieces as Buffer[]).toString();
          const type = answer.headers["content-type"];
          const status = answer.statusCode ?? 0;
          exchanges.push({
            ...{ method, path, status, ...(sent !== "" && { body: valueOf(sent) }) },
            ...{ type, ...(text !== "" && { reply: valueOf(text) }) },
          });
          reply.writeHead(status, answer.headers).end(text);
        });
      }).end(sent);
    });
  }).listen(0, "127.0.0.1");
  await once(front, "listening");
  await work(`http://127.0.0.1:${(front.address() as AddressInfo).port}`);
  front.close();
  await server.close();
  await memory.close();
  return exchanges;
}

function valueOf(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

const exchanges = await recorded(async (url) => {
  const provider = new HttpVmProvider({ url });
  const until = async (id: string, holds: (machine: Machine) => boolean): Promise<void> => {
    while (!holds(await provider.getPod(id, { signal })));
  };
  await provider.getInfo({ signal });
  await provider.getCapacity({ signal });
  await provider.createPod("c1-3b1c", spec, { signal });
  await until("c1-3b1c", ({ containers }) =>
    containers.every(({ name, state }) => name !== "web" || state === "running"),
  );
  await provider.createPod("c1-other", job, { signal });
  await until("c1-other", ({ state }) => state === "stopped");
  const files = [{ path: "app.yaml", mode: 420, content_b64: "YTogMgo=" }];
  await provider.updatePod(
    "c1-3b1c",
    {
      files: [{ volume: "cfg", version: "2", files }],
      resources: [{ container: "web", resources: { requests: { cpu_millis: 700, extended } } }],
    },
    { signal },
  );
  await provider.getPods({ labels, signal });
  await provider.getStats({ labels, signal });
  await Array.fromAsync(provider.getLogs("c1-other", "main", { signal }));
  await (await fetch(`${url}/v1/events?since=0&timeout=1`)).text();
  await provider.getPod("c1-absent", { signal }).catch(() => undefined);
  await provider.stopPod("c1-3b1c", { graceSeconds: 1, signal });
  await provider.deletePod("c1-other", { signal, force: true });
  await provider.getPods({ labels, includeDeleted: true, signal });
  await provider.createPod("c1-other", spec, { signal }).catch(() => undefined);
  await provider.close();
});
// Of the same look, the last one alone.
const isSame = (one: RecordedExchange, other: RecordedExchange | undefined): boolean =>
  one.method === "GET" && other?.method === "GET" && one.path === other.path;
console.log(
  JSON.stringify(
    exchanges.filter((each, at) => !isSame(each, exchanges[at + 1])),
    null,
    1,
  ),
);
