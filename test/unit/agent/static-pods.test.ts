/** Static pods against an API server whose time stands still: what is made of the folder's files, and what of their pods. */
import { beforeEach, expect, test } from "vitest";
import { readStaticPod } from "../../../src/agent/static-pod-file.ts";
import type { FileLook, FolderLook } from "../../../src/agent/static-pod-folder.ts";
import { LOOK_MS, StaticPods } from "../../../src/agent/static-pods.ts";
import type { EventRecorder } from "../../../src/kube/events.ts";
import { KubeApiError } from "../../../src/kube/errors.ts";
import type { KubeRequest, WatchEvent } from "../../../src/kube/kube.ts";
import { podsPath } from "../../../src/kube/paths.ts";
import { Reflector } from "../../../src/kube/reflector.ts";
import { Store } from "../../../src/kube/store.ts";
import type { Pod } from "../../../src/kube/wire.ts";
import type { Json } from "../../../src/devcluster/objects/object.ts";
import { collectingLogger } from "../../support/collecting-logger.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";
import { VirtualCluster } from "../../support/virtual-cluster.ts";

const NODE = "burst-0";
const PODS = "/api/v1/namespaces/default/pods";

let clock: VirtualClock;
let cluster: VirtualCluster;
let folder: FolderLook;
let events: string[];
/** Of static pods: what they sent, by method. */
let sent: string[];
let refuse: ((request: KubeRequest) => Error | undefined) | undefined;
/** Events of the watch that are on their way; undefined: they come at once. */
let late: WatchEvent<unknown>[] | undefined;
let leaving: boolean;
let nodeUid: string;
let end: () => void;

const text = (name: string, image: string, more: object = {}) =>
  JSON.stringify({
    apiVersion: "v1",
    kind: "Pod",
    metadata: { name },
    spec: { containers: [{ name: "main", image }], terminationGracePeriodSeconds: 0, ...more },
  });
const file = (name: string, image = "a:1", more: object = {}): FileLook =>
  readStaticPod(text(name, image, more), { file: `${name}.yaml`, path: `/static/${name}.yaml`, nodeName: NODE });
const has = (files: Record<string, FileLook>) => (folder = { kind: "listed", files: new Map(Object.entries(files)) });
const looks = (count = 2) => clock.advance(count * LOOK_MS);
const pods = (): Json[] => cluster.list("pods");
const images = () =>
  Object.fromEntries(pods().map(({ metadata, spec }) => [metadata.name, spec.containers[0].image] as const));
const only = () => pods()[0]!;
const fail = (name: string) =>
  cluster.ask("PATCH", `${PODS}/${name}/status`, { status: { phase: "Failed", reason: "MachineLost" } });

function start(hasFolder = true): void {
  const stop = new AbortController();
  end = () => stop.abort();
  const random = () => 0.5;
  const logger = collectingLogger();
  const kube = cluster.client({
    deliver: (news) => {
      late?.push(...news);
      return late === undefined ? news : [];
    },
    carry: (request, send) => {
      if (request.method !== "GET") {
        sent.push(request.method);
        const refusal = refuse?.(request);
        if (refusal !== undefined) return Promise.reject(refusal);
      }
      return Promise.resolve().then(send);
    },
  });
  const store = new Store<Pod>({ logger });
  const reflector = new Reflector<Pod>({
    kube,
    path: podsPath(),
    query: { fieldSelector: `spec.nodeName=${NODE}` },
    store,
    clock,
    random,
    logger,
    accept: () => true,
    inactivityMs: 75_000,
  });
  const staticPods = new StaticPods({
    folder: hasFolder ? { look: () => Promise.resolve(folder) } : undefined,
    nodeName: NODE,
    kube,
    pods: store,
    nodeUid: () => nodeUid,
    isLeaving: () => leaving,
    events: {
      event: (_: unknown, type: string, reason: string, message: string) => events.push(`${type} ${reason} ${message}`),
    } as unknown as EventRecorder,
    clock,
    logger,
  });
  void reflector.run(stop.signal);
  void staticPods.run(stop.signal);
}

beforeEach(() => {
  clock = new VirtualClock();
  cluster = new VirtualCluster(clock);
  events = [];
  sent = [];
  refuse = undefined;
  late = undefined;
  leaving = false;
  cluster.ask("POST", "/api/v1/nodes", { metadata: { name: NODE } });
  nodeUid = cluster.ask("GET", `/api/v1/nodes/${NODE}`).metadata.uid;
  has({});
  start();
  return () => end();
});

test("each file becomes one pod, once", async () => {
  has({ "a.yaml": file("a"), "b.yaml": file("b") });
  await looks(20);
  expect(images()).toEqual({ "a-burst-0": "a:1", "b-burst-0": "a:1" });
  expect(sent).toEqual(["POST", "POST"]);
  expect(only().metadata.ownerReferences).toEqual([
    { apiVersion: "v1", kind: "Node", name: NODE, uid: nodeUid, controller: true },
  ]);
});

