import { describe, expect, test } from "vitest";
import type { Pod } from "../../../src/kube/wire.ts";
import type { ContainerResources, Machine } from "../../../src/provider/machine.ts";
import { statusDiff } from "../../../src/pods/status/diff.ts";
import type { StatusInput } from "../../../src/pods/status/input.ts";
import { podStatus } from "../../../src/pods/status/pod-status.ts";
import { containerState as container, pod } from "../../support/builders.ts";
import { exited, machine, NOW, running } from "./fixtures.ts";

function status(p: Pod, m: Machine | undefined, more: Partial<StatusInput> = {}) {
  const ended = more.ended ?? (m !== undefined && ["stopped", "failed", "deleted"].includes(m.state));
  return podStatus({ pod: p, machine: m, hostIPs: ["10.1.0.1"], now: NOW, ended, ...more });
}

const condition = (s: ReturnType<typeof status>, type: string) => s.conditions!.find((c) => c.type === type);

test("of claims' devices those are told that the container names, as a kubelet does", () => {
  const claims = [{ name: "gpu" }, { name: "nic", request: "fast" }];
  const named = pod({ spec: { containers: [{ name: "app", image: "i", resources: { claims } }] } });
  const devices = ["claim:gpu", "claim:nic/fast", "claim:extended-resources/c0"].map((resource) => ({
    ...{ resource, id: "x.example/d=0", health: "healthy" as const },
  }));
  const { containerStatuses } = status(named, machine({ containers: [running("app", { devices })] }));
  expect(containerStatuses?.[0]?.allocatedResourcesStatus).toEqual(
    ["claim:gpu", "claim:nic/fast"].map((name) => ({
      ...{ name, resources: [{ resourceID: "x.example/d=0", health: "Healthy" }] },
    })),
  );
});

test("devices are told with their health, as a kubelet does, of main containers alone", () => {
  const devices = [
    { resource: "v.example/gpu", id: "g0", health: "healthy" as const },
    { resource: "v.example/nic", id: "n0", health: "unknown" as const },
    { resource: "v.example/gpu", id: "g1", health: "unhealthy" as const, message: "too hot" },
  ];
  const withInit = pod({
    spec: { containers: [{ name: "app", image: "i" }], initContainers: [{ name: "init", image: "i" }] },
  });
  const init = exited("init", 0, { kind: "init", devices });
  const s = status(withInit, machine({ containers: [init, running("app", { devices })] }));
  const told = [s.initContainerStatuses?.[0], s.containerStatuses?.[0]].map((each) => each?.allocatedResourcesStatus);
  expect(told).toEqual([
    undefined,
    [
      {
        name: "v.example/gpu",
        resources: [
          { resourceID: "g0", health: "Healthy" },
          { resourceID: "g1", health: "Unhealthy", message: "too hot" },
        ],
      },
      { name: "v.example/nic", resources: [{ resourceID: "n0", health: "Unknown" }] },
    ],
  ]);
});

