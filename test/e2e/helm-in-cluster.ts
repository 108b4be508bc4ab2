/**
 * The chart as users have it: `helm install` into a cluster whose pods really run, with the image that the Dockerfile would make. vmlet
 * itself is the cluster's nodes: two agents outside run the chart's pods as containers, and the agents in those pods run a third node.
 *
 * A program of its own, because it needs namespaces of its own; its arguments are the engine of the chart's backend and, for one that makes
 * containers, the images of agent and backend as skopeo calls them. It prints one line of JSON for each step; the test reads them.
 */
import { mkdir, mkdtemp, symlink } from "node:fs/promises";
import { connect, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { assemble } from "../../helm/assemble.ts";
import { findTool } from "../../providers/local/host/command.ts";
import { environmentPrograms, startEnvironment, type Environment } from "../conformance/kubernetes/environment.ts";
import { hostAddress, isInside, runInside, setUp } from "../conformance/kubernetes/namespaces.ts";
import { busyboxImage } from "../support/registry.ts";
import { helmBinary } from "./harness/binaries.ts";
import type { Json } from "./harness/client.ts";
import { runCommand } from "./harness/exec.ts";
import { createKubectl, type Kubectl } from "./harness/kubectl.ts";
import { must, waitFor } from "./harness/wait.ts";
import { addLibraries, dockerInstructions } from "./helm-rootfs.ts";

export interface StepResult {
  step: string;
  /** What it found wrong; absent when it passed. */
  failure?: string;
  seconds: number;
}

const chart = join(import.meta.dirname, "../../helm/vmlet");
const namespace = "vmlet-system";
const release = "burst";
const virtualNode = "burst-0";
const relayPort = 5002;
/** As pods see it. */
const registryOfPods = `${hostAddress}:${relayPort}`;

interface World {
  environment: Environment;
  kubectl: Kubectl;
  helm: (args: readonly string[]) => Promise<string>;
}

type Steps = Record<string, (world: World) => Promise<void>>;

async function install({ helm, kubectl, environment }: World, more: readonly string[] = []): Promise<void> {
  const [certificate, key] = ["tls.crt", "tls.key"].map((file) => join(environment.cluster.sandbox.dir, file));
  // The README's two commands.
  await runCommand("openssl", [
    ...["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "365"],
    ...["-keyout", key!, "-out", certificate!, "-subj", "/CN=vmlet-backend"],
    ...["-addext", `subjectAltName=DNS:${release}-vmlet-backend.${namespace}.svc`],
  ]);
  await kubectl.run([
    ...[
      "create",
      "secret",
      "generic",
      "vmlet-backend",
      `--namespace=${namespace}`,
      "--from-literal=token=0123456789abcdef",
    ],
    ...[`--from-file=tls.crt=${certificate}`, `--from-file=tls.key=${key}`, `--from-file=ca.crt=${certificate}`],
  ]);
  await helm(["install", release, chart, ...values(environment), ...more, "--wait", "--timeout=300s"]);
  const pods = await podsOf(kubectl);
  const shown = pods.map(
    (pod) =>
      `${pod.metadata.labels["app.kubernetes.io/component"]} ${isReady(pod)} ${pod.status.containerStatuses[0].restartCount}`,
  );
  must(
    shown.toSorted().join() === "agent true 0,agent true 0,backend true 0",
    pods.map((pod) => pod.status),
  );
}

/** In order; each builds on those before it. */
const withProcesses: Steps = {
  "helm install brings up agents and backend as pods": async (world) => {
    const { kubectl } = world;
    await kubectl.run(["create", "namespace", namespace]);
    // What the chart promises of its pods, the API server holds them to.
    await kubectl.run(["label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted"]);
    await install(world);
  },

  "the node is Ready at the address of the pod that leads": async ({ kubectl }) => {
    const node = await readyNode(kubectl);
    const address = node.status.addresses.find((each: Json) => each.type === "InternalIP").address;
    const addresses = (await podsOf(kubectl)).map((pod) => pod.status.podIP);
    must(addresses.includes(address), [address, addresses]);
  },

  "helm test passes": async ({ helm, kubectl }) => {
    // The backend's engine keeps no security context; `smokeTest.restricted` is for those that do.
    await kubectl.run(["label", "namespace", namespace, "pod-security.kubernetes.io/enforce-"]);
    const output = await helm(["test", release, "--logs", "--timeout=300s"]);
    must(/Phase:\s+Succeeded/.test(output) && output.includes("log read through the API server"), output);
  },

  "kubectl exec reaches a pod on the node": async ({ kubectl }) => {
    const spec = { nodeSelector: { "kubernetes.io/hostname": virtualNode }, tolerations: [{ operator: "Exists" }] };
    const overrides = `--overrides=${JSON.stringify({ apiVersion: "v1", spec })}`;
    await kubectl.run(["run", "mine", "--image=busybox", overrides, "--restart=Never", "--", "sh", "-c", "sleep 600"]);
    await kubectl.run(["wait", "pod/mine", "--for=condition=Ready", "--timeout=60s"]);
    const output = await kubectl.run(["exec", "mine", "--", "sh", "-c", "echo $((6 * 7))"]);
    must(output.trim() === "42", output);
  },

  "helm upgrade replaces the agents; the node stays Ready, and its pods run on": async ({
    helm,
    kubectl,
    environment,
  }) => {
    const before = await podsOf(kubectl);
    await helm(["upgrade", release, chart, ...values(environment), "--set=logLevel=debug", "--wait", "--timeout=300s"]);
    const after = await podsOf(kubectl);
    const names = (pods: Json[]) => agentsOf(pods).map((pod) => pod.metadata.name as string);
    must(names(after).length === 2 && names(before).every((name) => !names(after).includes(name)), names(after));
    await readyNode(kubectl);
    const pod = JSON.parse(await kubectl.run(["get", "pod", "mine", "--output=json"]));
    must(pod.status.phase === "Running" && pod.status.containerStatuses[0].restartCount === 0, pod.status);
    const events = await kubectl.run([
      "get",
      "events",
      "--namespace=default",
      `--field-selector=involvedObject.name=${virtualNode},reason=NodeNotReady`,
      "--output=name",
    ]);
    must(events === "", events);
  },

  "helm uninstall is refused while a pod runs on the node": async ({ helm, kubectl }) => {
    const refusal = await helm(["uninstall", release, "--timeout=120s"]).then(
      () => undefined,
      (thrown: unknown) => String(thrown),
    );
    must(refusal !== undefined, "it was not refused");
    must(agentsOf(await podsOf(kubectl)).length === 2, "the agents are gone");
  },

  "helm uninstall removes the agents and the Node": async ({ helm, kubectl }) => {
    await kubectl.run(["delete", "pod", "mine", "--timeout=60s"]);
    await helm(["uninstall", release, "--wait", "--timeout=300s"]);
    const { code, stderr } = await kubectl.try(["get", "node", virtualNode]);
    must(code === 1 && stderr.includes("NotFound"), stderr);
    await waitFor({ what: "the pods to be gone", timeoutMs: 60_000 }, async () => {
      const left = (await podsOf(kubectl)).filter(
        (pod) => pod.metadata.labels["app.kubernetes.io/component"] !== "smoke",
      );
      must(
        left.length === 0,
        left.map((pod) => pod.metadata.name),
      );
    });
  },
};

/** The backend's pod is privileged, as on the owner's word, and has a container runtime of its own in it. */
const withContainers = (engine: "cri"): Steps => ({
  [`helm install with engine ${engine} brings up a backend that makes containers`]: async (world) => {
    await world.kubectl.run(["create", "namespace", namespace]);
    const network = { cidr: "10.98.0.0/16" };
    const config = { engine: { network, images: { insecureRegistries: [registryOfPods] } } };
    await install(world, [`--set=backend.engine=${engine}`, `--set-json=backend.config=${JSON.stringify(config)}`]);
    await readyNode(world.kubectl);
  },

  [`a pod on the node is a container of an image, on engine ${engine}`]: async ({ kubectl }) => {
    await runPod(kubectl, "mine");
    const output = await kubectl.run(["exec", "mine", "--", "sh", "-c", "cat /proc/1/comm; hostname"]);
    must(output === "sleep\nmine\n", output);
    const backend = await kubectl.run([...inBackend, "sh", "-c", "cat /proc/[0-9]*/comm"]);
    must(backend.split("\n").includes("containerd"), backend);
  },

  [`helm uninstall leaves nothing, on engine ${engine}`]: async ({ helm, kubectl }) => {
    await kubectl.run(["delete", "pod", "mine", "--timeout=120s"]);
    await helm(["uninstall", release, "--wait", "--timeout=300s"]);
    const { code, stderr } = await kubectl.try(["get", "node", virtualNode]);
    must(code === 1 && stderr.includes("NotFound"), stderr);
  },
});

const inBackend = ["exec", `--namespace=${namespace}`, `deployment/${release}-vmlet-backend`, "--"];

/** By engine of the chart's backend. */
const suites: Record<string, Steps> = {
  process: withProcesses,
  cri: withContainers("cri"),
};

export const stepNames = (engine: string): string[] => Object.keys(suites[engine]!);

/** A container that has a command line, and does nothing. */
async function runPod(kubectl: Kubectl, name: string): Promise<void> {
  const spec = { nodeSelector: { "kubernetes.io/hostname": virtualNode }, tolerations: [{ operator: "Exists" }] };
  const overrides = `--overrides=${JSON.stringify({ apiVersion: "v1", spec })}`;
  const image = `--image=${registryOfPods}/t/busybox:1`;
  await kubectl.run(["run", name, image, overrides, "--restart=Never", "--", "sleep", "600"]);
  await kubectl.run(["wait", `pod/${name}`, "--for=condition=Ready", "--timeout=120s"]);
}

function values({ registry }: Environment): string[] {
  return [
    `--namespace=${namespace}`,
    `--set-json=nodes=[{"name":"${virtualNode}"}]`,
    "--set=backend.enabled=true,backend.existingSecret=vmlet-backend",
    `--set=image.registry=${registry.host},image.repository=vmlet/vmlet,backend.image.repository=vmlet/vmlet-backend`,
  ];
}

async function podsOf(kubectl: Kubectl): Promise<Json[]> {
  return JSON.parse(await kubectl.run(["get", "pods", `--namespace=${namespace}`, "--output=json"])).items;
}

const agentsOf = (pods: Json[]) =>
  pods.filter(
    (pod) => pod.metadata.labels["app.kubernetes.io/component"] === "agent" && !pod.metadata.deletionTimestamp,
  );
const isReady = ({ status }: Json): boolean =>
  status.conditions?.some((each: Json) => each.type === "Ready" && each.status === "True");

function readyNode(kubectl: Kubectl): Promise<Json> {
  return waitFor({ what: `node ${virtualNode} to be Ready`, timeoutMs: 60_000 }, async () => {
    const node = JSON.parse(await kubectl.run(["get", "node", virtualNode, "--output=json"]));
    must(isReady(node), node.status);
    return node;
  });
}

/** What `npm run image` has made, as somebody who installs the chart pushes it. */
async function pushMade({ registry }: Environment, images: readonly string[]): Promise<void> {
  for (const [at, name] of ["vmlet", "vmlet-backend"].entries()) {
    const target = `docker://${registry.host}/vmlet/${name}:${await version()}`;
    await runCommand("skopeo", ["copy", "--all", "--dest-tls-verify=false", images[at]!, target]);
  }
}

/** The images of the chart, as the Dockerfile makes them, but for the libraries, which are this host's. */
async function pushImages(environment: Environment): Promise<void> {
  const { dir } = environment.cluster.sandbox;
  const rootfs = join(dir, "rootfs");
  await assemble(rootfs);
  await addLibraries(rootfs);
  await runCommand("umoci", ["init", "--layout", join(dir, "layout")]);
  const layer = async (name: string) => {
    const file = join(dir, name);
    await runCommand("tar", ["--create", "--file", file, "--directory", rootfs, "."]);
    return file;
  };
  await pushImage(environment, { name: "vmlet", layers: [await layer("own.tar")] });
  // The backend's machines are commands of its image.
  const busybox = findTool("busybox")!;
  await mkdir(join(rootfs, "bin"));
  await runCommand("cp", [busybox, join(rootfs, "bin/busybox")]);
  const { stdout } = await runCommand(busybox, ["--list"]);
  for (const applet of stdout.split("\n").filter((each) => each !== "" && each !== "busybox"))
    await symlink("busybox", join(rootfs, "bin", applet));
  // Debian's busybox has no flock, its util-linux has, which every Debian image brings.
  await runCommand("cp", ["--remove-destination", findTool("flock")!, join(rootfs, "bin/flock")]);
  await pushImage(environment, { name: "vmlet-backend", layers: [await layer("with-applets.tar")] });
}

/** @param image its name, and tars; it is run as the Dockerfile says of the agent's */
async function pushImage(
  { registry, cluster }: Environment,
  { name, layers }: { name: string; layers: string[] },
): Promise<void> {
  const image = `${join(cluster.sandbox.dir, "layout")}:${name}`;
  await runCommand("umoci", ["new", "--image", image]);
  for (const layer of layers) await runCommand("umoci", ["raw", "add-layer", "--image", image, layer]);
  const { USER: user, ENTRYPOINT } = await dockerInstructions();
  const entrypoint = ENTRYPOINT!.flatMap((word) => [`--config.entrypoint=${word}`]);
  await runCommand("umoci", ["config", "--image", image, `--config.user=${user![0]}`, ...entrypoint]);
  const target = `docker://${registry.host}/vmlet/${name}:${await version()}`;
  await runCommand("skopeo", ["copy", "--dest-tls-verify=false", `oci:${image}`, target]);
}

const version = async (): Promise<string> =>
  (await import("../../package.json", { with: { type: "json" } })).default.version;

async function main(engine: string, images: readonly string[]): Promise<number> {
  await setUp();
  // To the chart's pods these are real nodes: another type than the one that they avoid.
  const node = { labels: { type: "host" } };
  await using environment = await startEnvironment({ node, openHostPorts: [relayPort] });
  await (images.length > 0 ? pushMade(environment, images) : pushImages(environment));
  await environment.registry.push("t/busybox:1", await busyboxImage());
  // The registry listens on loopback only.
  await using _relay = await relayRegistry(environment);
  const helm = await helmBinary();
  const { adminKubeconfig } = environment.cluster;
  const kubectl = await createKubectl(adminKubeconfig);
  const env = {
    PATH: process.env["PATH"],
    KUBECONFIG: adminKubeconfig,
    HOME: await mkdtemp(join(tmpdir(), "vmlet-helm-")),
    HELM_NAMESPACE: namespace,
  };
  const world: World = { environment, kubectl, helm: async (args) => (await runCommand(helm, args, { env })).stdout };
  for (const [step, run] of Object.entries(suites[engine]!)) {
    const start = performance.now();
    const failure = await run(world).then(
      () => undefined,
      async (thrown: unknown) =>
        `${thrown instanceof Error ? thrown.message : String(thrown)}\n${await describeAll(kubectl)}`,
    );
    const seconds = (performance.now() - start) / 1000;
    console.log(JSON.stringify({ step, seconds, ...(failure !== undefined && { failure }) } satisfies StepResult));
    if (failure !== undefined) return 1;
  }
  return 0;
}

async function relayRegistry({ registry }: Environment): Promise<AsyncDisposable> {
  const [address = "", port] = registry.host.split(":");
  const server = createServer((socket) => {
    const upstream = connect(Number(port), address);
    for (const each of [socket, upstream]) each.on("error", () => [socket, upstream].forEach((end) => end.destroy()));
    socket.pipe(upstream).pipe(socket);
  });
  await new Promise<void>((resolve) => server.listen(relayPort, hostAddress, resolve));
  return { [Symbol.asyncDispose]: async () => void server.close() };
}

/** Everything that helps to see why a step failed. */
async function describeAll(kubectl: Kubectl): Promise<string> {
  const outputs = [
    await kubectl.try(["get", "nodes,pods,jobs", "--all-namespaces", "--output=wide"]),
    await kubectl.try(["get", "events", `--namespace=${namespace}`, "--sort-by=.lastTimestamp"]),
    ...(await Promise.all(
      ["agent", "backend", "smoke", "uninstall"].map((component) =>
        kubectl.try([
          "logs",
          `--namespace=${namespace}`,
          `--selector=app.kubernetes.io/component=${component}`,
          "--tail=20",
          "--prefix",
        ]),
      ),
    )),
  ];
  return outputs.map(({ stdout, stderr }) => stdout + stderr).join("\n");
}

if (process.argv[1] === import.meta.filename)
  process.exitCode = isInside()
    ? await main(process.argv[2]!, process.argv.slice(3))
    : await runInside(environmentPrograms);
