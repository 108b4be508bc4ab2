/** Pods that are refused, by this agent or by the backend, and creates of which nobody knows what came of them. */
import { beforeEach, describe, expect, test } from "vitest";
import { ProviderError, type ProviderErrorCode } from "../../../src/provider/errors.ts";
import { pod as basePod } from "../../support/builders.ts";
import { SPEC, World } from "./world.ts";

const ownedBy = (kind: string, apiVersion = "apps/v1") => ({
  ownerReferences: [{ apiVersion, kind, name: "web", uid: "o", controller: true }],
});
const worldOf = (kind?: string, apiVersion?: string) =>
  new World(basePod({ metadata: kind === undefined ? {} : ownedBy(kind, apiVersion) }));
const REJECT = {
  kind: "reject",
  reason: "UnsupportedFeature",
  message: "no hostNetwork",
  missing: ["host_network"],
} as const;
const NO_ROOM = { kind: "reject", reason: "OutOfcpu", message: "no room" } as const;
const failCreate = (world: World, code: ProviderErrorCode, message = "no") => {
  world.provider.createPod = () => Promise.reject(new ProviderError(code, message));
};
const deletes = (world: World) => {
  let count = 0;
  const deletePod = world.provider.deletePod.bind(world.provider);
  world.provider.deletePod = (...args) => {
    count++;
    return deletePod(...args);
  };
  return () => count;
};

describe("a pod that can never run here", () => {
  test.each([
    ["by the agent", (world: World) => void (world.rendered = REJECT), "UnsupportedFeature", "no hostNetwork"],
    ["by the backend", (world: World) => failCreate(world, "unsupported"), "FailedCreate", "no"],
    ["by the backend, as invalid", (world: World) => failCreate(world, "invalid"), "FailedCreate", "no"],
  ])(
    "and is refused %s stays Pending when its controller would replace it at once",
    async (_by, refuse, reason, why) => {
      const world = worldOf("ReplicaSet");
      refuse(world);
      await world.pass(600_000);
      expect(world.pod.status?.phase).toBe("Pending");
      expect(world.pod.status?.containerStatuses?.[0]?.state?.waiting?.message).toBe(why);
      const text = `${why}. The pod stays Pending, because its ReplicaSet would replace a failed one at once: change its template, or keep its pods from this node`;
      expect(new Set(world.said(reason))).toEqual(new Set([text]));
      expect(world.said(reason).length).toBeLessThan(10);
      expect(world.counted.filter(([what]) => what === "rejected")).toHaveLength(1);
    },
  );

  test.each([undefined, "Job"])("fails, and is told why, when it is of %s", async (kind) => {
    const world = worldOf(kind, "batch/v1");
    world.rendered = REJECT;
    await world.settle();
    expect(world.pod.status).toMatchObject({
      phase: "Failed",
      reason: "UnsupportedFeature",
      message: "Pod was rejected: no hostNetwork",
    });
    expect(world.said("UnsupportedFeature")).toEqual(["no hostNetwork"]);
  });

  test("runs as soon as it can", async () => {
    const world = worldOf("StatefulSet");
    world.rendered = REJECT;
    await world.pass(60_000);
    world.rendered = { kind: "ready", spec: SPEC };
    await world.pass(130_000);
    expect(world.pod.status?.phase).toBe("Running");
  });

  test("goes at once when it is deleted", async () => {
    const world = worldOf("ReplicaSet");
    world.rendered = REJECT;
    await world.settle();
    world.deletePod();
    await world.settle();
    expect(world.requests.at(-1)?.method).toBe("DELETE");
    expect(world.pod.status).toMatchObject({ phase: "Failed" });
    expect(world.pod.status?.reason).toBeUndefined();
  });
});