test("the pod of a file that is gone goes; other pods of the node stay", async () => {
  cluster.ask("POST", PODS, {
    metadata: { name: "other" },
    spec: { nodeName: NODE, containers: [{ name: "m", image: "o" }] },
  });
  has({ "a.yaml": file("a") });
  await looks();
  has({});
  await looks();
  expect(images()).toEqual({ other: "o" });
});

test("the pod of a file that changed is made again", async () => {
  has({ "a.yaml": file("a") });
  await looks();
  has({ "a.yaml": file("a", "a:2") });
  await looks(4);
  expect(images()).toEqual({ "a-burst-0": "a:2" });
  expect(sent).toEqual(["POST", "DELETE", "POST"]);
});

test("a file that has another pod now has that alone", async () => {
  has({ "a.yaml": file("a") });
  await looks();
  has({ "a.yaml": file("z") });
  await looks(3);
  // The file's own name is part of its mark.
  expect(Object.keys(images())).toEqual(["z-burst-0"]);
});

test("a pod that somebody deleted comes back", async () => {
  has({ "a.yaml": file("a") });
  await looks();
  const { uid } = only().metadata;
  cluster.ask("DELETE", `${PODS}/a-burst-0`);
  await looks(3);
  expect(pods()).toHaveLength(1);
  expect(only().metadata.uid).not.toBe(uid);
});

test("a pod whose specification is changed goes at once, and is made again by its file later and later", async () => {
  has({ "a.yaml": file("a") });
  await looks();
  for (const waitMs of [10_000, 20_000, 40_000]) {
    cluster.ask("PATCH", `${PODS}/a-burst-0`, { spec: { containers: [{ name: "main", image: "evil:1" }] } });
    await looks();
    expect(images()).toEqual({});
    await clock.advance(waitMs - 4 * LOOK_MS);
    expect(images(), "too early").toEqual({});
    await clock.advance(5 * LOOK_MS);
    expect(images(), "too late").toEqual({ "a-burst-0": "a:1" });
  }
});

test("a pod that cannot be removed is tried later and later, each for itself", async () => {
  has({ "a.yaml": file("a"), "b.yaml": file("b") });
  await looks();
  refuse = ({ path }) => (path.endsWith("/a-burst-0") ? new Error("the webhook does not answer") : undefined);
  has({});
  await clock.advance(60_000);
  expect(images()).toEqual({ "a-burst-0": "a:1" });
  expect(sent.filter((each) => each === "DELETE").length).toBeLessThanOrEqual(7);
  refuse = undefined;
  await clock.advance(64_000);
  expect(pods()).toEqual([]);
});

test("while the folder is unknown nothing goes, and it is told once in five minutes", async () => {
  has({ "a.yaml": file("a") });
  await looks();
  folder = { kind: "unknown", fault: "/static: cannot be read: ENOENT" };
  await clock.advance(299_000);
  expect(images()).toEqual({ "a-burst-0": "a:1" });
  const told = "Warning StaticPodRefused staticPodPath /static: cannot be read: ENOENT";
  expect(events).toEqual([told]);
  await clock.advance(10_000);
  expect(events).toEqual([told, told]);
});

test("the pod of a file that is broken, refused or being written runs on", async () => {
  has({ "a.yaml": file("a") });
  await looks();
  for (const look of [{ kind: "changing" }, { kind: "fault", fault: "line 1: is no YAML" }] as const) {
    has({ "a.yaml": look });
    await looks(5);
  }
  expect(sent).toEqual(["POST"]);
  expect(events).toEqual(["Warning StaticPodRefused static pod a.yaml: line 1: is no YAML"]);
});

test("after a restart of the agent, what is there is known again", async () => {
  has({ "a.yaml": file("a"), "b.yaml": file("b") });
  await looks();
  end();
  has({ "a.yaml": file("a"), "b.yaml": { kind: "changing" } });
  start();
  await looks(5);
  expect(sent).toEqual(["POST", "POST"]);
  has({ "a.yaml": file("a") });
  await looks();
  expect(Object.keys(images())).toEqual(["a-burst-0"]);
});

test("without a folder in the configuration the static pods that there were go", async () => {
  has({ "a.yaml": file("a") });
  await looks();
  end();
  start(false);
  await looks();
  expect(pods()).toEqual([]);
});

test("a pod that failed is made again, later and later", async () => {
  has({ "a.yaml": file("a") });
  await looks();
  for (const waitMs of [10_000, 20_000, 40_000]) {
    const { uid } = only().metadata;
    fail("a-burst-0");
    await clock.advance(waitMs - 2 * LOOK_MS);
    expect(only().metadata.uid, "too early").toBe(uid);
    await clock.advance(5 * LOOK_MS);
    expect(only().metadata.uid, "too late").not.toBe(uid);
  }
});

