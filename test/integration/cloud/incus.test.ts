/** Pods on a real Incus: each is an instance of its own, made from the image that `vmlet cloud image` makes. */
import { execFileSync, spawnSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { IncusCloud } from "../../../providers/cloud/incus/cloud.ts";
import { checkVmCloud, CloudProvider } from "../../../providers/cloud/index.ts";
import { incusProblems } from "../../../providers/cloud/incus/check.ts";
import { ProfileEntries } from "../../../providers/cloud/incus/entries.ts";
import { IncusClient } from "../../../providers/cloud/incus/client.ts";
import { CRI_CAPABILITIES } from "../../../providers/local/engines/capabilities.ts";
import type { MachineSpec } from "../../../src/provider/machine.ts";
import { startDevCluster } from "../../../src/devcluster/index.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { containerStatus, Pods, podSpec, serve } from "../../e2e/cases/pods.ts";
import { type AgentProcess, startAgent } from "../../e2e/harness/agent.ts";
import { type Client, createClient, type Json } from "../../e2e/harness/client.ts";
import { createKubectl, type Kubectl } from "../../e2e/harness/kubectl.ts";
import { createSandbox, type Sandbox } from "../../e2e/harness/processes.ts";
import { must, waitFor } from "../../e2e/harness/wait.ts";
import { guestConfigOf, missingForIncus, startIncus, type TestIncus } from "../../support/incus.ts";
import { leaveOut } from "../../support/left-out.ts";
import { relayTo } from "../../support/relay.ts";
import { busyboxImage, missingForImages, startRegistry } from "../../support/registry.ts";

const missing = [...(await missingForIncus()), ...[missingForImages() ?? []].flat()];
if (missing.length > 0) leaveOut("pods on Incus", missing);
else {
  test("an Incus that cannot be set up to its end leaves no network and no daemon behind", failsHalfWay, 120_000);
  describe("pods on Incus", pods);
}

async function failsHalfWay(): Promise<void> {
  await using sandbox = await createSandbox("incus-half");
  const output = (command: string, ...words: string[]) => execFileSync(command, words, { encoding: "utf8" });
  const fault = new Error("no image");
  let bridge: string | undefined;
  const traces = () => ({
    link: output("ip", "-o", "link").includes(`${bridge}:`),
    rules: output("nft", "list", "ruleset").includes(`${bridge}`),
    processes: output("ps", "-eo", "args").includes(`--interface=${bridge}`),
    mounts: output("cat", "/proc/mounts").includes(sandbox.dir),
  });
  let before: object | undefined;
  const guestConfig = (_address: string, gateway: string) => {
    const line = output("ip", "-o", "-4", "address")
      .split("\n")
      .find((each) => each.includes(` ${gateway}/`));
    [, bridge] = line!.trim().split(/\s+/);
    before = traces();
    throw fault;
  };
  await expect(startIncus(sandbox, { guestConfig })).rejects.toBe(fault);
  expect(before).toMatchObject({ link: true, rules: true, processes: true });
  expect(traces()).toEqual({ link: false, rules: false, processes: false, mounts: false });
}

/** What it says it is, and that it serves. */
const PROGRAM = `echo hello from $(hostname); echo here >/tmp/index.html; httpd -p 8080 -h /tmp; ${serve}`;
const START_MS = 240_000;
const isTrue = (status: Json, condition: string) =>
  status.conditions?.some((each: Json) => each.type === condition && each.status === "True") === true;
/** Pods of the soak, and how many there are at once; by hand it is 200 of them. */
const SOAK_PODS = Number(process.env["SOAK_INCUS"] ?? 6);
const SOAK_BURST = Math.min(20, Math.ceil(SOAK_PODS / 2));

function pods(): void {
  const cleanups: (() => Promise<unknown>)[] = [];
  let place: { sandbox: Sandbox; kubeconfig: string; client: Client };
  const signal = AbortSignal.timeout(1_200_000);
  let incus: TestIncus;
  let agent: AgentProcess;
  let kubectl: Kubectl;
  let own: Pods;
  let image: string;
  /** Which the VMs' image has already. */
  let prewarmed: string;

  beforeAll(async () => {
    const sandbox = await createSandbox("incus");
    cleanups.push(() => sandbox.close());
    const registry = await startRegistry();
    cleanups.push(() => registry.stop());
    for (const name of ["t/busybox:1", "t/ahead:1"]) await registry.push(name, await busyboxImage());
    const port = Number(registry.host.split(":")[1]);
    const nameOf = (address: string, name: string) => `${address}:${port}/t/${name}:1`;
    incus = await startIncus(sandbox, {
      guestConfig: (address) => guestConfigOf(`${address}:${port}`),
      prewarm: async (address) => {
        // The registry listens on loopback only.
        const relay = await relayTo(address, port);
        cleanups.push(() => relay[Symbol.asyncDispose]());
        return [nameOf(address, "ahead")];
      },
    });
    cleanups.push(() => incus.stop());
    image = nameOf(incus.address, "busybox");
    prewarmed = nameOf(incus.address, "ahead");
    const cluster = await startDevCluster({ clock: systemClock, logger: silentLogger });
    cleanups.push(() => cluster.close());
    const kubeconfig = join(sandbox.dir, "admin.kubeconfig");
    await writeFile(kubeconfig, cluster.kubeConfigYaml, { mode: 0o600 });
    const client = await createClient(kubeconfig);
    cleanups.push(async () => client.close());
    place = { sandbox, kubeconfig, client };
    const instanceTypes = [
      { name: "small", cpu: "500m", memory: "512Mi", price: 0.01, zone: "one" },
      { name: "large", cpu: "2", memory: "2Gi", price: 0.04, zone: "one" },
    ];
    const provider = { type: "cloud", cloud: incus.cloud, instanceTypes };
    agent = await startAgent({ sandbox, kubeconfig, nodeName: "burst", provider });
    cleanups.push(() => agent.stop());
    kubectl = await createKubectl(kubeconfig);
    own = new Pods(client, "default", "burst");
  }, 900_000);

  afterEach(async () => {
    await own.deleteAll();
    await waitFor({ what: "no instance to be left", timeoutMs: 120_000 }, () =>
      must(incus.instances().length === 0, incus.instances().join(" ")),
    );
  }, 200_000);

  afterAll(async () => {
    for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
  }, 120_000);

  test("what an image, a network or a right lacks is told before pods need it", async () => {
    expect(await incusProblems(incus.cloud, { signal })).toEqual([]);
    const [image] = await incusProblems({ ...incus.cloud, image: "other" }, { signal });
    expect(image).toMatchObject({ cure: "vmlet cloud image --config FILE" });
    const volumes = { pools: ["default"], member: "two" };
    expect(await incusProblems({ ...incus.cloud, volumes }, { signal })).toEqual([]);
    const told = async (other: object) =>
      (await incusProblems({ ...incus.cloud, volumes: { ...volumes, ...other } }, { signal })).map(
        (each) => each.problem,
      );
    expect(await told({ pools: ["none"] })).toEqual([expect.stringContaining("cloud.volumes.pools none")]);
    expect(await told({ member: undefined })).toEqual([expect.stringContaining("disks of its own")]);
    expect(await told({ member: "three" })).toEqual([expect.stringContaining("cloud.volumes.member three")]);
    const [project] = await incusProblems({ ...incus.cloud, project: "default" }, { signal });
    expect(project!.problem).toContain("project default");
  });

  const container = (extra: Json = {}) => ({ name: "c", image, command: ["sh", "-c", PROGRAM], ...extra });

  async function running(name: string, spec: Json = {}): Promise<Json> {
    await own.create(name, { containers: [container()], terminationGracePeriodSeconds: 1, ...spec });
    return await own.until(name, "to run", ({ status }) => status.phase === "Running", START_MS);
  }

  test("a pod is an instance, of the size that it asks for, and kubectl shows and enters it", async () => {
    const pod = await running("web", {
      containers: [container({ resources: { requests: { cpu: "1", memory: "1Gi" } } })],
    });
    const [name] = incus.instances();
    const { config }: Json = JSON.parse(incus.incus("query", `/1.0/instances/${name}?project=burst`));
    expect(config).toMatchObject({ "limits.cpu": "2", "limits.memory": String(2 ** 31), "user.vmlet-type": "large" });
    expect(await kubectl.run(["logs", "web"])).toBe("hello from web\n");
    expect(await kubectl.run(["exec", "web", "--", "sh", "-c", "cat /tmp/index.html; echo $((6 * 7))"])).toBe(
      "here\n42\n",
    );
    const typed = await kubectl.try(["exec", "-i", "web", "--", "sh", "-c", "wc -c; exit 3"], {
      input: "x".repeat(300_000),
    });
    expect([typed.code, typed.stdout.trim()]).toEqual([3, "300000"]);
    expect(await kubectl.run(["get", "pod", "web", "-o", "wide"])).toContain(pod.status.podIP);
  }, 200_000);

  test("a pod is reached at its instance's address", async () => {
    await running("web");
    const pod = await own.until("web", "to have an address", ({ status }) => Boolean(status.podIP));
    expect(pod.status.podIP.split(".").slice(0, 3)).toEqual(incus.gateway.split(".").slice(0, 3));
    const page = await waitFor({ what: "the pod to answer" }, () =>
      execFileSync("curl", ["-sf", "-m", "3", `http://${pod.status.podIP}:8080/`], { encoding: "utf8" }),
    );
    expect(page).toBe("here\n");
    // And by the pod itself, as what tells others its address tries.
    const script = `printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 ${pod.status.podIP} 8080 | tail -n 1`;
    expect(await kubectl.run(["exec", "web", "--", "sh", "-c", script])).toBe("here\n");
  }, 200_000);

  test("a pod is told its instance's address, may listen at that alone, and sends from it", async () => {
    const told = { name: "POD_IP", valueFrom: { fieldRef: { fieldPath: "status.podIP" } } };
    const program = `mkdir /tmp/w && echo bound >/tmp/w/index.html && httpd -p "$POD_IP:8081" -h /tmp/w && sleep 3600`;
    const readinessProbe = { httpGet: { port: 8081 }, periodSeconds: 1, failureThreshold: 30 };
    await running("bound", {
      containers: [container({ command: ["sh", "-c", program], env: [told], readinessProbe })],
    });
    const { status } = await own.until(
      "bound",
      "to be ready at its address",
      ({ status }) => isTrue(status, "Ready"),
      START_MS,
    );
    const sh = (script: string) => kubectl.run(["exec", "bound", "--", "sh", "-c", script]);
    expect(await sh('echo "$POD_IP"')).toBe(`${status.podIP}\n`);
    expect(await sh("grep bound /etc/hosts | cut -f 1")).toBe(`${status.podIP}\n`);
    expect(execFileSync("curl", ["-sf", "-m", "3", `http://${status.podIP}:8081/`], { encoding: "utf8" })).toBe(
      "bound\n",
    );
    // By an address of its own that it has chosen, as members of a cluster that are known by it do.
    expect(await sh(`ping -c 1 -W 5 -I "$POD_IP" ${incus.gateway}`)).toContain("1 packets received");
  }, 200_000);

  test("a pod reaches Services by rules of its own instance, where no kube-proxy is", async () => {
    const { client } = place;
    const services = "/api/v1/namespaces/default/services";
    const service = async (name: string) => {
      const spec = { selector: { app: name }, ports: [{ port: 80, targetPort: 8080 }] };
      return (await client.create(services, { metadata: { name }, spec })).spec.clusterIP as string;
    };
    const [web, idle] = [await service("web"), await service("idle")];
    const spec = { containers: [container()], terminationGracePeriodSeconds: 1 };
    await own.create("web", spec, { labels: { app: "web" } });
    await own.create("client", spec);
    for (const name of ["web", "client"])
      await own.until(name, "to run, with an address", ({ status }) => Boolean(status.podIP), START_MS);
    const calls = async (pod: string, address: string) => {
      const call = `printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 ${address} 80 2>&1 | tail -n 1`;
      return await kubectl.run(["exec", pod, "--", "sh", "-c", call]);
    };
    const untilSaid = async (pod: string, address: string, words: string) =>
      await waitFor({ what: `${pod} to be told ${words} by the Service`, timeoutMs: 90_000 }, async () => {
        const said = await calls(pod, address);
        must(said.includes(words), said);
      });
    // Itself, too.
    for (const pod of ["client", "web"]) await untilSaid(pod, web, "here");
    expect(await calls("client", idle)).toContain("Connection refused");
    // What leads to its endpoint is a guest's: killed, it finds what it was told.
    const named = incus.instances().map((each) => ["exec", "--project", "burst", each, "--"]);
    for (const inside of named) incus.incus(...inside, "pkill", "-KILL", "-f", "[g]uest-main");
    await untilSaid("client", web, "here");
    await own.delete("web");
    await untilSaid("client", web, "Connection refused");
    for (const name of ["web", "idle"]) await client.delete(`${services}/${name}`);
  }, 300_000);

  test("a guest with keys is reached at its instance's address, and lets agents in alone", async () => {
    const { client, ...rest } = place;
    const guestKeysFile = join(place.sandbox.dir, "guest-keys");
    await writeFile(guestKeysFile, randomBytes(32).toString("hex"), { mode: 0o600 });
    const instanceTypes = [{ name: "small", cpu: "500m", memory: "512Mi", zone: "one" }];
    const provider = { type: "cloud", cloud: incus.cloud, scope: "keys", instanceTypes, guestKeysFile };
    const other = await startAgent({ ...rest, nodeName: "keys", provider });
    const pods = new Pods(client, "default", "keys");
    try {
      await pods.create("sealed", { containers: [container()], terminationGracePeriodSeconds: 1 });
      const pod = await pods.until(
        "sealed",
        "to run, with an address",
        ({ status }) => status.phase === "Running" && Boolean(status.podIP),
        START_MS,
      );
      expect(await kubectl.run(["exec", "sealed", "--", "echo", "by its address"])).toBe("by its address\n");
      // Nothing of it is a word of the socket's: a relay to that would have to be made first.
      const [name] = incus.instances();
      const listening = incus.incus("exec", "--project", "burst", name!, "--", "ls", "/run/vmlet");
      expect(listening).not.toContain("guest.sock");
      const greeting = `GET /v1/info HTTP/1.1\nHost: guest\nConnection: close\n\n`;
      const words = ["s_client", "-quiet", "-connect", `${pod.status.podIP}:10443`];
      const said = spawnSync("openssl", words, { input: greeting, encoding: "utf8", timeout: 20_000 });
      expect(said.stdout).toBe("");
      expect(said.stderr).toContain("certificate required");
      await other.restart("SIGKILL");
      expect(await kubectl.run(["logs", "sealed"])).toBe("hello from sealed\n");
    } finally {
      await pods.deleteAll();
      await other.stop();
    }
  }, 400_000);

  test("an image that the VMs were made with is never pulled", async () => {
    await running("web", { containers: [container({ image: prewarmed, imagePullPolicy: "Never" })] });
    expect(await kubectl.run(["logs", "web"])).toBe("hello from web\n");
  }, 200_000);

  test("an agent that is killed while instances are made makes one for each pod", async () => {
    for (const name of ["a", "b", "c"])
      await own.create(name, { containers: [container()], terminationGracePeriodSeconds: 1 });
    await waitFor({ what: "an instance to be on its way" }, () => must(incus.instances().length > 0, "none"));
    await agent.restart("SIGKILL");
    for (const name of ["a", "b", "c"])
      await own.until(name, "to run", ({ status }) => status.phase === "Running", START_MS);
    expect(incus.instances()).toHaveLength(3);
  }, 300_000);

  test("a pod goes on while incusd and its guest are killed, and loses nothing of its log", async () => {
    await running("web");
    const [name] = incus.instances();
    await incus.restart("one");
    // Not what carries this very command.
    incus.incus("exec", "--project", "burst", name!, "--", "pkill", "-KILL", "-f", "[g]uest-main");
    const shown = await waitFor({ what: "the guest to answer again", timeoutMs: 90_000 }, () =>
      kubectl.run(["exec", "web", "--", "echo", "still here"]),
    );
    expect(shown).toBe("still here\n");
    expect(await kubectl.run(["logs", "web"])).toBe("hello from web\n");
    expect(containerStatus(await own.get("web"), "c").restartCount).toBe(0);
    expect(incus.instances()).toEqual([name]);
  }, 300_000);

  test("a pod whose instance is stopped fails, and its instance goes", async () => {
    await running("web", { restartPolicy: "Never" });
    const [name] = incus.instances();
    incus.incus("stop", "--force", "--project", "burst", name!);
    const pod = await own.until("web", "to fail", ({ status }) => status.phase === "Failed", 60_000);
    expect(JSON.stringify(pod.status)).toContain("VmStopped");
  }, 200_000);

  test("pods of a member that dies are unknown, and go on when it is back; those of the other never notice", async () => {
    const { client, ...rest } = place;
    const instanceTypes = [{ name: "small", cpu: "500m", memory: "512Mi", zone: "two" }];
    const provider = { type: "cloud", cloud: incus.cloud, scope: "far", instanceTypes };
    const other = await startAgent({ ...rest, nodeName: "far", provider });
    const far = new Pods(client, "default", "far");
    try {
      const spec = { containers: [container()], terminationGracePeriodSeconds: 1 };
      await far.create("away", spec);
      const before = await far.until("away", "to run", ({ status }) => status.phase === "Running", START_MS);
      const near = await running("near");
      expect(before.metadata.annotations).toMatchObject({ "vmlet.dev/host": "two" });
      await incus.kill("two");
      const path = `/api/v1/namespaces/default/events?fieldSelector=involvedObject.name=away`;
      const told = await waitFor({ what: "its pod to say so", timeoutMs: 120_000 }, async () => {
        const { items }: Json = await client.get(path);
        const unknown = items.find(({ reason }: Json) => reason === "MachineUnknown");
        must(
          unknown !== undefined,
          items.map(({ reason }: Json) => reason),
        );
        return unknown;
      });
      expect(told.message).toContain("its status stays as it is");
      await waitFor({ what: "the member to be out of sight", timeoutMs: 60_000 }, () =>
        must(incus.incus("cluster", "list", "--format", "csv").includes("OFFLINE"), "it is not yet"),
      );
      // Of what nobody can see nothing is concluded, and what can be seen goes on.
      expect(await kubectl.run(["exec", "near", "--", "echo", "here"])).toBe("here\n");
      await own.create("later", spec);
      await own.until("later", "to run", ({ status }) => status.phase === "Running", START_MS);
      expect((await far.get("away")).status.phase).toBe("Running");
      await incus.restart("two");
      const shown = await waitFor({ what: "its pod to be reached again", timeoutMs: 120_000 }, () =>
        kubectl.run(["exec", "away", "--", "echo", "still here"]),
      );
      expect(shown).toBe("still here\n");
      expect(await kubectl.run(["logs", "away"])).toBe("hello from away\n");
      expect(containerStatus(await far.get("away"), "c").restartCount).toBe(0);
      expect((await own.get("near")).status.startTime).toBe(near.status.startTime);
    } finally {
      await incus.restart("two");
      await far.deleteAll();
      await other.stop();
    }
  }, 900_000);

  test("pods of a member that is evacuated move as their budget has it, and none has two instances", async () => {
    const { client, ...rest } = place;
    const sold = { name: "small", cpu: "500m", memory: "512Mi" };
    const instanceTypes = [
      { ...sold, zone: "two", price: 0.01 },
      { ...sold, zone: "one", price: 0.02 },
    ];
    const provider = { type: "cloud", cloud: incus.cloud, scope: "emptied", instanceTypes };
    const other = await startAgent({ ...rest, nodeName: "emptied", provider });
    const pods = new Pods(client, "default", "emptied");
    const selector = { matchLabels: { app: "web" } };
    const deployments = "/apis/apps/v1/namespaces/default/deployments";
    const budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
    const running = async () =>
      (await pods.list("app=web")).filter(
        ({ metadata, status }) => status.phase === "Running" && metadata.deletionTimestamp === undefined,
      );
    const hostOf = ({ metadata }: Json) => metadata.annotations["vmlet.dev/host"];
    const untilOn = (host: string) =>
      waitFor({ what: `both pods to run on ${host}`, timeoutMs: START_MS }, async () => {
        const found = await running();
        fewest = Math.min(fewest, found.length);
        must(found.length === 2 && found.every((pod) => hostOf(pod) === host), found.map(hostOf));
        return found;
      });
    let fewest = 0;
    try {
      const spec = podSpec("emptied", { containers: [container()], terminationGracePeriodSeconds: 1 });
      const template = { metadata: { labels: { app: "web" } }, spec };
      await client.create(deployments, { metadata: { name: "web" }, spec: { replicas: 2, selector, template } });
      await client.create(budgets, { metadata: { name: "web" }, spec: { minAvailable: 1, selector } });
      const before = await untilOn("two");
      await waitFor({ what: "the budget to allow one" }, async () =>
        must((await client.get(`${budgets}/web`)).status?.disruptionsAllowed === 1, "it does not yet"),
      );
      fewest = 2;
      incus.incus("query", "-X", "POST", "/1.0/cluster/members/two/state", "-d", '{"action":"evacuate"}');
      const after = await untilOn("one");
      expect(fewest).toBe(1);
      expect(before.map(({ metadata }) => metadata.uid)).not.toContain(after[0]!.metadata.uid);
      await waitFor({ what: "the others' instances to go", timeoutMs: START_MS }, () =>
        must(incus.instances().length === 2, incus.instances()),
      );
    } finally {
      await client.delete(`${deployments}/web`);
      await client.delete(`${budgets}/web`);
      await pods.deleteAll();
      await other.stop();
      await incus.restore("two");
    }
  }, 400_000);

  test("a pod starts in an instance that waits for one, and another takes its place", async () => {
    const { client, ...rest } = place;
    const instanceTypes = [{ name: "small", cpu: "500m", memory: "512Mi", zone: "one", warm: 1 }];
    const provider = { type: "cloud", cloud: incus.cloud, scope: "warm", instanceTypes };
    const other = await startAgent({ ...rest, nodeName: "warm", provider });
    const api = new IncusClient(incus.cloud);
    const entries = new ProfileEntries(api, systemClock);
    const pods = new Pods(client, "default", "warm");
    const waiting = async () => (await entries.list(["phase", "warm"], { signal })).map(({ words }) => words["vm"]);
    try {
      const [first] = await waitFor({ what: "an instance to wait", timeoutMs: START_MS }, async () => {
        const names = await waiting();
        must(names.length === 1, names);
        return names;
      });
      await pods.create("quick", { containers: [container()], terminationGracePeriodSeconds: 1 });
      await pods.until("quick", "to run", ({ status }) => status.phase === "Running", START_MS);
      const [claimed] = await entries.list(["phase", "claimed"], { signal });
      expect(claimed?.words["vm"]).toBe(first);
      await waitFor({ what: "another to wait", timeoutMs: START_MS }, async () => {
        const names = await waiting();
        must(names.length === 1 && names[0] !== first, names);
      });
      await pods.deleteAll();
      await waitFor({ what: "its instance to go" }, () => must(!incus.instances().includes(first!), first));
    } finally {
      await pods.deleteAll();
      await api.close();
      await other.stop();
      for (const name of incus.instances()) incus.incus("delete", "--force", "--project", "burst", name);
    }
  }, 300_000);

  test(
    `${SOAK_PODS} pods in bursts, with the agent killed in the middle of each, leave nothing behind`,
    { timeout: 400_000 + SOAK_PODS * 30_000 },
    async () => {
      const { client, ...rest } = place;
      const scope = "soak";
      const types = [{ name: "small", resources: { cpu_millis: 500, memory_bytes: 2 ** 29 }, zone: "one" }];
      const instanceTypes = [{ name: "small", cpu: "500m", memory: "512Mi", zone: "one" }];
      const provider = { type: "cloud", cloud: incus.cloud, scope, instanceTypes };
      const other = await startAgent({ ...rest, nodeName: scope, provider });
      const pods = new Pods(client, "default", scope);
      const before = projectOf(incus);
      try {
        for (let made = 0; made < SOAK_PODS; made += SOAK_BURST) {
          const names = Array.from({ length: SOAK_BURST }, (_, index) => `soak-${made + index}`);
          const spec = { containers: [container()], terminationGracePeriodSeconds: 1 };
          for (const name of names) await pods.create(name, spec);
          await waitFor({ what: "an instance to be there", timeoutMs: START_MS }, () =>
            must(incus.instances().length > 0, "none"),
          );
          await other.restart("SIGKILL");
          for (const name of names)
            await pods.until(name, "to run", ({ status }) => status.phase === "Running", SOAK_BURST * START_MS);
          expect(incus.instances()).toHaveLength(SOAK_BURST);
          for (const name of names) await pods.delete(name);
          await other.restart("SIGKILL");
          await waitFor({ what: "the burst to be gone", timeoutMs: SOAK_BURST * START_MS }, async () =>
            must((await pods.list()).length === 0 && incus.instances().length === 0, incus.instances()),
          );
        }
      } finally {
        await pods.deleteAll();
        await other.stop();
      }
      const cloud = new IncusCloud(incus.cloud);
      const collecting = new CloudProvider({ cloud, scope, types, collectEveryMs: 500, tombstoneMs: 500 });
      const api = new IncusClient(incus.cloud);
      const inTwoHours = { ...systemClock, now: () => systemClock.now() + 2 * 3_600_000 };
      try {
        // Whoever asks something of it sets it to work.
        await collecting.getPods({ labels: {}, signal });
        const ours = () => cloud.entries.list(["vmlet-scope", scope], { signal });
        const timeoutMs = 120_000 + SOAK_PODS * 5_000;
        await waitFor({ what: "the tombstones to go", timeoutMs }, async () =>
          must((await ours()).length === 0, "not yet"),
        );
        // That an entry is gone is known for an hour.
        await new ProfileEntries(api, inTwoHours).list(["vmlet-scope", scope], { signal });
        const { profiles, ...after } = projectOf(incus);
        expect(after).toEqual({ instances: [], volumes: before.volumes });
        expect(profiles.filter((each: string) => !before.profiles.includes(each))).toEqual([]);
      } finally {
        await collecting.close();
        await api.close();
      }
    },
  );

  test("a volume outlives its instance, on its member, and nobody else has it until that is gone", async () => {
    const cloud = { ...incus.cloud, volumes: { pools: ["default"], member: "two" } } as const;
    const open = () =>
      new CloudProvider({
        cloud: new IncusCloud(cloud),
        scope: "disks",
        types: [{ name: "small", resources: { cpu_millis: 500, memory_bytes: 2 ** 29 } }],
        capabilities: CRI_CAPABILITIES,
        collectEveryMs: 5000,
      });
    const provider = open();
    const other = open();
    const volumes = provider.volumes!;
    const options = { signal };
    const [MIB, labels] = [2 ** 20, { "disks-of": "incus" }];
    const machine = (script: string, volume = "v", rest: object = {}): MachineSpec => ({
      labels,
      volumes: [{ name: "data", type: "persistent", volume, ...rest }],
      containers: [{ name: "c", image, command: ["sh", "-c", script], mounts: [{ volume: "data", path: "/data" }] }],
      restart_policy: "never",
    });
    const until = (id: string, state: string) =>
      waitFor({ what: `machine ${id} to be ${state}`, timeoutMs: START_MS }, async () => {
        const found = await provider.getPod(id, options);
        must(found.state === state, `it is ${found.state}: ${found.message ?? JSON.stringify(found.containers)}`);
        return found;
      });
    const log = async (id: string) => {
      let text = "";
      for await (const line of provider.getLogs(id, "c", options)) text += line.content.toString();
      return text;
    };
    const remove = async (id: string) => {
      await provider.deletePod(id, { ...options, force: true });
      await waitFor({ what: `machine ${id} to be gone`, timeoutMs: 120_000 }, async () =>
        must((await provider.getPod(id, options)).state === "deleted", "it is not"),
      );
    };
    const ids: string[] = [];
    const make = async (id: string, spec: MachineSpec) => {
      ids.push(id);
      return await provider.createPod(id, spec, options);
    };
    try {
      expect(await provider.getInfo()).toMatchObject({ zone: "two", volumeClasses: [{ name: "default" }] });
      const made = await volumes.create("v", { labels, size_bytes: 64 * MIB, mode: "filesystem" }, options);
      expect(made).toMatchObject({ state: "available", size_bytes: 64 * MIB, zone: "two" });
      await make("first", machine("id -u >/data/said; sleep 3600"));
      expect(await until("first", "running")).toMatchObject({ host: "two" });
      await expect(other.createPod("second", machine("true"), options)).rejects.toMatchObject({ code: "in_use" });
      await expect(volumes.delete("v", options)).rejects.toMatchObject({ code: "in_use" });
      // Its size is enforced, and grows while it is in use.
      const run = async (id: string, script: string) => {
        const streams = { ...options, stdin: false, stdout: true, stderr: false, tty: false };
        const { exit, stdout } = await provider.exec(id, "c", ["sh", "-c", script], streams);
        stdout?.resume();
        return (await exit).exitCode;
      };
      const fill = (mebibytes: number) =>
        run("first", `dd if=/dev/zero of=/data/full bs=1M count=${mebibytes} && sync`);
      expect(await fill(100)).not.toBe(0);
      await volumes.resize("v", 256 * MIB, options);
      expect(await fill(100)).toBe(0);
      await waitFor({ what: "the sample to tell of it", timeoutMs: 60_000 }, async () => {
        const [sample] = await provider.getStats({ ...options, labels });
        const [data] = sample?.volumes ?? [];
        must(data?.capacity_bytes === 256 * MIB && data.used_bytes > 100 * MIB, data);
      });
      await remove("first");
      // A machine that is over lets it go, though its instance is there still; read-only is kept.
      await make("second-life", machine("cat /data/said; echo no >/data/said", "v", { read_only: true }));
      const { containers } = await until("second-life", "stopped");
      expect(containers[0]!.terminated?.exit_code).toBe(1);
      expect(await log("second-life")).toContain("0");
      expect((await volumes.get("v", options)).attachments).toEqual([]);
      await make("third", machine("cat /data/said; sleep 3600"));
      await until("third", "running");
      await remove("second-life");
      // Its host is silent: nobody gets it, by force neither.
      await incus.kill("two");
      await waitFor({ what: "the member to be out of sight", timeoutMs: 60_000 }, () =>
        must(incus.incus("cluster", "list", "--format", "csv").includes("OFFLINE"), "it is not yet"),
      );
      await expect(other.createPod("fourth", machine("true"), options)).rejects.toMatchObject({
        code: expect.stringMatching(/in_use|unavailable/) as string,
      });
      expect((await volumes.get("v", options)).attachments).toMatchObject([{ machine: "third", state: "unknown" }]);
      await incus.restart("two");
      await waitFor({ what: "the machine to be seen again", timeoutMs: 60_000 }, async () =>
        must((await provider.getPod("third", options)).state === "running", "it is not"),
      );
      // A copy of what is written to, as it was, and of its own from then on; of a pool of folders, of what nobody writes.
      const spec = { labels, size_bytes: 256 * MIB, mode: "filesystem", source: { volume: "v" } } as const;
      const pool = JSON.parse(incus.incus("query", "/1.0/storage-pools/default")) as { driver: string };
      if (pool.driver === "btrfs") {
        await run("third", "echo kept >/data/later; sync");
        expect(await volumes.create("copy", spec, options)).toMatchObject({ state: "available" });
        await run("third", "echo gone >/data/later; sync");
        await remove("third");
      } else {
        await expect(volumes.create("copy", spec, options)).rejects.toMatchObject({ code: "in_use" });
        await run("third", "echo kept >/data/later");
        await remove("third");
        expect(await volumes.create("copy", spec, options)).toMatchObject({ state: "available" });
      }
      await volumes.delete("v", options);
      await make("fifth", machine("cat /data/said /data/later", "copy"));
      await until("fifth", "stopped");
      expect(await log("fifth")).toBe("0kept");
      await remove("fifth");
      await volumes.delete("copy", options);
      expect(JSON.parse(incus.incus("query", "/1.0/storage-pools/default/volumes/custom?project=burst"))).toEqual([]);
    } finally {
      await incus.restart("two");
      for (const id of ids) await provider.deletePod(id, { ...options, force: true });
      await waitFor({ what: "no instance to be left", timeoutMs: 120_000 }, () =>
        must(incus.instances().length === 0, incus.instances()),
      );
      await provider.close();
      await other.close();
    }
  }, 900_000);

  test("it keeps all that the kit of VM clouds looks at", async () => {
    const cloud = new IncusCloud({ ...incus.cloud, volumes: { pools: ["default"], member: "one" } });
    const type = { name: "small", zone: "one", resources: { cpu_millis: 500, memory_bytes: 2 ** 29 } };
    const results = await checkVmCloud(cloud, { type, signal });
    await cloud.close();
    expect(results.filter(({ failure }) => failure !== undefined)).toEqual([]);
  }, 300_000);

  test("of several that write an entry after the same version one succeeds, and a late one changes nothing", async () => {
    const client = new IncusClient(incus.cloud);
    const store = () => new ProfileEntries(client, systemClock);
    const first = await store().create("m", { n: "0" }, { signal });
    const writes = Array.from({ length: 8 }, (_, i) => store().swap("m", { n: String(i) }, first.version, { signal }));
    const written = (await Promise.allSettled(writes)).filter(({ status }) => status === "fulfilled");
    expect(written).toHaveLength(1);
    const second = await store().get("m", { signal });
    const third = await store().swap("m", { n: "third" }, second.version, { signal });
    await expect(store().swap("m", { n: "late" }, first.version, { signal })).rejects.toMatchObject({
      code: "conflict",
    });
    expect(await store().get("m", { signal })).toEqual(third);
    await store().remove("m", third.version, { signal });
    await expect(store().get("m", { signal })).rejects.toMatchObject({ code: "not_found" });
    await client.close();
  });
}

/** What a project has that pods come to. */
function projectOf({ incus }: TestIncus): Json {
  const list = (path: string) => JSON.parse(incus("query", `/1.0/${path}?project=burst`)) as string[];
  const [instances, profiles] = [list("instances"), list("profiles")];
  return { instances, profiles, volumes: list("storage-pools/default/volumes/custom") };
}
