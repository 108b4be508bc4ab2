import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { MemoryProvider } from "../../../providers/memory/provider.ts";
import type { EventRecorder } from "../../../src/kube/events.ts";
import type { Kube, KubeRequest } from "../../../src/kube/kube.ts";
import { LABEL_UID, machineId, ownerLabels } from "../../../src/podspec/machine-id.ts";
import { PodController, RESYNC_MS, type PodControllerOptions } from "../../../src/pods/controller.ts";
import { ORPHAN_GRACE_MS } from "../../../src/pods/planner.ts";
import { ProviderError } from "../../../src/provider/errors.ts";
import type { MachineSpec } from "../../../src/provider/machine.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { pod as basePod } from "../../support/builders.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";
import { exited, machine as baseMachine } from "./fixtures.ts";

let clock: VirtualClock;
let requests: KubeRequest[];
let events: string[];
let logged: { fields: object; message: string }[];
let outcomes: string[];
let ignored: number;
/** Addresses that a prober of the agent has been given. */
let probed: Set<string>;
let version: (uid: string) => string;
let random: () => number;
let provider: MemoryProvider;
let options: PodControllerOptions;
let controller: PodController;
let stop: AbortController;

beforeEach(() => {
  clock = new VirtualClock();
  requests = [];
  events = [];
  logged = [];
  outcomes = [];
  ignored = 0;
  probed = new Set();
  version = () => "1";
  random = () => 0;
  provider = new MemoryProvider({ clock });
  stop = new AbortController();
  const request = (sent: KubeRequest) => {
    requests.push(sent);
    const [, , , , , , name] = sent.path.split("/");
    return Promise.resolve(controller.store.list().find(({ metadata }) => metadata!.name === name));
  };
  options = {
    kube: { request } as unknown as Kube,
    provider,
    renderer: {
      render: () =>
        Promise.resolve({
          kind: "ready",
          events: [],
          version: "1",
          spec: { labels: {}, containers: [{ name: "app", image: "a" }], restart_policy: "always" },
        }),
      version: (pod) => version(pod.metadata!.uid!),
      diff: () => Promise.resolve({ patch: undefined, events: [], resize: { kind: "none" }, version: "1" }),
      redact: (_uid, text) => text.replaceAll("hunter2", "[redacted]"),
    },
    events: {
      event: (_about: unknown, type: string, reason: string, message: string) =>
        void events.push(`${type} ${reason}: ${message}`),
    } as unknown as EventRecorder,
    nodeName: "n",
    clusterId: "c",
    hostIPs: () => ["10.1.0.1"],
    acceptsAddress: (ip) => !ip.startsWith("192."),
    concurrency: 2,
    sweep: { enabled: true, maxPerMinute: 10 },
    clock,
    random: () => random(),
    logger: { ...silentLogger, warn: (fields, message) => void logged.push({ fields, message }) },
    readiness: {
      apply: (_pod, machine) => {
        for (const { ip } of machine.addresses) probed.add(ip);
        return machine;
      },
      release: () => undefined,
    },
    hooks: {
      onReconciled: (_seconds, outcome) => void outcomes.push(outcome),
      onAddressIgnored: (count) => void (ignored += count),
    },
  };
  controller = new PodController(options);
  controller.store.replace([]);
  controller.machines.replace([], 0);
});
afterEach(() => stop.abort());

const uidOf = (i: number) => `u${i}`;
const podOf = (i: number) => basePod({ metadata: { uid: uidOf(i), name: `web-${i}` } });
const machineOf = (i: number) => baseMachine({ id: machineId("c", uidOf(i)) });
const runningPod = (i: number) =>
  basePod({
    metadata: { uid: uidOf(i), name: `web-${i}` },
    status: {
      phase: "Running",
      containerStatuses: [{ name: "app", ready: true, restartCount: 0, state: { running: {} } }],
    },
  });
/** The last phase that was written of a pod. */
const phaseOf = (name: string) =>
  requests
    .filter(({ method, path }) => method === "PATCH" && path.includes(`/${name}/`))
    .map(({ body }) => (body as { status: { phase?: string } }).status.phase)
    .findLast((phase) => phase !== undefined);
