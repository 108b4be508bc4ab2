import { expect, test } from "vitest";
import { main, sidecar, World } from "./world.ts";

const probe = { initial_delay_s: 0, period_s: 1, timeout_s: 1, success: 1, failure: 3, exec: { command: ["probe"] } };

test("init containers run one after the other, then all main containers", async () => {
  const world = await World.create();
  await world.create({ init_containers: [main("i1"), main("i2")], containers: [main("a"), main("b")] });
  expect(world.running()).toEqual(["i1"]);
  await world.exit("i1", 0);
  expect(world.running()).toEqual(["i2"]);
  await world.exit("i2", 0);
  expect(world.running()).toEqual(["a", "b"]);
});

test("while init containers run, main containers wait with PodInitializing", async () => {
  const world = await World.create();
  await world.create({ init_containers: [main("i")] });
  expect(await world.container("a")).toMatchObject({ state: "waiting", reason: "PodInitializing" });
});

test("without init containers, a container waits with ContainerCreating", async () => {
  const world = await World.create((fresh) => fresh.openErrors.push(new Error("no room")));
  await world.create({});
  expect(await world.container("a")).toMatchObject({
    state: "waiting",
    reason: "ContainerCreating",
    ready: false,
    image_id: "",
  });
});

test("a failed init container under policy never ends the machine, and main containers never start", async () => {
  const world = await World.create();
  await world.create({ restart_policy: "never", init_containers: [main("i")] });
  await world.exit("i", 1);
  expect((await world.machine()).state).toBe("stopped");
  expect(world.starts("a")).toEqual([]);
});

test("a failed init container under policy always is restarted until it passes, and then not again", async () => {
  const world = await World.create();
  await world.create({ init_containers: [main("i")] });
  await world.exit("i", 1);
  expect(world.running()).toEqual(["i"]);
  await world.exit("i", 0);
  await world.advance(600_000);
  expect(world.running()).toEqual(["a"]);
  expect(world.starts("i")).toHaveLength(2);
});

test("a sidecar lets the next init container start once its startup probe has passed", async () => {
  let started = false;
  const world = await World.create((fresh) => (fresh.exec = () => (started ? 0 : 1)));
  await world.create({ init_containers: [sidecar("s", { probes: { startup: probe } }), main("i")] });
  expect(world.running()).toEqual(["s"]);
  started = true;
  await world.advance(1_000);
  expect(world.running()).toEqual(["s", "i"]);
});

test("a sidecar that ends is restarted while main containers run, even under policy never", async () => {
  const world = await World.create();
  await world.create({ restart_policy: "never", init_containers: [sidecar("s")] });
  await world.exit("s", 0);
  expect(world.running().toSorted()).toEqual(["a", "s"]);
});

test("once main containers have started, a sidecar in back-off does not hold up their restarts", async () => {
  const world = await World.create();
  await world.create({ init_containers: [sidecar("s")] });
  await world.exit("s", 1);
  await world.exit("s", 1);
  expect((await world.container("s")).reason).toBe("CrashLoopBackOff");
  await world.exit("a", 1);
  expect(world.running()).toEqual(["a"]);
});

test("the next main container waits for the post_start hook of the one before it", async () => {
  const world = await World.create();
  await world.create({
    containers: [main("a", { hooks: { post_start: { sleep: { seconds: 5 } } } }), main("b")],
  });
  expect(world.running()).toEqual(["a"]);
  await world.advance(5_000);
  expect(world.running()).toEqual(["a", "b"]);
});

test("a container is shown as running only after its post_start hook has returned", async () => {
  const world = await World.create();
  await world.create({ containers: [main("a", { hooks: { post_start: { sleep: { seconds: 5 } } } })] });
  expect(await world.container("a")).toMatchObject({ state: "waiting" });
  await world.advance(5_000);
  expect(await world.container("a")).toMatchObject({ state: "running", ready: true, started: true });
});

test("a container whose post_start hook has failed is killed after the grace period when it ignores its signal", async () => {
  const world = await World.create((fresh) => {
    fresh.deaf.add("a");
    fresh.exec = () => 1;
  });
  await world.create({
    restart_policy: "never",
    termination_grace_s: 10,
    containers: [main("a", { hooks: { post_start: { exec: { command: ["hook"] } } } })],
  });
  const { signals } = world.instance("a");
  await world.advance(60_000);
  expect(signals).toEqual([
    { signal: "SIGTERM", at: 0 },
    { signal: "SIGKILL", at: 10_000 },
  ]);
});