describe("a pod that cannot run here now", () => {
  test("fails at once when it is the first of its owner, and after ten seconds when it is a replacement", async () => {
    const world = worldOf("ReplicaSet");
    world.rendered = NO_ROOM;
    await world.settle();
    expect(world.pod.status).toMatchObject({ phase: "Failed", reason: "OutOfcpu" });
    await world.replacePod("u2");
    await world.pass(9_000);
    expect(world.pod.status?.phase).toBe("Pending");
    // It has been given nothing, so it must not count as if it had.
    expect(world.pod.status?.startTime).toBeUndefined();
    expect(world.said("OutOfcpu").at(-1)).toBe(
      "no room. The pod stays Pending, because its ReplicaSet would replace a failed one at once",
    );
    await world.pass(1_000);
    expect(world.pod.status).toMatchObject({ phase: "Failed", reason: "OutOfcpu" });
  });

  test("and waits for its turn to fail runs when it can", async () => {
    const world = worldOf("ReplicaSet");
    world.rendered = NO_ROOM;
    await world.settle();
    await world.replacePod("u2");
    await world.pass(1_000);
    world.rendered = { kind: "ready", spec: SPEC };
    await world.pass(9_000);
    expect(world.pod.status?.phase).toBe("Running");
  });
});

describe("a pod whose machine was lost soon", () => {
  const loseOnce = async (world: World) => {
    await world.settle();
    expect(world.pod.status?.phase).toBe("Running");
    const bringBack = world.loseMachine();
    await world.pass(11_000);
    bringBack();
    expect(world.pod.status).toMatchObject({ phase: "Failed", reason: "MachineLost" });
  };

  test("is replaced at once the first time, and later and later after that", async () => {
    const world = worldOf("ReplicaSet");
    await loseOnce(world);
    await world.replacePod("u2");
    await loseOnce(world);
    await world.replacePod("u3");
    await world.pass(8_000);
    expect(world.pod.status?.phase).toBe("Pending");
    expect(world.said("BackOff")).toHaveLength(2);
    await world.pass(2_000);
    expect(world.pod.status?.phase).toBe("Running");
  });

  test("is replaced at once when it ran for long", async () => {
    const world = worldOf("ReplicaSet");
    for (const uid of ["u2", "u3", "u4"]) {
      await world.pass(700_000);
      await loseOnce(world);
      await world.replacePod(uid);
    }
    await world.settle();
    expect(world.pod.status?.phase).toBe("Running");
  });
});

describe("a pod whose backend takes its machine away soon", () => {
  const soon = { reason: "SpotReclaimed", message: "it is taken back" };
  const past = new Date(0).toISOString();

  test.each([
    ["evicted", soon, {}],
    ["ended", { ...soon, at: past }, { phase: "Failed", reason: "Terminated" }],
  ])("is replaced at once the first time it is %s, and later and later after that", async (_how, disruption, end) => {
    const world = worldOf("ReplicaSet");
    for (const uid of ["u2", "u3"]) {
      await world.settle();
      expect(world.pod.status?.phase).toBe("Running");
      world.provider.setDisruption(`m-${world.pod.metadata!.uid}`, disruption);
      await world.pass(5_000);
      expect(world.pod.status).toMatchObject(end);
      await world.replacePod(uid);
    }
    await world.pass(4_000);
    expect(world.pod.status?.phase).toBe("Pending");
    expect(world.said("BackOff")).not.toEqual([]);
    await world.pass(6_000);
    expect(world.pod.status?.phase).toBe("Running");
  });
});

describe("a pod whose provider fails by a mistake of its own", () => {
  test("is told that it does, and not in whose words: they are for its author", async () => {
    const world = worldOf();
    world.provider.createPod = () => Promise.reject(new TypeError("no route to cloud?key=secret"));
    await world.settle();
    expect(world.pod.status?.phase).toBe("Pending");
    expect(new Set(world.said("FailedCreate"))).toEqual(
      new Set([
        "The backend could not create a machine yet: its provider failed with TypeError; the agent's log has the reason",
      ]),
    );
  });
});

describe("a pod whose backend does not give it what it asks for", () => {
  const refuseOnce = async (world: World) => {
    await world.settle();
    await world.hear({ state: "failed", reason: "UnexpectedAdmissionError", message: "Pod was rejected: no" });
    await world.settle();
    expect(world.pod.status).toMatchObject({ phase: "Failed", reason: "UnexpectedAdmissionError" });
  };

  test("is replaced at once the first time, and later and later after that", async () => {
    const world = worldOf("ReplicaSet");
    await refuseOnce(world);
    await world.replacePod("u2");
    await refuseOnce(world);
    await world.replacePod("u3");
    await world.pass(8_000);
    expect(world.pod.status?.phase).toBe("Pending");
    await world.pass(2_000);
    expect(world.pod.status?.phase).toBe("Running");
  });
});

