import { expect, test } from "vitest";
import { Usage, type UsageQuery } from "../../../src/devcluster/kubectl/usage.ts";
import type { Json } from "../../../src/devcluster/objects/object.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

const pod = {
  metadata: { name: "web", namespace: "default", uid: "u1" },
  spec: { nodeName: "n", containers: [{ name: "a" }] },
};
const node = { metadata: { name: "n" } };

/** A kubelet whose container uses a tenth of a core, and whose node uses two. */
function setUp() {
  const clock = new VirtualClock();
  const start = clock.now();
  const startTime = new Date(start).toISOString();
  let isDown = false;
  let reads = 0;
  const figures = (cores: number, memoryBytes: number): Json => ({
    startTime,
    cpu: { time: new Date(clock.now()).toISOString(), usageCoreNanoSeconds: (clock.now() - start) * 1e6 * cores },
    memory: { workingSetBytes: memoryBytes },
  });
  const usage = new Usage({
    objects: {
      get: (kind: { resource: string }) => (kind.resource === "pods" ? pod : node),
      list: (kind: { resource: string }) => ({ items: kind.resource === "pods" ? [pod] : [node] }),
    } as never,
    kubelets: {
      read: () => {
        reads++;
        if (isDown) return Promise.reject(new Error("connection refused"));
        const containers = [{ name: "a", ...figures(0.1, 4096) }];
        return Promise.resolve(
          JSON.stringify({ node: figures(2, 8192), pods: [{ podRef: { uid: "u1" }, containers }] }),
        );
      },
    },
    clock,
    logger: silentLogger,
  });
  return {
    clock,
    reads: () => reads,
    breakKubelet: () => (isDown = true),
    /** The answer, with the time that it waits for. */
    async ask(query: Partial<UsageQuery>, signal?: AbortSignal) {
      const answer = usage.answer(
        { resource: "pods", namespace: undefined, name: undefined, labelSelector: undefined, ...query },
        signal,
      );
      answer.catch(() => undefined);
      await clock.advance(5_000);
      return await answer;
    },
  };
}

test("usage is what was used between two looks at the kubelet, with kubectl's units", async () => {
  const { ask } = setUp();
  expect(await ask({})).toMatchObject({
    kind: "PodMetricsList",
    apiVersion: "metrics.k8s.io/v1beta1",
    items: [
      {
        metadata: { name: "web", namespace: "default" },
        window: "3.500s",
        containers: [{ name: "a", usage: { cpu: "100000000n", memory: "4Ki" } }],
      },
    ],
  });
  expect(await ask({ resource: "nodes", name: "n" })).toMatchObject({
    kind: "NodeMetrics",
    metadata: { name: "n" },
    usage: { cpu: "2000000000n", memory: "8Ki" },
  });
});

test("the look of a moment ago is one of the two, one of long ago is not", async () => {
  const { ask, clock, reads } = setUp();
  await ask({});
  const first = reads();
  await ask({});
  const second = reads() - first;
  await clock.advance(120_000);
  await ask({});
  expect([first, second, reads() - first - second]).toEqual([2, 1, 2]);
});

test("of a kubelet that does not answer there is no usage", async () => {
  const { ask, breakKubelet } = setUp();
  breakKubelet();
  expect(await ask({})).toMatchObject({ items: [] });
  await expect(ask({ namespace: "default", name: "web" })).rejects.toMatchObject({
    body: { code: 404, message: 'podmetrics.metrics.k8s.io "default/web" not found' },
  });
});

test("who goes away waits for no second look", async () => {
  const { ask, reads } = setUp();
  const leaving = new AbortController();
  const answer = ask({}, leaving.signal);
  leaving.abort(new Error("gone"));
  await expect(answer).rejects.toThrow("gone");
  expect(reads()).toBe(1);
});
