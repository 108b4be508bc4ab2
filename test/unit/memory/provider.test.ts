import { afterEach, describe, expect, test } from "vitest";
import {
  MemoryProvider,
  randomFaults,
  scriptedFaults,
  type MemoryProviderOptions,
} from "../../../providers/memory/index.ts";
import { shellProgram } from "../../../providers/memory/shell.ts";
import { ALL_CAPABILITIES } from "../../../src/provider/capabilities.ts";
import type { MachineSpec } from "../../../src/provider/machine.ts";
import type { LogLine, MachineEvent } from "../../../src/provider/provider.ts";
import { machineSpec, script } from "../../support/builders.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

const signal = new AbortController().signal;
const open: MemoryProvider[] = [];

function setup(options: MemoryProviderOptions = {}) {
  const clock = new VirtualClock();
  const provider = new MemoryProvider({ clock, ...options });
  open.push(provider);
  return { clock, provider };
}

afterEach(async () => {
  await Promise.all(open.splice(0).map((provider) => provider.close()));
});

const spec = (rest: Partial<MachineSpec> = {}) =>
  machineSpec({ labels: { node: "n" }, containers: [script("sleep 3600")], ...rest });

/** Lets promises that are ready run; no time passes. */
const turn = () => new Promise((resolve) => setImmediate(resolve));

async function lines(source: AsyncIterable<LogLine>): Promise<string[]> {
  const found: string[] = [];
  for await (const line of source) found.push(`${line.stream}:${line.content.toString()}`);
  return found;
}

describe("createPod", () => {
  test("returns a running machine when no stages are set", async () => {
    const { provider } = setup();
    expect(await provider.createPod("m", spec(), { signal })).toMatchObject({
      id: "m",
      version: 1,
      state: "running",
      addresses: [{ ip: "10.64.0.1" }],
    });
  });

  test("goes through the stages in their time", async () => {
    const { provider, clock } = setup({ stages: { pendingMs: 10, startingMs: 20 } });
    expect((await provider.createPod("m", spec(), { signal })).state).toBe("pending");
    await clock.advance(10);
    expect((await provider.getPod("m", { signal })).state).toBe("starting");
    await clock.advance(20);
    expect((await provider.getPod("m", { signal })).state).toBe("running");
  });

  test("returns the same machine for the same specification with its keys in another order", async () => {
    const { provider } = setup();
    const first = await provider.createPod(
      "m",
      { labels: { a: "1", b: "2" }, restart_policy: "never", containers: [script("sleep 1")] },
      { signal },
    );
    const second = await provider.createPod(
      "m",
      { containers: [script("sleep 1")], restart_policy: "never", labels: { b: "2", a: "1" } },
      { signal },
    );
    expect(second).toEqual(first);
    expect(provider.machines).toHaveLength(1);
  });

  test("refuses a specification that needs what the provider lacks and names the field", async () => {
    const { provider } = setup({ capabilities: ["events"] });
    await expect(
      provider.createPod("m", spec({ volumes: [{ name: "v", type: "empty_dir", medium: "disk" }] }), { signal }),
    ).rejects.toMatchObject({
      code: "unsupported",
      field: "volumes.0",
    });
  });

  test("refuses with quota when there are as many machines as there may be", async () => {
    const { provider } = setup({ maxMachines: 1 });
    await provider.createPod("a", spec(), { signal });
    await expect(provider.createPod("b", spec(), { signal })).rejects.toMatchObject({ code: "quota" });
  });
});