test("a failed post_start hook kills the container and says so", async () => {
  const world = await World.create((fresh) => (fresh.exec = () => 1));
  await world.create({
    restart_policy: "never",
    containers: [main("a", { hooks: { post_start: { exec: { command: ["hook"] } } } })],
  });
  expect((await world.machine()).state).toBe("stopped");
  expect(await world.notices()).toContain("FailedPostStartHook: PostStartHook failed");
});

test("a container waits for PostStartHookError until its back-off shows, and its last end is kept", async () => {
  const world = await World.create((fresh) => (fresh.exec = () => 1));
  const { revision } = await world.provider.getPods({ labels: {}, signal: world.signal });
  await world.create({ containers: [main("a", { hooks: { post_start: { exec: { command: ["hook"] } } } })] });
  expect(await world.waits("a", revision)).toEqual(["ContainerCreating", "PostStartHookError", "CrashLoopBackOff"]);
  expect((await world.container("a")).last).toMatchObject({ exit_code: 143 });
});

test("a container that cannot be run waits for RunContainerError until its back-off shows", async () => {
  const world = await World.create((fresh) => fresh.shimErrors.set("a", new Error("no memory")));
  const { revision } = await world.provider.getPods({ labels: {}, signal: world.signal });
  await world.create({});
  expect(await world.waits("a", revision)).toEqual(["ContainerCreating", "RunContainerError", "CrashLoopBackOff"]);
  expect((await world.container("a")).last).toMatchObject({ reason: "StartError", message: "no memory" });
});

test("a machine goes from pending to running with its sandbox ready and its address known", async () => {
  const world = await World.create();
  await world.create({});
  expect(await world.machine()).toMatchObject({
    state: "running",
    sandbox_ready: true,
    addresses: [{ ip: "10.9.0.7" }],
    host: "test",
  });
});

test("address tokens in env, command and args are replaced when the container starts", async () => {
  const world = await World.create();
  const a = main("a", { command: ["serve", "@IP@"], args: ["--ips=@IPS@"], env: [{ name: "POD_IP", value: "@IP@" }] });
  await world.create({ containers: [a], address_tokens: { pod_ip: "@IP@", pod_ips: "@IPS@" } });
  expect(world.instance("a").launch.spec).toMatchObject({
    command: ["serve", "10.9.0.7"],
    args: ["--ips=10.9.0.7"],
    env: [{ name: "POD_IP", value: "10.9.0.7" }],
  });
});

test("a sandbox that cannot be made is tried again, with an event", async () => {
  const world = await World.create((fresh) => fresh.openErrors.push(new Error("no room")));
  await world.create({});
  expect(await world.notices()).toEqual(["FailedCreatePodSandBox: Failed to create pod sandbox: no room"]);
  await world.advance(1_000);
  expect((await world.machine()).state).toBe("running");
});

test("an ephemeral container added to a running machine starts at once and is never restarted", async () => {
  const world = await World.create();
  await world.create({});
  await world.provider.updatePod("m1", { ephemeral_containers: [main("debug")] }, { signal: world.signal });
  await world.advance(0);
  expect(world.running()).toEqual(["a", "debug"]);
  await world.exit("debug", 1);
  await world.advance(600_000);
  expect(world.starts("debug")).toHaveLength(1);
  expect(await world.container("debug")).toMatchObject({ kind: "ephemeral", state: "terminated" });
});

test("the files of a volume are in place before the first container starts", async () => {
  const world = await World.create();
  await world.create({ volumes: [{ name: "cfg", type: "files", version: "7", files: [] }] });
  expect(world.patched).toEqual(["cfg=7"]);
  expect((await world.machine()).file_versions).toEqual([{ volume: "cfg", version: "7" }]);
});

test("each start is told in a kubelet's words, at its container", async () => {
  const world = await World.create();
  await world.create({ containers: [main("a"), main("b")] });
  const notices = (await world.machine()).notices ?? [];
  const told = notices.map(({ reason, message, container }) => `${container} ${reason}: ${message}`);
  expect(told.toSorted()).toEqual(
    ["a", "b"].flatMap((name) => [`${name} Created: Container created`, `${name} Started: Container started`]),
  );
});