describe("phase", () => {
  test("is Pending while no container has started", () => {
    expect(
      status(pod(), machine({ state: "creating", sandbox_ready: false, containers: [container("app")] })).phase,
    ).toBe("Pending");
  });

  test("is Running when a container runs", () => {
    expect(status(pod(), machine()).phase).toBe("Running");
  });

  test("stays Running while a crashed container waits for its restart", () => {
    const crashed = container("app", {
      state: "waiting",
      reason: "CrashLoopBackOff",
      restart_count: 2,
      last: exited("app", 1).terminated!,
    });
    expect(status(pod(), machine({ containers: [crashed] })).phase).toBe("Running");
  });

  test("is Pending while an init container runs", () => {
    const p = pod({ spec: { initContainers: [{ name: "init", image: "i" }] } });
    const m = machine({ containers: [running("init", { kind: "init" }), container("app")] });
    expect(status(p, m).phase).toBe("Pending");
  });

  test("is Running beside a sidecar that runs", () => {
    const p = pod({ spec: { initContainers: [{ name: "side", image: "s", restartPolicy: "Always" }] } });
    const m = machine({ containers: [running("side", { kind: "init" }), running("app")] });
    expect(status(p, m).phase).toBe("Running");
  });

  test("is Succeeded when every container ended with 0 and the machine stopped", () => {
    expect(
      status(pod({ spec: { restartPolicy: "Never" } }), machine({ state: "stopped", containers: [exited("app", 0)] }))
        .phase,
    ).toBe("Succeeded");
  });

  test("is Failed when one container ended with another code", () => {
    const p = pod({
      spec: {
        restartPolicy: "Never",
        containers: [
          { name: "app", image: "a" },
          { name: "b", image: "b" },
        ],
      },
    });
    expect(status(p, machine({ state: "stopped", containers: [exited("app", 0), exited("b", 3)] })).phase).toBe(
      "Failed",
    );
  });

  test("does not become terminal while the machine may still run something", () => {
    const p = pod({ spec: { restartPolicy: "Never" }, status: { phase: "Running" } });
    expect(status(p, machine({ state: "stopping", containers: [exited("app", 0)] })).phase).toBe("Running");
  });

  test("is final once it is terminal", () => {
    const p = pod({ status: { phase: "Failed", reason: "DeadlineExceeded" } });
    const s = status(p, machine());
    expect([s.phase, s.reason]).toEqual(["Failed", "DeadlineExceeded"]);
  });

  test("does not go back from Running to Pending", () => {
    const p = pod({ status: { phase: "Running" } });
    expect(status(p, machine({ containers: [container("app")] })).phase).toBe("Running");
  });

  test("carries the backend's reason when a machine failed", () => {
    const s = status(
      pod(),
      machine({ state: "failed", reason: "HostLost", message: "host h3 is gone", containers: [container("app")] }),
    );
    expect([s.phase, s.reason, s.message]).toEqual(["Failed", "HostLost", "host h3 is gone"]);
  });

  test("is Failed when the pod is deleted before it ever ran", () => {
    expect(status(pod(), undefined, { ended: true }).phase).toBe("Failed");
  });
});

describe("a pod that is refused", () => {
  const verdict = { reason: "OutOfcpu", message: "Pod was rejected: Node didn't have enough resource: cpu" };

  test("is Failed with the reason and has no container statuses", () => {
    const s = status(pod(), undefined, { ended: true, verdict });
    expect([s.phase, s.reason, s.message, s.containerStatuses]).toEqual([
      "Failed",
      verdict.reason,
      verdict.message,
      undefined,
    ]);
  });
});

describe("what the backend says", () => {
  const long = "x".repeat(100_000);

  test("is cut to what a status has room for", () => {
    const failed = status(
      pod(),
      machine({ state: "failed", reason: long, message: long, containers: [container("app")] }),
    );
    expect([failed.reason!.length, failed.message!.length]).toEqual([256, 4096]);
    const waiting = status(pod(), machine({ containers: [container("app", { reason: long, message: long })] }));
    const { reason, message } = waiting.containerStatuses![0]!.state!.waiting!;
    expect([reason!.length, message!.length]).toEqual([256, 4096]);
    const resize = status(pod(), machine(), { resize: { inProgress: { error: long } } });
    expect(JSON.stringify(resize.conditions).length).toBeLessThan(10_000);
  });

  test("is cut in a verdict as well", () => {
    const s = status(pod(), undefined, { ended: true, verdict: { reason: "InvalidSpec", message: long } });
    expect(s.message).toHaveLength(4096);
  });
});