describe("the life of containers", () => {
  test("a machine is stopped when its main containers have ended, with their exit codes", async () => {
    const { provider, clock } = setup();
    await provider.createPod("m", spec({ containers: [script("sleep 5; exit 3")] }), { signal });
    await clock.advance(5000);
    const machine = await provider.getPod("m", { signal });
    expect(machine.state).toBe("stopped");
    expect(machine.containers[0]?.terminated).toMatchObject({ exit_code: 3, reason: "Error" });
  });

  test("restarts wait longer each time and counts grow", async () => {
    const { provider, clock } = setup();
    await provider.createPod(
      "m",
      spec({ restart_policy: "always", backoff: { initial_ms: 100, max_ms: 200 }, containers: [script("exit 1")] }),
      { signal },
    );
    await clock.advance(0);
    const counts: number[] = [];
    for (let i = 0; i < 5; i++) {
      counts.push((await provider.getPod("m", { signal })).containers[0]!.restart_count);
      await clock.advance(100);
    }
    expect(counts).toEqual([1, 2, 2, 3, 3]);
  });

  test("a container that waits for its restart says so in a kubelet's words", async () => {
    const { provider, clock } = setup();
    const labels = { "vmlet.dev/namespace": "ns", "vmlet.dev/pod": "web-0", "vmlet.dev/uid": "u1" };
    await provider.createPod("m", spec({ labels, restart_policy: "always", containers: [script("exit 1")] }), {
      signal,
    });
    await clock.advance(1);
    const machine = await provider.getPod("m", { signal });
    expect(machine.containers[0]).toMatchObject({
      state: "waiting",
      reason: "CrashLoopBackOff",
      message: "back-off 10s restarting failed container=c pod=web-0_ns(u1)",
    });
    expect(machine.notices!.at(-1)).toMatchObject({ reason: "BackOff", container: "c" });
  });

  test("an instance that ran for long starts the back-off over", async () => {
    const runs = ["exit 1", "exit 1", "sleep 3600; exit 1"];
    const { provider, clock } = setup({
      behaviour: (_, { restarts }) => shellProgram(["sh", "-c", runs[restarts] ?? "sleep 3600"]),
    });
    const restarts = async () => (await provider.getPod("m", { signal })).containers[0]!.restart_count;
    const backoff = { initial_ms: 60_000, max_ms: 120_000 };
    await provider.createPod("m", spec({ restart_policy: "always", backoff }), { signal });
    await clock.advance(61_000);
    expect(await restarts()).toBe(2);
    await clock.advance(3_600_000);
    expect(await restarts()).toBe(3);
  });

  test("containers wait for the init containers by kubelet's reason", async () => {
    const { provider } = setup();
    const init = script("sleep 3600", { name: "init" });
    const machine = await provider.createPod("m", spec({ init_containers: [init] }), { signal });
    expect(machine.containers.map(({ name, reason }) => [name, reason])).toEqual([
      ["init", undefined],
      ["c", "PodInitializing"],
    ]);
  });

  test("init containers run in order, sidecars stay and end after the main ones", async () => {
    const { provider, clock } = setup();
    await provider.createPod(
      "m",
      spec({
        init_containers: [
          script("sleep 1", { name: "first" }),
          script("sleep 3600", { name: "side", restart_policy: "always" }),
        ],
        containers: [script("sleep 2", { name: "main" })],
      }),
      { signal },
    );
    const states = async () =>
      Object.fromEntries((await provider.getPod("m", { signal })).containers.map((c) => [c.name, c.state]));
    expect(await states()).toEqual({ first: "running", side: "waiting", main: "waiting" });
    await clock.advance(1000);
    expect(await states()).toEqual({ first: "terminated", side: "running", main: "running" });
    await clock.advance(2000);
    expect(await states()).toEqual({ first: "terminated", side: "terminated", main: "terminated" });
    expect((await provider.getPod("m", { signal })).state).toBe("stopped");
  });

  test("an image that cannot be pulled leaves its container waiting with the reason", async () => {
    const { provider } = setup();
    const machine = await provider.createPod(
      "m",
      spec({ containers: [script("true", { image: "registry.invalid/x:1" })] }),
      { signal },
    );
    expect(machine.containers[0]).toMatchObject({ state: "waiting", reason: "ImagePullBackOff" });
    expect(machine.state).toBe("starting");
  });

  test("an out-of-memory kill is told apart", async () => {
    const { provider } = setup();
    await provider.createPod("m", spec(), { signal });
    provider.endContainer("m", "c", { exitCode: 137, oomKilled: true });
    expect((await provider.getPod("m", { signal })).containers[0]?.terminated).toMatchObject({
      exit_code: 137,
      reason: "OOMKilled",
      oom_killed: true,
    });
  });

  test("address tokens in the environment become the address", async () => {
    const { provider, clock } = setup();
    await provider.createPod(
      "m",
      spec({
        address_tokens: { pod_ip: "@ip@", pod_ips: "@ips@" },
        containers: [script("echo $IP", { env: [{ name: "IP", value: "is @ip@" }] })],
      }),
      { signal },
    );
    await clock.advance(0);
    expect(await lines(provider.getLogs("m", "c", { signal }))).toEqual(["stdout:is 10.64.0.1"]);
  });
});