/** A backend makes the machine of a pod of this node. */
const make = (backend: MemoryProvider, i: number) => {
  const about = { [LABEL_UID]: uidOf(i), "vmlet.dev/namespace": "default", "vmlet.dev/pod": `web-${i}` };
  const spec: MachineSpec = {
    labels: { ...ownerLabels("c", "n"), ...about },
    containers: [{ name: "app", image: "a" }],
    restart_policy: "always",
  };
  return backend.createPod(machineId("c", uidOf(i)), spec, { signal: stop.signal });
};

test("a watch that says nothing, not even the bookmark of each minute, is taken up again", async () => {
  const opened: number[] = [];
  const kube = {
    request: () => Promise.resolve({ metadata: { resourceVersion: "1" }, items: [] }),
    watch: async function* ({ signal }: { signal: AbortSignal }): AsyncGenerator<never> {
      opened.push(clock.monotonic());
      await new Promise((_resolve, reject) => signal.addEventListener("abort", () => reject(signal.reason as Error)));
      yield* [];
    },
  };
  const silent = new PodController({ ...options, kube: kube as unknown as Kube });
  const observing = silent.reflector.run(stop.signal);
  await clock.advance(90_000);
  expect(opened).toHaveLength(2);
  stop.abort();
  await observing;
});

test("no event quotes what its pod keeps secret", () => {
  controller.event(podOf(1), { type: "Warning", reason: "FailedCreate", message: "bad password hunter2" });
  expect(events).toEqual(["Warning FailedCreate: bad password [redacted]"]);
});

describe("a standby", () => {
  test("remembers nothing of pods that come and go", () => {
    for (let i = 0; i < 100; i++) {
      controller.store.upsert(podOf(i));
      controller.store.remove(podOf(i));
    }
    expect({ waiting: controller.queue.depth, known: controller.working }).toEqual({ waiting: 0, known: 0 });
  });

  test("remembers that a pod is gone for as long as its machine is there", () => {
    controller.store.upsert(podOf(1));
    controller.machines.put(machineOf(1));
    controller.store.remove(podOf(1));
    expect(controller.working).toBe(1);
    controller.machines.put({ ...machineOf(1), version: 4, state: "deleted" });
    expect(controller.working).toBe(0);
  });

  test("works on every pod as soon as it acts", async () => {
    controller.store.upsert(podOf(1));
    const acting = controller.act(stop.signal);
    await clock.advance(10);
    expect(requests.map(({ method }) => method)).toContain("GET");
    stop.abort();
    await acting;
  });
});

describe("a backend that wants to be asked again at once", () => {
  test("is not asked in a loop", async () => {
    let asked = 0;
    provider.createPod = () => {
      asked++;
      return Promise.reject(new ProviderError("unavailable", "busy", { retryAfterMs: 0 }));
    };
    controller.store.upsert(podOf(1));
    const acting = controller.act(stop.signal);
    await clock.advance(5_000);
    stop.abort();
    await acting;
    expect(asked).toBeGreaterThan(1);
    expect(asked).toBeLessThan(20);
  });
});

describe("a namespace with many pods", () => {
  test("does not hold up another one's", async () => {
    const created: string[] = [];
    const createPod = provider.createPod.bind(provider);
    provider.createPod = (id, spec, options) => {
      created.push(id);
      return createPod(id, spec, options);
    };
    for (let i = 0; i < 100; i++) controller.store.upsert(podOf(i));
    const other = basePod({ metadata: { uid: "other", name: "other", namespace: "quiet" } });
    controller.store.upsert(other);
    const acting = controller.act(stop.signal);
    await clock.advance(10_000);
    expect(created).toHaveLength(101);
    expect(created.indexOf(machineId("c", "other"))).toBeLessThan(4);
    stop.abort();
    await acting;
  });
});

