/**
 * `dead-line.ts`, in a network namespace of its own: an API server and a watch of it, whose packets are then dropped both ways, as by a
 * firewall that has forgotten the connection. Says what became of it, as JSON.
 */
import { execFileSync } from "node:child_process";
import type { ServerResponse } from "node:http";
import { Reflector } from "../../../src/kube/reflector.ts";
import { Store } from "../../../src/kube/store.ts";
import { KubeTransport } from "../../../src/kube/transport.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { must, waitFor } from "../../e2e/harness/wait.ts";
import { json, KubeServer, type Received } from "../../support/kube-server.ts";

execFileSync("ip", ["link", "set", "lo", "up"]);
const pod = (name: string, resourceVersion: string) => ({
  metadata: { name, namespace: "default", uid: `uid-${name}`, resourceVersion },
});
const watchedFrom: (string | null)[] = [];

function cutOff(port: number): void {
  const rules = ["input", "output"].map(
    (hook) => `
      chain ${hook} {
        type filter hook ${hook} priority 0;
        tcp dport ${port} drop
        tcp sport ${port} drop
      }`,
  );
  execFileSync("nft", ["-f", "-"], { input: `table inet dead { ${rules.join("\n")}\n}` });
}

/** Once the bookmark has come through. */
async function cutOffWhenEstablished(port: number): Promise<void> {
  await waitFor({ what: "the bookmark" }, () => must(reflector.counters.bookmarks > 0, reflector.counters));
  cutOff(port);
}

const server = await KubeServer.start((request: Received, reply: ServerResponse) => {
  const query = new URL(request.url, "http://x").searchParams;
  if (!query.has("watch"))
    return json(reply, 200, { kind: "PodList", metadata: { resourceVersion: "10" }, items: [pod("before", "5")] });
  watchedFrom.push(query.get("resourceVersion"));
  reply.writeHead(200).flushHeaders();
  if (watchedFrom.length === 1) {
    reply.write(`${JSON.stringify({ type: "BOOKMARK", object: { metadata: { resourceVersion: "10" } } })}\n`);
    void cutOffWhenEstablished(request.socket.remotePort!);
  }
  // What happened while nothing came through.
  else reply.write(`${JSON.stringify({ type: "ADDED", object: pod("meanwhile", "11") })}\n`);
});
const kube = new KubeTransport({ kubeConfig: server.kubeConfig(), clock: systemClock, logger: silentLogger });
const store = new Store({ logger: silentLogger });
const reflector = new Reflector({
  kube,
  path: "/api/v1/pods",
  store,
  clock: systemClock,
  random: Math.random,
  logger: silentLogger,
  // Only the connection itself can tell.
  inactivityMs: 3_600_000,
});
store.onChange(({ object }) => {
  if (object.metadata?.name !== "meanwhile") return;
  const pods = store.list().map(({ metadata }) => metadata?.name);
  console.log(JSON.stringify({ pods, watchedFrom, lists: reflector.counters.lists }));
  process.exit(0);
});
await reflector.run(new AbortController().signal);