describe("addresses", () => {
  const of = (machineIPs: string[], hostIPs: string[], before = {}) => {
    const addresses = machineIPs.map((ip) => ({ ip }));
    const s = podStatus({
      pod: pod({ status: before }),
      machine: machine({ addresses }),
      hostIPs,
      now: NOW,
      ended: false,
    });
    const list = (ips: readonly { ip: string }[] | undefined) => ips?.map(({ ip }) => ip);
    return { podIP: s.podIP, podIPs: list(s.podIPs), hostIP: s.hostIP, hostIPs: list(s.hostIPs) };
  };

  test("are the first of each family, for an API server takes no more", () => {
    const many = ["10.9.0.7", "172.16.0.7", "fd00::7", "fd01::7"];
    expect(of(many, ["10.1.0.1", "10.2.0.1", "fd99::1"])).toEqual({
      podIP: "10.9.0.7",
      podIPs: ["10.9.0.7", "fd00::7"],
      hostIP: "10.1.0.1",
      hostIPs: ["10.1.0.1", "fd99::1"],
    });
  });

  test("have the node's own family first", () => {
    expect(of(["fd00::7", "10.9.0.7"], ["10.1.0.1"])).toMatchObject({
      podIP: "10.9.0.7",
      podIPs: ["10.9.0.7", "fd00::7"],
    });
  });

  test("that are none are left out", () => {
    expect(of(["fe80::1%eth0", "10.9.0.7"], ["10.1.0.1"]).podIPs).toEqual(["10.9.0.7"]);
  });

  test("stay when the machine has none any more", () => {
    expect(of([], ["10.1.0.1"], { podIP: "10.9.0.7", podIPs: [{ ip: "10.9.0.7" }] }).podIPs).toEqual(["10.9.0.7"]);
  });
});