describe("an agent that starts while pods run", () => {
  const RUNNING = 300;
  let looked: string[];
  let acting: Promise<void>;
  beforeEach(async () => {
    looked = [];
    version = (uid) => {
      looked.push(uid);
      return "1";
    };
    let calls = 0;
    random = () => (calls++ % 100) / 100;
    for (let i = 0; i < RUNNING; i++) {
      controller.store.upsert(runningPod(i));
      controller.machines.put(machineOf(i));
    }
    acting = controller.act(stop.signal);
    await clock.advance(1);
  });
  afterEach(async () => {
    stop.abort();
    await acting;
  });

  test("takes its time to look at each of them", async () => {
    expect(new Set(looked).size).toBeLessThan(RUNNING / 20);
    await clock.advance(RUNNING * 40);
    expect(new Set(looked).size).toBe(RUNNING);
  });

  test("makes a new pod's machine at once", async () => {
    controller.store.upsert(podOf(RUNNING));
    await clock.advance(10);
    expect(provider.machines.map(({ id }) => id)).toEqual([machineId("c", uidOf(RUNNING))]);
  });

  test("deletes at once", async () => {
    const deletedAt = new Date(clock.now()).toISOString();
    const { metadata, ...rest } = runningPod(7);
    const deletion = { deletionTimestamp: deletedAt, deletionGracePeriodSeconds: 30 };
    controller.store.upsert({ ...rest, metadata: { ...metadata, ...deletion, resourceVersion: "11" } });
    await clock.advance(10);
    expect(requests.map(({ method, path }) => `${method} ${path.split("/").at(-1)}`)).toContain("DELETE web-7");
  });

  test("tells at once that a container ended meanwhile", async () => {
    controller.machines.put({ ...machineOf(8), version: 4, containers: [exited("app", 1)] });
    await clock.advance(10);
    expect(requests.map(({ method, path }) => `${method} ${path.split("/").slice(-2).join("/")}`)).toContain(
      "PATCH web-8/status",
    );
  });

  test("looks at all of them again each minute, not all at once", async () => {
    await clock.advance(2 * RESYNC_MS);
    looked = [];
    await clock.advance(RESYNC_MS / 10);
    expect(new Set(looked).size).toBeGreaterThan(RUNNING / 20);
    expect(new Set(looked).size).toBeLessThan(RUNNING / 5);
    await clock.advance(RESYNC_MS * 0.9);
    expect(new Set(looked).size).toBe(RUNNING);
  });
});

describe("machines of unknown pods", () => {
  const ORPHANS = 10;
  beforeEach(async () => {
    for (let i = 0; i < ORPHANS; i++) await make(provider, i);
  });
  const left = () => provider.machines.filter(({ state }) => state !== "deleted").map(({ id }) => id);

  test("go at the rate of the sweep, though one of them does not go", async () => {
    const stuck = machineId("c", uidOf(0));
    const deletePod = provider.deletePod.bind(provider);
    provider.deletePod = (id, options) => (id === stuck ? Promise.resolve() : deletePod(id, options));
    const running = [controller.observer.run(stop.signal), controller.act(stop.signal)];
    await clock.advance(ORPHAN_GRACE_MS + RESYNC_MS);
    expect(left()).toEqual([stuck]);
    const before = requests.length;
    await clock.advance(60_000);
    expect(requests.length - before).toBeLessThan(10);
    stop.abort();
    await Promise.all(running);
  });
});

describe("a backend whose lists and events are empty", () => {
  test("and that finds each machine when it is asked for it ends no pod and makes no machine again", async () => {
    for (let i = 0; i < 20; i++) {
      controller.store.upsert(runningPod(i));
      await make(provider, i);
    }
    const running = [controller.observer.run(stop.signal), controller.act(stop.signal)];
    await clock.advance(RESYNC_MS);
    const before = provider.machines;
    provider.getPods = () => Promise.resolve({ items: [], revision: before.length + 1 });
    await clock.advance(15 * RESYNC_MS);
    expect(Array.from({ length: 20 }, (_, i) => phaseOf(`web-${i}`))).not.toContain("Failed");
    expect(provider.machines).toEqual(before);
    stop.abort();
    await Promise.all(running);
  });
});

describe("a backend that was restored from an older backup", () => {
  test("has lost the machines of later pods and runs those of pods that are gone: the ones fail, the others are swept", async () => {
    const [kept, lost, gone] = [1, 2, 3];
    for (const i of [kept, lost]) {
      controller.store.upsert(runningPod(i));
      await make(provider, i);
    }
    const running = [controller.observer.run(stop.signal), controller.act(stop.signal)];
    await clock.advance(RESYNC_MS);
    const backup = new MemoryProvider({ clock });
    for (const i of [kept, gone]) await make(backup, i);
    for (const call of ["getPods", "getPod", "watchPods", "createPod", "stopPod", "deletePod"] as const)
      Object.assign(provider, { [call]: backup[call].bind(backup) });
    await clock.advance(ORPHAN_GRACE_MS + 3 * RESYNC_MS);
    expect(backup.machines.filter(({ state }) => state !== "deleted").map(({ id }) => id)).toEqual([
      machineId("c", uidOf(kept)),
    ]);
    expect([phaseOf("web-1"), phaseOf("web-2")]).toEqual([undefined, "Failed"]);
    stop.abort();
    await Promise.all(running);
  });
});