describe("stopPod", () => {
  test("ends at once what obeys the signal", async () => {
    const { provider } = setup();
    await provider.createPod("m", spec(), { signal });
    const machine = await provider.stopPod("m", { signal, graceSeconds: 30 });
    expect(machine.state).toBe("stopped");
    expect(machine.containers[0]?.terminated?.exit_code).toBe(143);
  });

  test("kills after the grace what ignores the signal, and not before", async () => {
    const { provider, clock } = setup();
    await provider.createPod("m", spec({ containers: [script("trap '' TERM; sleep 3600")] }), { signal });
    await turn();
    expect((await provider.stopPod("m", { signal, graceSeconds: 10 })).state).toBe("stopping");
    await clock.advance(9999);
    expect((await provider.getPod("m", { signal })).state).toBe("stopping");
    await clock.advance(1);
    expect((await provider.getPod("m", { signal })).containers[0]?.terminated?.exit_code).toBe(137);
  });

  test("a shorter grace shortens a stop under way, a longer one does not lengthen it", async () => {
    const { provider, clock } = setup();
    await provider.createPod("m", spec({ containers: [script("trap '' TERM; sleep 3600")] }), { signal });
    await turn();
    await provider.stopPod("m", { signal, graceSeconds: 100 });
    await provider.stopPod("m", { signal, graceSeconds: 2 });
    await provider.stopPod("m", { signal, graceSeconds: 100 });
    await clock.advance(2000);
    expect((await provider.getPod("m", { signal })).state).toBe("stopped");
  });

  test("runs the trap of a container that has one", async () => {
    const { provider, clock } = setup();
    await provider.createPod(
      "m",
      spec({ containers: [script("trap 'echo bye; exit 5' TERM; while true; do sleep 1; done")] }),
      { signal },
    );
    await turn();
    await provider.stopPod("m", { signal, graceSeconds: 30 });
    await clock.advance(0);
    expect((await provider.getPod("m", { signal })).containers[0]?.terminated?.exit_code).toBe(5);
    expect(await lines(provider.getLogs("m", "c", { signal }))).toEqual(["stdout:bye"]);
  });
});

describe("deletePod", () => {
  test("leaves a tombstone with the last statuses, which a late create cannot pass", async () => {
    const { provider } = setup();
    await provider.createPod("m", spec(), { signal });
    await provider.deletePod("m", { signal, force: true });
    const tombstone = await provider.getPod("m", { signal });
    expect(tombstone).toMatchObject({ state: "deleted", containers: [{ terminated: { exit_code: 137 } }] });
    await expect(provider.createPod("m", spec(), { signal })).rejects.toMatchObject({ code: "gone" });
  });

  test("of an unknown id leaves one as well", async () => {
    const { provider } = setup();
    await provider.deletePod("m", { signal, force: false });
    await expect(provider.createPod("m", spec(), { signal })).rejects.toMatchObject({ code: "gone" });
  });

  test("without force stops first: a create meanwhile is gone already", async () => {
    const { provider, clock } = setup();
    await provider.createPod("m", spec({ termination_grace_s: 5, containers: [script("trap '' TERM; sleep 3600")] }), {
      signal,
    });
    await turn();
    await provider.deletePod("m", { signal, force: false });
    expect((await provider.getPod("m", { signal })).state).toBe("deleting");
    await expect(provider.createPod("m", spec(), { signal })).rejects.toMatchObject({ code: "gone" });
    await clock.advance(5000);
    expect((await provider.getPod("m", { signal })).state).toBe("deleted");
  });

  test("tombstones expire", async () => {
    const { provider, clock } = setup({ tombstoneMs: 1000 });
    await provider.deletePod("m", { signal, force: false });
    await clock.advance(1000);
    await expect(provider.getPod("m", { signal })).rejects.toMatchObject({ code: "not_found" });
  });
});