describe("container statuses", () => {
  test("name the mounts, before the container starts as well as afterwards", () => {
    const volumeMounts = [
      { name: "data", mountPath: "/data" },
      { name: "config", mountPath: "/etc/app", readOnly: true },
    ];
    const p = pod({ spec: { containers: [{ name: "app", image: "app:1", volumeMounts }] } });
    const expected = [
      { name: "data", mountPath: "/data" },
      { name: "config", mountPath: "/etc/app", readOnly: true, recursiveReadOnly: "Disabled" },
    ];
    expect(status(p, undefined).containerStatuses![0]!.volumeMounts).toEqual(expected);
    expect(status(p, machine()).containerStatuses![0]!.volumeMounts).toEqual(expected);
  });

  test("are there from the first status on", () => {
    expect(status(pod(), undefined).containerStatuses).toEqual([
      {
        name: "app",
        state: { waiting: { reason: "ContainerCreating" } },
        lastState: {},
        ready: false,
        restartCount: 0,
        image: "app:1",
        imageID: "",
        started: false,
      },
    ]);
  });

  test("say PodInitializing while init containers come first", () => {
    const s = status(pod({ spec: { initContainers: [{ name: "init", image: "i" }] } }), undefined);
    expect(s.containerStatuses![0]!.state).toEqual({ waiting: { reason: "PodInitializing" } });
    expect(s.initContainerStatuses![0]!.state).toEqual({ waiting: { reason: "ContainerCreating" } });
  });

  test("name what a container waits for", () => {
    const waiting = new Map([["app", { reason: "CreateContainerConfigError", message: 'configmap "c" not found' }]]);
    expect(status(pod(), undefined, { waiting }).containerStatuses![0]!.state).toEqual({
      waiting: { reason: "CreateContainerConfigError", message: 'configmap "c" not found' },
    });
  });

  test("show a running container with second precision", () => {
    expect(status(pod(), machine()).containerStatuses![0]).toMatchObject({
      state: { running: { startedAt: "2026-06-01T11:59:00Z" } },
      ready: true,
      started: true,
      containerID: "vmlet://app-0",
    });
  });

  test("keep the start that was told first when the backend tells none", () => {
    const { started_at: _untold, ...state } = running("app");
    const m = machine({ containers: [state] });
    const first = status(pod(), m);
    const p = pod({ status: { ...first } });
    expect(statusDiff(p.status, status(p, m, { now: NOW + 60_000 }))).toBeUndefined();
    const restarted = machine({ containers: [{ ...state, id: "app-1", restart_count: 1 }] });
    expect(status(p, restarted, { now: NOW + 60_000 }).containerStatuses![0]!.state).toEqual({
      running: { startedAt: "2026-06-01T12:01:00Z" },
    });
  });

  test("never let a restart count fall", () => {
    const p = pod({
      status: { phase: "Running", containerStatuses: [{ name: "app", restartCount: 5, state: {}, lastState: {} }] },
    });
    expect(status(p, machine()).containerStatuses![0]!.restartCount).toBe(5);
  });

  test("never let a container's last end go back to an earlier one, when the machine was lost and made again", () => {
    const [earlier, told] = [exited("app", 1).terminated!, exited("app", 2).terminated!];
    const shown = status(pod(), machine({ containers: [exited("app", 2, { restart_count: 2, last: earlier })] }));
    const reborn = machine({ containers: [running("app", { id: "new", last: { ...earlier, id: "new-0" } })] });
    expect(status(pod({ status: shown }), reborn).containerStatuses![0]).toMatchObject({
      restartCount: 2,
      lastState: { terminated: { exitCode: told.exit_code } },
    });
  });

  test("are sorted by name, init containers in order of the spec", () => {
    const p = pod({
      spec: {
        containers: [
          { name: "z", image: "z" },
          { name: "a", image: "a" },
        ],
        initContainers: [
          { name: "y", image: "y" },
          { name: "b", image: "b" },
        ],
      },
    });
    const s = status(p, undefined);
    expect(s.containerStatuses!.map((c) => c.name)).toEqual(["a", "z"]);
    expect(s.initContainerStatuses!.map((c) => c.name)).toEqual(["y", "b"]);
  });

  test("count a container whose end nobody saw as failed when the machine is lost", () => {
    const p = pod({
      status: {
        phase: "Running",
        containerStatuses: [
          { name: "app", restartCount: 0, containerID: "vmlet://x", state: { running: {} }, lastState: {} },
        ],
      },
    });
    const s = status(p, undefined, { ended: true, verdict: { reason: "MachineLost", message: "gone" } });
    expect(s.containerStatuses![0]!.state!.terminated).toMatchObject({
      exitCode: 137,
      reason: "ContainerStatusUnknown",
      message: "The container could not be located when the pod was terminated",
    });
  });
});

