/**
 * The chart as users have it: `helm install` into a cluster whose pods really run, with the image that the Dockerfile would make. vmlet
 * itself is the cluster's nodes: two agents outside run the chart's pods as containers, and the agents in those pods run a third node.
 *
 * A program of its own, because it needs namespaces of its own. It prints one line of JSON for each step; the test reads them.
 */
import { mkdir, mkdtemp, readdir, symlink } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { assemble } from "../../helm/assemble.ts";
import { findTool } from "../../providers/local/host/command.ts";
import { startEnvironment, type Environment } from "../conformance/kubernetes/environment.ts";
import { isInside, runInside, setUp } from "../conformance/kubernetes/namespaces.ts";
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

interface World {
  environment: Environment;
  kubectl: Kubectl;
  helm: (args: readonly string[]) => Promise<string>;
}

/** In order; each builds on those before it. */
const steps: Record<string, (world: World) => Promise<void>> = {
  "helm install brings up agents and backend as pods": async ({ helm, kubectl, environment }) => {
    await kubectl.run(["create", "namespace", namespace]);
    // What the chart promises of its pods, the API server holds them to.
    await kubectl.run(["label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted"]);
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
    await helm(["install", release, chart, ...values(environment), "--wait", "--timeout=300s"]);
    const pods = await podsOf(kubectl);
    const shown = pods.map(
      (pod) =>
        `${pod.metadata.labels["app.kubernetes.io/component"]} ${isReady(pod)} ${pod.status.containerStatuses[0].restartCount}`,
    );
    must(
      shown.toSorted().join() === "agent true 0,agent true 0,backend true 0",
      pods.map((pod) => pod.status),
    );
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

export const stepNames = Object.keys(steps);

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

/** The images of the chart, as the Dockerfile makes them, but for the libraries and the userland, which are this host's. */
async function pushImages({ registry, cluster }: Environment): Promise<void> {
  const { version } = (await import("../../package.json", { with: { type: "json" } })).default;
  const layout = join(cluster.sandbox.dir, "layout");
  const rootfs = join(cluster.sandbox.dir, "rootfs");
  const { USER: user, ENTRYPOINT } = await dockerInstructions();
  await assemble(rootfs);
  await addLibraries(rootfs);
  await runCommand("umoci", ["init", "--layout", layout]);
  const push = async (name: string) => {
    const image = `${layout}:${name}`;
    await runCommand("umoci", ["new", "--image", image]);
    for (const entry of await readdir(rootfs))
      await runCommand("umoci", ["insert", "--image", image, join(rootfs, entry), `/${entry}`]);
    const entrypoint = ENTRYPOINT!.flatMap((word) => [`--config.entrypoint=${word}`]);
    await runCommand("umoci", ["config", "--image", image, `--config.user=${user![0]}`, ...entrypoint]);
    const target = `docker://${registry.host}/vmlet/${name}:${version}`;
    await runCommand("skopeo", ["copy", "--dest-tls-verify=false", `oci:${image}`, target]);
  };
  await push("vmlet");
  // The backend's machines are commands of its image.
  const busybox = findTool("busybox")!;
  await mkdir(join(rootfs, "bin"));
  await runCommand("cp", [busybox, join(rootfs, "bin/busybox")]);
  const { stdout } = await runCommand(busybox, ["--list"]);
  for (const applet of stdout.split("\n").filter((each) => each !== "" && each !== "busybox"))
    await symlink("busybox", join(rootfs, "bin", applet));
  // Debian's busybox has no flock, its util-linux has, which every Debian image brings.
  await runCommand("cp", ["--remove-destination", findTool("flock")!, join(rootfs, "bin/flock")]);
  await push("vmlet-backend");
}

async function main(): Promise<number> {
  await setUp();
  // To the chart's pods these are real nodes: another type than the one that they avoid.
  await using environment = await startEnvironment({ node: { labels: { type: "host" } } });
  await pushImages(environment);
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
  for (const [step, run] of Object.entries(steps)) {
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

if (process.argv[1] === import.meta.filename) process.exitCode = isInside() ? await main() : await runInside();