describe("a pod at whose sight something is thrown", () => {
  const error = new TypeError("cannot read this pod");
  let acting: Promise<void>;
  beforeEach(async () => {
    controller.store.upsert(podOf(1));
    acting = controller.act(stop.signal);
    await clock.advance(10);
    version = () => {
      throw error;
    };
    outcomes = [];
    events = [];
    controller.requeue("u1");
    await clock.advance(10_000);
  });
  afterEach(async () => {
    stop.abort();
    await acting;
  });

  test("is logged, with the place, and counted", () => {
    expect(logged[0]).toEqual({
      fields: { namespace: "default", pod: "web-1", uid: "u1", err: error },
      message: "Pod could not be brought forward and will be tried again",
    });
    expect(outcomes.length).toBeGreaterThan(1);
    expect(new Set(outcomes)).toEqual(new Set(["retry"]));
  });

  test("tells its user once, and once more when it is thrown again after all was well", async () => {
    const told = "Warning FailedSync: Error syncing pod: cannot read this pod";
    expect(events).toEqual([told]);
    const broken = version;
    version = () => "1";
    await clock.advance(RESYNC_MS);
    version = broken;
    await clock.advance(RESYNC_MS);
    expect(events).toEqual([told, told]);
  });
});

describe("a machine of which the backend says what makes no sense", () => {
  const told = (doubt: string) =>
    `Warning MachineUnknown: What the backend says of the pod's machine cannot be used, so its status stays as it is: ${doubt}`;
  const doubt = (reason: string) => ({ id: machineId("c", uidOf(1)), reason });
  let acting: Promise<void>;
  beforeEach(async () => {
    controller.store.upsert(podOf(1));
    controller.machines.put(machineOf(1));
    acting = controller.act(stop.signal);
    await clock.advance(10);
    events = [];
  });
  afterEach(async () => {
    stop.abort();
    await acting;
  });

  test("is told to the pod's user, once for each reason", async () => {
    for (let list = 31; list < 35; list++) {
      controller.machines.replace([], list, list - 1, [doubt("no state")]);
      await clock.advance(RESYNC_MS);
    }
    expect(events).toEqual([told("no state")]);
    controller.machines.replace([], 36, 35, [doubt("no version")]);
    expect(events).toEqual([told("no state"), told("no version")]);
  });

  test("is told again when it made sense in between", () => {
    controller.machines.replace([], 31, 30, [doubt("no state")]);
    controller.machines.replace([machineOf(1)], 32, 31);
    controller.machines.replace([], 33, 32, [doubt("no state")]);
    expect(events).toEqual([told("no state"), told("no state")]);
  });

  test("keeps no other pod from getting its machine", async () => {
    controller.machines.replace([], 31, 30, [doubt("no state")]);
    controller.store.upsert(podOf(2));
    await clock.advance(1_000);
    expect(provider.machines.map(({ id }) => id)).toContain(machineId("c", uidOf(2)));
  });

  test("is never swept, though no pod of it was ever seen", async () => {
    const deleted: string[] = [];
    provider.deletePod = (id) => Promise.resolve(void deleted.push(id));
    controller.machines.replace([], 31, 30, [{ id: machineId("c", uidOf(9)), reason: "no state" }]);
    await clock.advance(20 * ORPHAN_GRACE_MS);
    expect(deleted).toEqual([]);
  });
});

describe("an address of a machine that lies outside of the node's podCIDRs", () => {
  test("becomes no pod's and is not probed, is told to its user once and counted", async () => {
    controller.store.upsert(podOf(1));
    const acting = controller.act(stop.signal);
    await clock.advance(10);
    events = [];
    requests = [];
    const stray = { ...machineOf(1), version: 4, addresses: [{ ip: "192.168.0.1" }] };
    for (let revision = 31; revision < 34; revision++) {
      controller.machines.replace([stray], revision, revision - 1);
      await clock.advance(RESYNC_MS);
    }
    expect(events.filter((each) => each.includes("AddressIgnored"))).toEqual([
      "Warning AddressIgnored: The backend says that the pod's machine has the address 192.168.0.1, which lies in none of the node's podCIDRs: it is not used",
    ]);
    expect(ignored).toBe(1);
    expect(JSON.stringify(requests)).not.toContain("192.168.0.1");
    expect(probed).not.toContain("192.168.0.1");
    stop.abort();
    await acting;
  });
});