describe("conditions", () => {
  test("follow readiness", () => {
    const s = status(pod(), machine({ containers: [running("app", { ready: false })] }));
    expect(condition(s, "Ready")).toMatchObject({
      status: "False",
      reason: "ContainersNotReady",
      message: "containers with unready status: [app]",
    });
    expect(condition(s, "ContainersReady")).toMatchObject({ status: "False" });
  });

  test("hold Ready back until each readiness gate is True", () => {
    const p = pod({ spec: { readinessGates: [{ conditionType: "lb/ready" }] } });
    const s = status(p, machine());
    expect(condition(s, "ContainersReady")!.status).toBe("True");
    expect(condition(s, "Ready")).toMatchObject({
      status: "False",
      reason: "ReadinessGatesNotReady",
      message: 'corresponding condition of pod readiness gate "lb/ready" does not exist.',
    });
  });

  test("name the init containers that are not done", () => {
    const p = pod({
      spec: {
        initContainers: [
          { name: "i1", image: "i" },
          { name: "i2", image: "i" },
        ],
      },
    });
    expect(condition(status(p, undefined), "Initialized")).toMatchObject({
      status: "False",
      reason: "ContainersNotInitialized",
      message: "containers with incomplete status: [i1 i2]",
    });
  });

  test("stay Initialized while init containers run again", () => {
    const p = pod({
      spec: { initContainers: [{ name: "i", image: "i" }] },
      status: { conditions: [{ type: "Initialized", status: "True" }] },
    });
    const again = machine({ containers: [running("i", { kind: "init" }), container("app")] });
    expect(condition(status(p, again), "Initialized")!.status).toBe("True");
  });

  const restartsAll = pod({
    spec: {
      restartPolicy: "Never",
      containers: [
        {
          name: "app",
          image: "a",
          restartPolicy: "Never",
          restartPolicyRules: [{ action: "RestartAllContainers", exitCodes: { operator: "In", values: [42] } }],
        },
        { name: "b", image: "b" },
      ],
    },
  });

  test.each([
    ["says that all containers restart", 42, "True"],
    ["does not say so", 1, "False"],
  ])("AllContainersRestarting %s after exit code %i", (_, code, value) => {
    const s = status(restartsAll, machine({ containers: [exited("app", code), running("b")] }));
    expect(condition(s, "AllContainersRestarting")!.status).toBe(value);
  });

  test("AllContainersRestarting is over when the containers wait to start again", () => {
    const last = exited("app", 42).terminated!;
    const s = status(restartsAll, machine({ containers: [container("app", { last }), container("b")] }));
    expect(condition(s, "AllContainersRestarting")!.status).toBe("False");
  });

  test("AllContainersRestarting is only of pods that have such a rule", () => {
    expect(condition(status(pod(), machine()), "AllContainersRestarting")).toBeUndefined();
  });

  test("of others survive", () => {
    const foreign = { type: "example.com/audited", status: "True", lastTransitionTime: "2026-05-01T00:00:00Z" };
    const s = status(pod({ status: { conditions: [foreign] } }), machine());
    expect(condition(s, "example.com/audited")).toEqual(foreign);
  });

  test("keep their transition time while the value stays", () => {
    const before = status(pod(), machine());
    const later = podStatus({
      pod: pod({ status: { ...before } }),
      machine: machine(),
      hostIPs: ["10.1.0.1"],
      now: NOW + 60_000,
      ended: false,
    });
    expect(condition(later, "Ready")!.lastTransitionTime).toBe(condition(before, "Ready")!.lastTransitionTime);
  });

  test("keep the generation that the machine was brought to", () => {
    const behind = pod({ metadata: { generation: 7 }, status: { observedGeneration: 6 } });
    expect(status(behind, machine(), { behind: true }).observedGeneration).toBe(6);
  });

  test("carry the generation that they were computed from", () => {
    const s = status(pod({ metadata: { generation: 7 } }), machine());
    expect([s.observedGeneration, condition(s, "Ready")!.observedGeneration]).toEqual([7, 7]);
  });

  test("say PodCompleted when the pod succeeded", () => {
    const s = status(
      pod({ spec: { restartPolicy: "Never" } }),
      machine({ state: "stopped", containers: [exited("app", 0)] }),
    );
    expect(condition(s, "Ready")).toMatchObject({ status: "False", reason: "PodCompleted" });
    expect(condition(s, "Initialized")).toMatchObject({ status: "True", reason: "PodCompleted" });
  });
});

describe("addresses and times", () => {
  test("of a pod on the host's network are the node's, whatever the backend says", () => {
    const addresses = [{ ip: "10.9.0.7" }];
    const { podIP, podIPs } = status(pod({ spec: { hostNetwork: true } }), machine({ addresses }));
    expect([podIP, podIPs]).toEqual(["10.1.0.1", [{ ip: "10.1.0.1" }]]);
  });

  test("startTime is set once and never changes", () => {
    expect(status(pod(), machine()).startTime).toBe("2026-06-01T12:00:00Z");
    expect(status(pod({ status: { startTime: "2026-01-01T00:00:00Z" } }), machine()).startTime).toBe(
      "2026-01-01T00:00:00Z",
    );
  });

  test("the pod's address outlives its machine", () => {
    const p = pod({ status: { phase: "Running", podIP: "10.9.0.7", podIPs: [{ ip: "10.9.0.7" }] } });
    expect(status(p, machine({ state: "stopped", addresses: [], containers: [exited("app", 0)] })).podIP).toBe(
      "10.9.0.7",
    );
  });
});