describe("a pod that was refused", () => {
  test("and has a machine all the same, which the list lacked, keeps it", async () => {
    const world = worldOf();
    await world.provider.createPod("m-u1", SPEC, { signal: AbortSignal.timeout(1_000) });
    world.rendered = REJECT;
    world.hideMachines();
    await world.settle();
    expect(world.pod.status?.phase).toBe("Running");
    expect(world.said("UnsupportedFeature")).toEqual([]);
  });

  test("leaves the machine alone that another agent has made since this one looked", async () => {
    const world = worldOf();
    world.rendered = NO_ROOM;
    const remove = world.provider.deletePod.bind(world.provider);
    world.provider.deletePod = (id, options) => {
      world.provider.insert(id, SPEC);
      return remove(id, options);
    };
    await world.pass(60_000);
    expect(world.provider.machines.map(({ state }) => state)).toEqual(["running"]);
    expect(world.pod.status?.phase).toBe("Running");
  });

  test("leaves a tombstone before it fails, so that no create that is still on its way makes its machine", async () => {
    const world = worldOf();
    world.rendered = REJECT;
    const buried = deletes(world);
    world.onRequest = ({ method }) => {
      if (method === "PATCH") expect(buried()).toBe(1);
    };
    await world.settle();
    expect(world.pod.status?.phase).toBe("Failed");
    await expect(world.provider.createPod("m-u1", SPEC, { signal: AbortSignal.timeout(1_000) })).rejects.toMatchObject({
      code: "gone",
    });
  });

  test("after a create of which nobody knows what came of it stays Pending", async () => {
    const world = worldOf();
    const createPod = world.provider.createPod.bind(world.provider);
    failCreate(world, "unavailable");
    expect(await world.settle()).toMatchObject({ kind: "retry" });
    world.rendered = REJECT;
    await world.pass(600_000);
    expect(world.pod.status?.phase).toBe("Pending");
    expect(world.said("UnsupportedFeature").at(-1)).toContain("its machine may still come");
    // Here it is.
    await createPod("m-u1", SPEC, { signal: AbortSignal.timeout(1_000) });
    await world.settle();
    expect(world.pod.status?.phase).toBe("Running");
  });
});

describe("a pod that is deleted before it started", () => {
  test("has not lost a machine", async () => {
    const world = worldOf();
    failCreate(world, "quota");
    await world.settle();
    world.deletePod();
    await world.pass(10_000);
    expect(world.pod.status?.phase).toBe("Failed");
    expect(world.pod.status).not.toHaveProperty("reason");
    expect(world.requests.at(-1)?.method).toBe("DELETE");
  });
});

describe("a pod of which something is heard while it is read and rendered", () => {
  test.each([
    ["that it is deleted", (world: World) => world.deletePod()],
    ["that it is gone", (world: World) => world.goneFromCache()],
    ["that it has run", (world: World) => world.change({ status: { ...world.pod.status, phase: "Running" } })],
  ])("is given no machine when it is heard %s", async (_what, hear) => {
    const world = worldOf();
    let created = 0;
    world.provider.createPod = () => {
      created++;
      return Promise.reject(new ProviderError("unavailable", "no"));
    };
    world.onRender = () => hear(world);
    await world.settle();
    expect(created).toBe(0);
  });
});

describe("a backend that has a machine of another specification under the pod's id", () => {
  test("keeps it, and the pod is told", async () => {
    const world = worldOf();
    const other = { ...SPEC, hostname: "other" };
    await world.provider.createPod("m-u1", other, { signal: AbortSignal.timeout(1_000) });
    const deleted = deletes(world);
    world.hideMachines();
    await world.settle();
    expect(world.pod.status?.phase).toBe("Running");
    expect(deleted()).toBe(0);
    expect(world.said("SpecConflict")).toHaveLength(1);
  });
});

describe("the end of the agent", () => {
  test("is no failure of a create that was under way", async () => {
    const world = worldOf();
    world.provider.createPod = (_id, _spec, { signal }) =>
      new Promise((_resolve, reject) => {
        signal.addEventListener("abort", () => reject(new ProviderError("unavailable", "canceled")));
        world.end();
      });
    expect(await world.settle()).toMatchObject({ kind: "retry" });
    expect({ events: world.events, counted: world.counted }).toEqual({ events: [], counted: [] });
  });
});