test("a pod that is not to be started again stays as it ended", async () => {
  has({ "a.yaml": file("a", "a:1", { restartPolicy: "Never" }) });
  await looks();
  fail("a-burst-0");
  await clock.advance(600_000);
  expect(sent).toEqual(["POST"]);
});

test("a file that the API server refuses is tried again later and later, and its fault told with the cure", async () => {
  refuse = ({ method }) =>
    method === "POST" ? new KubeApiError("pods is forbidden: no", { status: 403, reason: "Forbidden" }) : undefined;
  has({ "a.yaml": file("a") });
  await clock.advance(65_000);
  expect(sent).toHaveLength(3);
  expect(events[0]).toMatch(
    /^Warning StaticPodRefused static pod a\.yaml: default\/a-burst-0: the API server has not taken its pod: pods is forbidden: no; correct the file/,
  );
  expect(events).toHaveLength(1);
  // What is corrected need not wait.
  refuse = undefined;
  has({ "a.yaml": file("a", "a:2") });
  await looks();
  expect(images()).toEqual({ "a-burst-0": "a:2" });
});

test("a reply that is lost makes no second pod", async () => {
  const line = cluster.client();
  refuse = (request) => {
    if (request.method !== "POST" || sent.length > 1) return undefined;
    void line.request(request);
    return new KubeApiError("lost", { status: 0, reason: "Transport" });
  };
  has({ "a.yaml": file("a") });
  await clock.advance(60_000);
  expect(pods()).toHaveLength(1);
  expect(sent).toEqual(["POST"]);
});

test("a pod of somebody else's that has the name is left alone, and told of", async () => {
  cluster.ask("POST", PODS, {
    metadata: { name: "a-burst-0" },
    spec: { nodeName: NODE, containers: [{ name: "m", image: "theirs" }] },
  });
  has({ "a.yaml": file("a") });
  await looks(5);
  expect(images()).toEqual({ "a-burst-0": "theirs" });
  expect(events).toEqual([expect.stringContaining("there is a pod default/a-burst-0 that is none of this folder's")]);
});

test("of two files that have the same pod the first counts, and the other is told of", async () => {
  has({ "a.yaml": file("a"), "b.yaml": file("a", "a:2") });
  await looks(5);
  expect(images()).toEqual({ "a-burst-0": "a:1" });
  expect(events).toEqual([
    "Warning StaticPodRefused static pod b.yaml: metadata.name: a.yaml has the pod default/a-burst-0 too; name one of them otherwise",
  ]);
});

test("an API server that is away for a moment is told of when it stays away", async () => {
  refuse = () => new KubeApiError("away", { status: 503, reason: "ServiceUnavailable" });
  has({ "a.yaml": file("a") });
  await clock.advance(29_000);
  expect(sent).toHaveLength(2);
  expect(events).toEqual([]);
  await clock.advance(10_000);
  expect(events).toEqual([expect.stringContaining("the API server has not taken its pod: away")]);
});

test("a pod that the watch has not brought yet is not made again", async () => {
  late = [];
  has({ "a.yaml": file("a") });
  await clock.advance(9_000);
  expect([sent, events]).toEqual([["POST"], []]);
});

test("a pod that is being deleted is deleted once, and made again when it is gone", async () => {
  const slow = { terminationGracePeriodSeconds: 30 };
  has({ "a.yaml": file("a", "a:1", slow) });
  await looks();
  has({ "a.yaml": file("a", "a:2", slow) });
  await looks(10);
  expect(sent).toEqual(["POST", "DELETE"]);
  cluster.ask("DELETE", `${PODS}/a-burst-0`, { gracePeriodSeconds: 0 });
  await looks();
  expect(images()).toEqual({ "a-burst-0": "a:2" });
});

test("a pod that has taken the name meanwhile is not deleted in its place", async () => {
  has({ "a.yaml": file("a") });
  await looks();
  refuse = ({ method }) => {
    if (method !== "DELETE" || images()["a-burst-0"] === "theirs") return undefined;
    late = [];
    cluster.ask("DELETE", `${PODS}/a-burst-0`);
    const spec = { nodeName: NODE, terminationGracePeriodSeconds: 0, containers: [{ name: "m", image: "theirs" }] };
    cluster.ask("POST", PODS, { metadata: { name: "a-burst-0" }, spec });
    return undefined;
  };
  has({});
  await looks();
  expect(sent).toContain("DELETE");
  expect(images()).toEqual({ "a-burst-0": "theirs" });
});

test("a node that is leaving gets no static pods", async () => {
  leaving = true;
  has({ "a.yaml": file("a") });
  await looks(5);
  expect(sent).toEqual([]);
});
