/**
 * `node test/bench/cloud-starts.ts [--rounds N]`
 *
 * How long a pod takes from its creation until it is Running on an Incus of this host's own: cold, with the container
 * image in no instance, and in an instance of the pool. Looks every 10 ms, prints medians, asserts nothing; the image and the
 * program in it are those that this checkout makes.
 */
import { writeFile } from "node:fs/promises";
import { createConnection, createServer } from "node:net";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { IncusClient } from "../../providers/cloud/incus/client.ts";
import { ProfileEntries } from "../../providers/cloud/incus/entries.ts";
import { startDevCluster } from "../../src/devcluster/index.ts";
import { silentLogger } from "../../src/telemetry/logger.ts";
import { systemClock } from "../../src/util/clock.ts";
import { Pods } from "../e2e/cases/pods.ts";
import { startAgent } from "../e2e/harness/agent.ts";
import { createClient, type Json } from "../e2e/harness/client.ts";
import { createSandbox } from "../e2e/harness/processes.ts";
import { must, waitFor } from "../e2e/harness/wait.ts";
import { missingForIncus, startIncus } from "../support/incus.ts";
import { busyboxImage, startRegistry } from "../support/registry.ts";

const { values } = parseArgs({ options: { rounds: { type: "string", default: "10" } } });
const signal = AbortSignal.timeout(1_800_000);
const LOOK_MS = 10;
const rounds = Number(values.rounds);
const missing = await missingForIncus();
if (missing.length > 0) throw new Error(`Incus cannot run here: ${missing.join(", ")}`);

await using cleanups = new AsyncDisposableStack();
const sandbox = await createSandbox("incus-starts");
cleanups.defer(() => sandbox.close());
const registry = await startRegistry();
cleanups.defer(() => registry.stop());
await registry.push("t/busybox:1", await busyboxImage());
const port = Number(registry.host.split(":")[1]);
const guestConfig = (address: string) => `apiVersion: vmlet.dev/v1
kind: BackendConfig
listen: { socket: /run/vmlet/guest.sock }
stateDir: /var/lib/vmlet
engine:
  type: cri
  network: { cidr: 100.127.255.0/24 }
  images: { insecureRegistries: ["${address}:${port}"] }
`;
const incus = await startIncus(sandbox, { guestConfig });
cleanups.defer(() => incus.stop());
// The registry listens on loopback only.
const relay = createServer((socket) => {
  const target = createConnection(port, "127.0.0.1");
  socket.pipe(target).pipe(socket);
  for (const each of [socket, target]) each.on("error", () => each.destroy());
});
await new Promise<void>((resolve) => relay.listen(port, incus.address, resolve));
cleanups.defer(() => void relay.close());
const cluster = await startDevCluster({ clock: systemClock, logger: silentLogger });
cleanups.defer(() => cluster.close());
const kubeconfig = join(sandbox.dir, "admin.kubeconfig");
await writeFile(kubeconfig, cluster.kubeConfigYaml, { mode: 0o600 });
const client = await createClient(kubeconfig);
cleanups.defer(async () => client.close());

const container = {
  name: "c",
  image: `${incus.address}:${port}/t/busybox:1`,
  command: ["sleep", "100000"],
};
const spec = { containers: [container], terminationGracePeriodSeconds: 0 };

/** @param kept instances that stay @returns milliseconds from the pod's creation until it is seen Running */
async function round(pods: Pods, name: string, kept: number): Promise<number> {
  const start = performance.now();
  await pods.create(name, spec);
  await waitFor({ what: `${name} to run`, timeoutMs: 120_000, intervalMs: LOOK_MS }, async () => {
    const { status }: Json = await pods.get(name);
    must(status.phase === "Running", status);
  });
  const ms = performance.now() - start;
  await pods.deleteAll();
  await waitFor({ what: "its instance to go", timeoutMs: 60_000 }, () =>
    must(incus.instances().length <= kept, incus.instances()),
  );
  return ms;
}

const rounded = (ms: number | undefined) => `${Math.round(ms ?? NaN)} ms`;
const show = (what: string, all: readonly number[]) => {
  const sorted = all.toSorted((a, b) => a - b);
  const [median, least, most] = [sorted[Math.floor(sorted.length / 2)], sorted[0], sorted.at(-1)].map(rounded);
  console.log(`${what}: median ${median}, least ${least}, most ${most}, ${all.length} rounds`);
};

for (const kind of ["cold", "pool"] as const) {
  const provider = {
    type: "cloud",
    cloud: incus.cloud,
    scope: kind,
    instanceTypes: [{ name: "small", cpu: "2", memory: "1Gi", zone: "one", ...(kind === "pool" && { warm: 1 }) }],
  };
  const agent = await startAgent({ sandbox, kubeconfig, nodeName: kind, provider });
  const pods = new Pods(client, "default", kind);
  const times: number[] = [];
  const api = new IncusClient(incus.cloud);
  const entries = new ProfileEntries(api, systemClock);
  const isWarm = async () => must((await entries.list(["phase", "warm"], { signal })).length > 0, "none");
  try {
    for (let i = 0; i < rounds; i++) {
      if (kind === "pool") await waitFor({ what: "an instance to wait", timeoutMs: 60_000 }, isWarm);
      times.push(await round(pods, `${kind}-${i}`, kind === "pool" ? 1 : 0));
    }
  } finally {
    await pods.deleteAll();
    await agent.stop();
    await api.close();
    for (const name of incus.instances()) incus.incus("delete", "--force", "--project", "burst", name);
  }
  show(kind, times);
}