describe("a machine that was made", () => {
  test.each([
    [undefined, "Created machine m-u1"],
    ["h7", "Created machine m-u1 on h7"],
  ])("on host %s is told of once", async (host, message) => {
    const world = worldOf();
    const createPod = world.provider.createPod.bind(world.provider);
    world.provider.createPod = async (...args) => {
      const { host: _memory, ...machine } = await createPod(...args);
      return { ...machine, ...(host && { host }) };
    };
    await world.settle();
    await world.settle();
    expect(world.said("MachineCreated")).toEqual([message]);
  });
});

describe("a machine that cannot be stopped", () => {
  let world: World;
  beforeEach(async () => {
    world = worldOf();
    await world.settle();
    world.deletePod();
  });
  const broken = () => Promise.reject(new ProviderError("unavailable", "connect ECONNREFUSED"));

  test.each(["stopPod", "deletePod"] as const)("because %s fails is told of, in the backend's words", async (call) => {
    world.provider[call] = broken;
    await world.pass(10_000);
    expect(world.said("FailedKillPod")[0]).toBe("error killing pod: connect ECONNREFUSED");
    expect(world.requests.map(({ method }) => method)).not.toContain("DELETE");
  });

  test("because nothing is known of it, and the backend cannot be asked, is told of as well", async () => {
    world.provider.getPod = broken;
    world.distrustLists();
    await world.settle();
    expect(world.said("FailedKillPod")).toEqual(["error killing pod: connect ECONNREFUSED"]);
  });
});

describe("a pod whose persistent volume its backend does not give it", () => {
  const CLAIM = { name: "data", type: "persistent" as const, volume: "disk", reservation: "abc.burst-0" };
  const refusing = (code: ProviderErrorCode, field = "volumes.1.volume") => {
    const world = worldOf("StatefulSet");
    const files = { name: "conf", type: "files" as const, version: "1", files: [] };
    world.rendered = { kind: "ready", spec: { ...SPEC, volumes: [files, CLAIM] } };
    const createPod = world.provider.createPod.bind(world.provider);
    world.provider.createPod = () => Promise.reject(new ProviderError(code, "volume disk is not to be had", { field }));
    const relent = () => {
      world.provider.createPod = (id, _spec, options) => createPod(id, SPEC, options);
    };
    return { world, relent };
  };

  test.each(["in_use", "not_found", "out_of_zone", "invalid"] as const)(
    "is held, with a kubelet's event, and never fails: %s",
    async (code) => {
      const { world } = refusing(code);
      await world.pass(600_000);
      expect(world.pod.status?.phase).toBe("Pending");
      const said = world.said("FailedMount");
      expect(said[0]).toBe('MountVolume.SetUp failed for volume "data" : volume disk is not to be had');
      expect(said.length).toBeLessThan(20);
      expect(said).toContainEqual(expect.stringContaining("unmounted volumes=[data]"));
    },
  );

  test("is held as well when it is a server's folder, whose options the backend does not have", async () => {
    const { world } = refusing("invalid", "volumes.1.mount_options");
    const share = { name: "data", type: "nfs" as const, server: "files.example", path: "/", mount_options: ["vers=3"] };
    const other = { name: "conf", type: "empty_dir" as const, medium: "disk" as const };
    world.rendered = { kind: "ready", spec: { ...SPEC, volumes: [other, share] } };
    await world.pass(600_000);
    expect(world.pod.status?.phase).toBe("Pending");
    expect(world.said("FailedMount")[0]).toContain('MountVolume.SetUp failed for volume "data" : ');
  });

  test("runs once it may have it", async () => {
    const { world, relent } = refusing("in_use");
    await world.pass(10_000);
    relent();
    await world.pass(130_000);
    expect(world.pod.status?.phase).toBe("Running");
  });

  test("is refused as any other when the fault is another volume's", async () => {
    const { world } = refusing("invalid", "volumes.0.files");
    await world.pass(10_000);
    expect(world.said("FailedMount")).toEqual([]);
    expect(world.said("FailedCreate")).not.toEqual([]);
  });
});