describe("watchPods", () => {
  test("from a list's revision misses nothing and says each revision once", async () => {
    const { provider } = setup();
    await provider.createPod("a", spec(), { signal });
    const { revision } = await provider.getPods({ signal, labels: {} });
    const stop = new AbortController();
    const events: MachineEvent[] = [];
    const watching = (async () => {
      for await (const event of provider.watchPods(revision, { signal: stop.signal, labels: { node: "n" } }))
        events.push(event);
    })();
    await provider.createPod("b", spec(), { signal });
    await provider.createPod("other", spec({ labels: { node: "else" } }), { signal });
    await provider.deletePod("a", { signal, force: true });
    await turn();
    stop.abort();
    await watching;
    expect(events.map(({ machine }) => `${machine.id} ${machine.state}`)).toEqual(["b running", "a deleted"]);
    expect(events[1]!.revision).toBeGreaterThan(events[0]!.revision);
  });

  test("from a revision that is no longer remembered is gone", async () => {
    const { provider } = setup({ historyLimit: 2 });
    for (let i = 0; i < 10; i++) await provider.createPod(`m-${i}`, spec(), { signal });
    await expect(provider.watchPods(1, { signal, labels: {} }).next()).rejects.toMatchObject({ code: "gone" });
  });
});

describe("getLogs", () => {
  const logged = async (text: string) => {
    const { provider, clock } = setup();
    await provider.createPod("m", spec({ containers: [script(text)] }), { signal });
    await clock.advance(0);
    return { provider, clock };
  };

  test.each([
    ["all", {}, ["stdout:one", "stderr:two", "stdout:three"]],
    ["the last", { tail: 1 }, ["stdout:three"]],
    ["none of the past", { tail: 0 }, []],
    ["one stream", { stream: "stderr" as const }, ["stderr:two"]],
    ["the last of one stream", { stream: "stdout" as const, tail: 1 }, ["stdout:three"]],
    ["so many bytes", { limitBytes: 6 }, ["stdout:one", "stderr:tw"]],
  ])("gives %s", async (_case, options, expected) => {
    const { provider } = await logged("echo one; echo two >&2; echo three");
    expect(await lines(provider.getLogs("m", "c", { signal, ...options }))).toEqual(expected);
  });

  test("follows until the container ends", async () => {
    const { provider, clock } = await logged("echo one; sleep 1; echo two");
    const following = lines(provider.getLogs("m", "c", { signal, follow: true }));
    await clock.advance(1000);
    expect(await following).toEqual(["stdout:one", "stdout:two"]);
  });

  test("gives the previous instance's after a restart", async () => {
    const { provider, clock } = setup();
    await provider.createPod(
      "m",
      spec({ restart_policy: "on_failure", containers: [script("echo run; sleep 1; exit 1")] }),
      { signal },
    );
    await expect(lines(provider.getLogs("m", "c", { signal, previous: true }))).rejects.toMatchObject({
      code: "not_found",
    });
    await clock.advance(1500);
    expect(await lines(provider.getLogs("m", "c", { signal, previous: true }))).toEqual(["stdout:run"]);
  });
});

describe("streams", () => {
  test("exec splits its outputs and gives the exit code", async () => {
    const { provider } = setup();
    await provider.createPod("m", spec(), { signal });
    const streams = await provider.exec("m", "c", ["sh", "-c", "echo out; echo err >&2; exit 7"], {
      signal,
      stdin: false,
      stdout: true,
      stderr: true,
      tty: false,
    });
    expect((await streams.stdout!.toArray()).join("")).toBe("out\n");
    expect((await streams.stderr!.toArray()).join("")).toBe("err\n");
    expect(await streams.exit).toEqual({ exitCode: 7 });
  });

  test("attach shows what the container writes from then on and ends with it", async () => {
    const { provider, clock } = setup();
    await provider.createPod("m", spec({ containers: [script("sleep 1; echo late; exit 2")] }), { signal });
    const streams = await provider.attach("m", "c", { signal, stdin: false, stdout: true, stderr: false, tty: false });
    await clock.advance(1000);
    expect((await streams.stdout!.toArray()).join("")).toBe("late\n");
    expect(await streams.exit).toEqual({ exitCode: 2 });
  });

  test("a port that is not declared is refused", async () => {
    const { provider } = setup();
    await provider.createPod("m", spec(), { signal });
    await expect(provider.portForward("m", 80, { signal })).rejects.toMatchObject({ code: "conflict" });
  });
});