describe("the diff", () => {
  test("is empty for a status that the API server already has", () => {
    const p = pod();
    const first = status(p, machine());
    expect(
      statusDiff({ ...first, qosClass: "BestEffort" }, status(pod({ status: { ...first } }), machine())),
    ).toBeUndefined();
  });

  test("clears a reason that no longer holds", () => {
    const p = pod({ status: { phase: "Pending", reason: "Waiting", message: "for capacity" } });
    expect(statusDiff(p.status, status(p, machine()))).toMatchObject({ phase: "Running", reason: null, message: null });
  });
});

describe("an eviction", () => {
  const message = 'Usage of EmptyDir volume "v" exceeds the limit "10Mi". ';
  const evicted = machine({ state: "failed", reason: "Evicted", message, containers: [exited("app", 137)] });

  test("of a pod that outgrew its own limits is Failed with the backend's words, and no disruption", () => {
    const s = status(pod({ status: { phase: "Running" } }), evicted);
    expect([s.phase, s.reason, s.message]).toEqual(["Failed", "Evicted", message]);
    expect(condition(s, "DisruptionTarget")).toBeUndefined();
  });

  test("that is the node's doing is a disruption, in the same patch", () => {
    const pressure = "The node was low on resource: memory. ";
    const s = status(pod({ status: { phase: "Running" } }), { ...evicted, message: pressure });
    expect([s.phase, s.reason]).toEqual(["Failed", "Evicted"]);
    expect(condition(s, "DisruptionTarget")).toMatchObject({
      status: "True",
      reason: "TerminationByKubelet",
      message: pressure,
    });
  });

  test("is Failed even when the containers ended well after they were told to", () => {
    expect(status(pod(), { ...evicted, containers: [exited("app", 0)] })).toMatchObject({
      phase: "Failed",
      reason: "Evicted",
    });
  });

  test("is no disruption when the machine failed for another reason", () => {
    const s = status(pod(), machine({ state: "failed", reason: "HostLost", containers: [exited("app", 137)] }));
    expect(condition(s, "DisruptionTarget")).toBeUndefined();
  });

  test("keeps a disruption that somebody else announced", () => {
    const conditions = [{ type: "DisruptionTarget", status: "True", reason: "EvictionByEvictionAPI" }];
    expect(condition(status(pod({ status: { conditions } }), machine()), "DisruptionTarget")).toEqual(conditions[0]);
  });
});

describe("termination messages", () => {
  const ended = (text: string) => exited("app", 1, { terminated: { ...exited("app", 1).terminated!, message: text } });
  const shown = (p: Pod, text: string) =>
    status(p, machine({ containers: [ended(text)] })).containerStatuses!.find(({ name }) => name === "app")!.state!
      .terminated!.message!;

  test("have at most 4096 bytes", () => {
    expect(shown(pod(), "x".repeat(5000))).toBe("x".repeat(4096));
  });

  test("share 12 KiB between the pod's containers", () => {
    const names = ["app", "b", "c", "d"];
    expect(
      shown(pod({ spec: { containers: names.map((name) => ({ name, image: "i" })) } }), "x".repeat(5000)),
    ).toHaveLength(3072);
  });

  test("are not cut within a character", () => {
    expect(shown(pod(), `${"x".repeat(4095)}é`)).toBe("x".repeat(4095));
  });
});

