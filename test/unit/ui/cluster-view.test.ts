import { afterEach, beforeEach, describe, expect, test } from "vitest";
import type { KubeRequest } from "../../../src/kube/kube.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { ClusterView } from "../../../src/ui/cluster-view.ts";
import { feed, type FeedLine } from "../../../src/ui/feed.ts";
import { apiError, ScriptedKube } from "../../support/scripted-kube.ts";
import { settle, VirtualClock } from "../../support/virtual-clock.ts";

type Object = { metadata: { uid: string; name: string }; [field: string]: unknown };

const vmletNode = (name: string, taints: object[] = []): Object => ({
  metadata: { uid: `node-${name}`, name },
  spec: { providerID: `vmlet://dev/${name}`, taints },
});
const otherNode: Object = { metadata: { uid: "node-other", name: "other" }, spec: { providerID: "aws://x" } };
const pod = (name: string, nodeName: string | undefined, phase = "Running"): Object => ({
  metadata: { uid: name, name, namespace: "default" } as Object["metadata"],
  spec: { nodeName, containers: [{ name: "c" }] },
  status: { phase },
});

let clock: VirtualClock;
let kube: ScriptedKube;
let stop: AbortController;
let running: Promise<void>;
let answers: Record<"nodes" | "pods", () => Object[]>;
let view: ClusterView;

beforeEach(() => {
  clock = new VirtualClock();
  kube = new ScriptedKube();
  stop = new AbortController();
  answers = { nodes: () => [vmletNode("burst-0"), otherNode], pods: () => [pod("a", "burst-0"), pod("b", "other")] };
  kube.answer = (request: KubeRequest) => {
    const items = answers[request.path.endsWith("/nodes") ? "nodes" : "pods"]();
    return { kind: "List", metadata: { resourceVersion: "1" }, items };
  };
  view = new ClusterView({ kube, clock, random: () => 0, logger: silentLogger, namespace: undefined });
});
afterEach(async () => {
  stop.abort(new Error("the test is over"));
  await running;
});

async function start(): Promise<void> {
  running = view.run(stop.signal);
  await settle();
}

const watchOf = (path: string) => kube.watches.find(({ request }) => request.path.endsWith(path))!;
const shown = () => view.pods().map(({ name }) => name);

describe("the view", () => {
  test("shows vmlet nodes and the pods on them, and no others", async () => {
    await start();
    expect(view.nodes().map(({ name }) => name)).toEqual(["burst-0"]);
    expect(shown()).toEqual(["a"]);
    expect(view.synced).toBe(true);
  });

  test("shows a pod without a node while it could come to a vmlet node", async () => {
    answers.pods = () => [pod("waits", undefined, "Pending")];
    await start();
    expect(shown()).toEqual(["waits"]);
    watchOf("/nodes").send({
      type: "MODIFIED",
      object: vmletNode("burst-0", [{ key: "vmlet", effect: "NoSchedule" }]),
    });
    await settle();
    expect(shown()).toEqual([]);
  });

  test("says what the cluster refuses, and shows pods by their machines where nodes may not be seen", async () => {
    answers.nodes = () => {
      throw apiError(403, 'nodes is forbidden: User "jane" cannot list resource "nodes"');
    };
    const machine = pod("a", "burst-0");
    Object.assign(machine.metadata, { annotations: { "vmlet.dev/machine": "m-1" } });
    answers.pods = () => [machine, pod("b", "burst-0")];
    await start();
    expect(view.faults.nodes).toContain('User "jane" cannot list resource "nodes"');
    expect(view.faults.pods).toBeUndefined();
    expect(shown()).toEqual(["a"]);
    expect(view.synced).toBe(true);
  });

  test("forgets a fault when the cluster answers again", async () => {
    const { pods } = answers;
    answers.pods = () => {
      throw apiError(401, "Unauthorized");
    };
    await start();
    expect(view.faults.pods).toContain("Unauthorized");
    answers.pods = pods;
    await clock.advance(60_000);
    expect(view.faults.pods).toBeUndefined();
    expect(shown()).toEqual(["a"]);
  });
});

describe("the feed", () => {
  async function nextOf(lines: AsyncGenerator<FeedLine>, kind: FeedLine["kind"]): Promise<FeedLine> {
    for (;;) {
      const next = lines.next();
      let line: IteratorResult<FeedLine> | undefined;
      void next.then((result) => (line = result));
      for (let rounds = 0; line === undefined; rounds++) {
        if (rounds > 200) throw new Error(`no line of kind ${kind}`);
        await settle(1);
        if (line === undefined) await clock.advance(100);
      }
      if (line.value?.kind === kind) return line.value;
    }
  }
  const open = () =>
    feed(view, { server: "s", context: "c", namespace: undefined, version: "1" }, { clock, signal: stop.signal });

  test("tells everything once, then what changed", async () => {
    await start();
    const lines = open();
    expect(await nextOf(lines, "nodes")).toMatchObject({ put: [{ name: "burst-0" }], gone: [] });
    expect(await nextOf(lines, "pods")).toMatchObject({ put: [{ name: "a" }], gone: [] });
    await nextOf(lines, "synced");
    watchOf("/pods").send({ type: "DELETED", object: pod("a", "burst-0") });
    expect(await nextOf(lines, "pods")).toEqual({ kind: "pods", put: [], gone: ["a"] });
  });

  test("tells a row that changed a thousand times once, as it is at last", async () => {
    await start();
    const lines = open();
    await nextOf(lines, "synced");
    for (let times = 0; times < 1_000; times++)
      watchOf("/pods").send({ type: "MODIFIED", object: pod("a", "burst-0", times === 999 ? "Failed" : "Running") });
    await settle(1_000);
    expect(await nextOf(lines, "pods")).toMatchObject({ put: [{ name: "a", phase: "Failed" }] });
  });

  test("comes in lines of bounded length", async () => {
    answers.pods = () => Array.from({ length: 1_200 }, (_, index) => pod(`p${index}`, "burst-0"));
    await start();
    const lines = open();
    const lengths: number[] = [];
    for (let line = 0; line < 3; line++) {
      const told = await nextOf(lines, "pods");
      lengths.push((told as Extract<FeedLine, { kind: "pods" }>).put.length);
    }
    expect(lengths).toEqual([500, 500, 200]);
  });
});