describe("faults", () => {
  test("fail does nothing, lost does it and says nothing, late does it afterwards", async () => {
    const { provider, clock } = setup({
      faults: scriptedFaults([
        { operation: "createPod", fault: { kind: "fail", code: "unavailable" } },
        { operation: "createPod", fault: { kind: "lost" } },
        { operation: "createPod", fault: { kind: "late", afterMs: 100 } },
      ]),
    });
    const ids = () => provider.machines.map(({ id }) => id);
    await expect(provider.createPod("a", spec(), { signal })).rejects.toMatchObject({ code: "unavailable" });
    expect(ids()).toEqual([]);
    await expect(provider.createPod("b", spec(), { signal })).rejects.toMatchObject({ code: "unavailable" });
    expect(ids()).toEqual(["b"]);
    await expect(provider.createPod("c", spec(), { signal })).rejects.toMatchObject({ code: "unavailable" });
    await clock.advance(100);
    expect(ids()).toEqual(["b", "c"]);
  });

  test("a call that hangs ends when its signal aborts", async () => {
    const { provider } = setup({ faults: scriptedFaults([{ operation: "getPods", fault: { kind: "hang" } }]) });
    const stop = new AbortController();
    const call = provider.getPods({ signal: stop.signal, labels: {} });
    stop.abort();
    await expect(call).rejects.toMatchObject({ code: "unavailable" });
  });

  test("random faults strike with their probability", async () => {
    let seed = 0;
    const { provider } = setup({
      faults: randomFaults({
        random: () => (seed = (seed + 0.25) % 1),
        probability: 0.3,
        faults: [{ kind: "fail", code: "unavailable" }],
        operations: ["getPod"],
      }),
    });
    await provider.createPod("m", spec(), { signal });
    const results = await Promise.allSettled(Array.from({ length: 8 }, () => provider.getPod("m", { signal })));
    expect(results.map(({ status }) => status)).toContain("rejected");
    expect(results.map(({ status }) => status)).toContain("fulfilled");
  });

  test("a machine that vanishes is simply absent", async () => {
    const { provider } = setup();
    await provider.createPod("m", spec(), { signal });
    provider.vanish("m");
    await expect(provider.getPod("m", { signal })).rejects.toMatchObject({ code: "not_found" });
  });

  test("a lagging list hides what is young", async () => {
    const { provider, clock } = setup({ listLagMs: 500 });
    await provider.createPod("m", spec(), { signal });
    expect((await provider.getPods({ signal, labels: {} })).items).toEqual([]);
    await clock.advance(500);
    expect((await provider.getPods({ signal, labels: {} })).items).toHaveLength(1);
  });
});

describe("close", () => {
  test("ends watches", async () => {
    const { provider } = setup();
    const watch = provider.watchPods(0, { signal, labels: {} });
    const next = watch.next();
    await turn();
    await provider.close();
    expect(await next).toMatchObject({ done: true });
  });

  test("leaves nothing that says a machine is absent", async () => {
    const { provider } = setup();
    await provider.createPod("m", spec(), { signal });
    await provider.close();
    await expect(provider.getPod("m", { signal })).rejects.toMatchObject({ code: "unavailable" });
  });
});

test("a machine gets no container that has its file system as a block device", async () => {
  const { provider } = setup({ capabilities: ALL_CAPABILITIES });
  await provider.volumes.create("disk", { labels: {}, size_bytes: 1024, mode: "filesystem" }, { signal });
  await provider.createPod("m", spec({ volumes: [{ name: "data", type: "persistent", volume: "disk" }] }), { signal });
  const debug = { ...script("sleep 3600"), name: "debug", devices: [{ volume: "data", path: "/dev/x" }] };
  await expect(provider.updatePod("m", { ephemeral_containers: [debug] }, { signal })).rejects.toMatchObject({
    code: "invalid",
    field: "ephemeral_containers",
  });
  const { containers } = await provider.getPod("m", { signal });
  expect(containers.map(({ name }) => name)).not.toContain("debug");
});