describe("resources of containers", () => {
  const asked = { limits: { cpu: "1500m", "vendor.example/gpu": "1" }, requests: { cpu: "1500m", memory: "128M" } };
  const p = pod({ spec: { containers: [{ name: "app", image: "i", resources: asked }] } });
  const given = { limits: { cpu_millis: 1500 }, requests: { cpu_millis: 1500, memory_bytes: 128_000_000 } };

  test("are those of the spec, in its own words, while the machine has them", () => {
    const s = status(p, machine({ containers: [running("app", { resources: given })] })).containerStatuses![0]!;
    expect(s.resources).toEqual(asked);
    expect(s.allocatedResources).toEqual(asked.requests);
  });

  test("are the machine's while a change has not been made", () => {
    const before = { ...given, requests: { ...given.requests, memory_bytes: 1 << 20 } };
    const s = status(p, machine({ containers: [running("app", { resources: before })] })).containerStatuses![0]!;
    expect(s.allocatedResources).toEqual({ cpu: "1500m", memory: "1Mi" });
  });

  test("are left out where the machine tells none", () => {
    expect(status(p, machine()).containerStatuses![0]!.resources).toBeUndefined();
  });
});

describe("resources of a pod", () => {
  const asked = { limits: { cpu: "2" }, requests: { cpu: "1500m", memory: "128M" } };
  const spec = { containers: [{ name: "app", image: "i" }], resources: asked };
  const seen = (resources?: ContainerResources) =>
    status(pod({ spec }), machine({ containers: [running("app")], ...(resources && { resources }) }));
  const given = { limits: { cpu_millis: 2000 }, requests: { cpu_millis: 1500, memory_bytes: 128_000_000 } };

  test("are those of the spec, in its own words, while the machine has them", () => {
    expect(seen(given)).toMatchObject({ resources: asked, allocatedResources: asked.requests });
  });

  test("are the machine's while a change has not been made", () => {
    const { resources } = seen({ ...given, limits: { cpu_millis: 1000 } });
    expect(resources).toEqual({ ...asked, limits: { cpu: "1" } });
  });

  test("are told of one that has none of its own as its backend says them", () => {
    const sum = { limits: { cpu: "2" }, requests: { cpu: "1500m", memory: "125000Ki" } };
    const told = status(pod(), machine({ resources: given }));
    expect(told).toMatchObject({ resources: sum, allocatedResources: sum.requests });
    expect(status(pod(), machine())).not.toHaveProperty("resources");
  });

  test("its container that names none has none, and that is said", () => {
    expect(seen().containerStatuses![0]!.resources).toEqual({});
  });
});

describe("a pod that its init container failed", () => {
  const p = pod({
    spec: { restartPolicy: "Never", initContainers: [{ name: "init", image: "i" }] },
    status: { phase: "Pending" },
  });
  const started = {
    name: "init",
    containerID: "vmlet://init-0",
    image: "i",
    imageID: "",
    ready: false,
    restartCount: 0,
  };
  const seen: Pod = { ...p, status: { ...p.status!, initContainerStatuses: [started] } };
  const over = machine({ state: "stopped", containers: [exited("init", 9, { kind: "init" }), container("app")] });

  test("keeps its main containers waiting: they were never begun", () => {
    expect(status(seen, over).containerStatuses![0]!.state).toEqual({ waiting: { reason: "ContainerCreating" } });
  });

  test("is not Initialized", () => {
    expect(condition(status(seen, over), "Initialized")).toMatchObject({
      status: "False",
      message: "containers with incomplete status: [init]",
    });
  });
});

test("why an ephemeral container waits stands until an agent that has just been started has looked again", () => {
  const why = { reason: "UnsupportedFeature", message: "no such thing" };
  const spec = { ephemeralContainers: [{ name: "debug", image: "b" }] };
  const before = status(pod({ spec }), machine(), { waiting: new Map([["debug", why]]) });
  const restarted = pod({ spec, status: { ...before } });
  expect(statusDiff(restarted.status, status(restarted, machine()))).toBeUndefined();
  expect(before.ephemeralContainerStatuses).toMatchObject([{ state: { waiting: why } }]);
});
