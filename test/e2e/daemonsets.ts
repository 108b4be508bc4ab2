/**
 * DaemonSets that want the node itself, as clusters have them, on engine cri with access to its host: kube-proxy as
 * kubeadm writes it, a node exporter as its chart does, a collector of logs.
 *
 * A program of its own, because it needs namespaces of its own. It prints one line of JSON for each step; the test reads them.
 */
import { existsSync } from "node:fs";
import { chmod, mkdir, mkdtemp, readdir, readFile, rm } from "node:fs/promises";
import { isIPv6 } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseAllDocuments } from "yaml";
import {
  environmentPrograms,
  machineCidr,
  nodeNames,
  startEnvironment,
  type Environment,
} from "../conformance/kubernetes/environment.ts";
import { hostPrograms, programImage } from "../conformance/kubernetes/images.ts";
import {
  hostAddress,
  hostAddresses,
  isInside,
  runInside,
  serviceCidr,
  serviceIpv6Cidr,
  setUp,
} from "../conformance/kubernetes/namespaces.ts";
import { busyboxImage, type TarEntry, type TestImage } from "../support/registry.ts";
import { buildKubeProxy, buildKubeRouter, buildNodeExporter } from "./harness/build.ts";
import type { Json } from "./harness/client.ts";
import { runCommand } from "./harness/exec.ts";
import { createKubectl, type Kubectl } from "./harness/kubectl.ts";
import { runSteps, type Steps } from "./harness/steps.ts";
import { must, waitFor } from "./harness/wait.ts";

interface World {
  environment: Environment;
  kubectl: Kubectl;
  /** Folder of the host's logs, `pods` and `containers` in it. */
  logs: string;
}

const READY_MS = 120_000;
const EXPORTER_PORT = 9100;
/** Of iptables, on this very host. */
const LOCK_FILE = "/run/xtables.lock";
const everywhere = [{ operator: "Exists" }];

/** In order; each builds on those before it. */
const steps: Steps<World> = {
  "kube-proxy, as kubeadm installs it, brings the cluster's Services to pods": async ({ environment, kubectl }) => {
    const { registry, cluster } = environment;
    await apply(kubectl, [
      podOf("web", registry.host, "mkdir /w; echo served > /w/index.html; httpd -f -p 8080 -h /w", { app: "web" }),
      {
        apiVersion: "v1",
        kind: "Service",
        metadata: { name: "web", namespace: "default" },
        spec: { clusterIP: "10.96.7.7", selector: { app: "web" }, ports: [{ port: 80, targetPort: 8080 }] },
      },
      podOf("client", registry.host, "sleep 100000"),
    ]);
    await kubectl.run(["wait", "pod/web", "pod/client", "--for=condition=Ready", `--timeout=${READY_MS}ms`]);
    const ask = () => kubectl.try(["exec", "client", "--", "timeout", "3", "wget", "-qO-", "http://10.96.7.7/"]);
    const before = await ask();
    must(before.code === 1 || before.code === 143, `without a kube-proxy: ${JSON.stringify(before)}`);
    await apply(kubectl, kubeProxy(registry.host, cluster.url));
    await kubectl.run(["rollout", "status", "daemonset/kube-proxy", "-n", "kube-system", `--timeout=${READY_MS}ms`]);
    await waitFor({ what: "the Service to be reached", timeoutMs: READY_MS }, async () => {
      const { stdout, stderr } = await ask();
      must(stdout === "served\n", stdout + stderr);
    });
    // Its pod is the node's: at the node's address, with the lock file that it asked to be made.
    const [own] = await podsOf(kubectl, "kube-system");
    must(own!.status.podIP === hostAddress && own!.status.hostIP === hostAddress, own!.status);
  },

  "a node exporter, as its chart installs it, tells of the host": async ({ environment, kubectl }) => {
    await apply(kubectl, [namespace("monitoring"), nodeExporter(environment.registry.host)]);
    await rolledOut(kubectl, "monitoring", "node-exporter");
    const metrics = async () => await (await fetch(`http://${hostAddress}:${EXPORTER_PORT}/metrics`)).text();
    const lines = await metrics();
    // The host's interfaces, and not a machine's; its processes' limits are in /proc of the host.
    must(lines.includes("node_network_info{") && lines.includes('device="host0"'), "no interface of the host");
    must(!lines.includes('device="eth0"'), "an interface of a machine");
    const memory = /^MemTotal:\s+(\d+) kB$/m.exec(await readFile("/proc/meminfo", "utf8"))![1]!;
    const told = /^node_memory_MemTotal_bytes (\S+)$/m.exec(lines)?.[1];
    must(Number(told) === Number(memory) * 1024, [told, memory]);
  },

  "what is mounted on the host later is seen by the node exporter, too": async ({ logs }) => {
    const late = join(logs, "late");
    await mkdir(late);
    await runCommand("mount", ["-t", "tmpfs", "-o", "size=7m", "late", late]);
    await waitFor({ what: "the mount in the metrics", timeoutMs: READY_MS }, async () => {
      const lines = await (await fetch(`http://${hostAddress}:${EXPORTER_PORT}/metrics`)).text();
      const size = lines
        .split("\n")
        .find((line) => line.startsWith("node_filesystem_size_bytes") && line.includes(late));
      must(size?.endsWith(` ${(7 * 1024 * 1024).toExponential().replace("e+", "e+0")}`) === true, size);
    });
    await runCommand("umount", [late]);
  },

  "a collector finds the logs of all pods in the host's folder": async ({ environment, kubectl, logs }) => {
    await apply(kubectl, [namespace("logging"), logCollector(environment.registry.host, logs)]);
    await rolledOut(kubectl, "logging", "collector");
    await apply(kubectl, [podOf("talker", environment.registry.host, "echo a line to collect; sleep 100000")]);
    await kubectl.run(["wait", "pod/talker", "--for=condition=Ready", `--timeout=${READY_MS}ms`]);
    const { uid } = JSON.parse(await kubectl.run(["get", "pod", "talker", "-o", "json"])).metadata;
    await waitFor({ what: "the line to be collected", timeoutMs: READY_MS }, async () => {
      const collected = await kubectl.run(["logs", "daemonset/collector", "-n", "logging", "--tail=-1"]);
      const line = collected.split("\n").find((each) => each.includes("a line to collect"));
      must(line?.startsWith(`pods/default_talker_${uid}/main/0.log: `) === true, line ?? collected.slice(-2000));
      must(line.endsWith(" stdout F a line to collect"), line);
      must(/^containers\/talker_default_main-[0-9a-f]{64}\.log$/m.test(collected), collected.slice(-2000));
    });
    await kubectl.run(["delete", "pod", "talker", "--grace-period=1", `--timeout=${READY_MS}ms`]);
    await waitFor({ what: "the logs to go with the pod", timeoutMs: READY_MS }, async () => {
      const { stdout } = await runCommand("find", [logs, "-name", "*talker*"]);
      must(stdout === "", stdout);
    });
  },

  "kube-router, as docs/operate.md has it, holds the node's pods to NetworkPolicies in both families": async ({
    environment,
    kubectl,
  }) => {
    const { host } = environment.registry;
    const guarded = podOf("guarded", host, "mkdir /w; echo open > /w/index.html; httpd -f -p 8080 -h /w", {
      app: "guarded",
    });
    guarded.spec.nodeName = nodeNames[0];
    await apply(kubectl, [guarded, ...(await kubeRouter(host))]);
    await rolledOut(kubectl, "kube-system", "kube-router");
    await kubectl.run(["wait", "pod/guarded", "--for=condition=Ready", `--timeout=${READY_MS}ms`]);
    const { podIPs } = JSON.parse(await kubectl.run(["get", "pod", "guarded", "-o", "json"])).status;
    const both: string[] = podIPs.map(({ ip }: Json) => (isIPv6(ip) ? `[${ip}]` : ip));
    // What this release has in its rules for IPv6 names sets of pods that are not there: then nobody is let in.
    const first = both.slice(0, 1);
    const areReached = (addresses: string[], wanted: boolean, when: string) =>
      waitFor({ what: `the pod to be ${wanted ? "reached" : "kept"} ${when}`, timeoutMs: READY_MS }, async () => {
        for (const address of addresses) {
          const get = ["timeout", "3", "wget", "-qO-", `http://${address}:8080/`];
          const { stdout } = await kubectl.try(["exec", "client", "--", ...get]);
          must((stdout === "open\n") === wanted, `${address}: ${stdout}`);
        }
      });
    await areReached(both, true, "without a policy");
    const policy = (name: string, ingress: Json[]): Json => ({
      apiVersion: "networking.k8s.io/v1",
      kind: "NetworkPolicy",
      metadata: { name, namespace: "default" },
      spec: { podSelector: { matchLabels: { app: "guarded" } }, policyTypes: ["Ingress"], ingress },
    });
    await apply(kubectl, [policy("closed", [])]);
    await areReached(both, false, "by a policy");
    await kubectl.run(["label", "pod", "client", "role=friend"]);
    await apply(kubectl, [policy("friends", [{ from: [{ podSelector: { matchLabels: { role: "friend" } } }] }])]);
    await areReached(first, true, "by a label");
    await kubectl.run(["label", "pod", "client", "role-"]);
    await areReached(both, false, "without the label");
    await kubectl.run(["delete", "networkpolicy", "closed", "friends"]);
    await areReached(both, true, "without policies");
  },

  "none of this is had in another namespace": async ({ environment, kubectl }) => {
    const asked = podOf("thief", environment.registry.host, "true");
    asked.spec.hostNetwork = true;
    await apply(kubectl, [asked]);
    await waitFor({ what: "the pod to be refused", timeoutMs: READY_MS }, async () => {
      const { status } = JSON.parse(await kubectl.run(["get", "pod", "thief", "-o", "json"]));
      must(status.phase === "Failed" && status.message.includes("spec.hostNetwork"), status);
    });
  },
};

export const stepNames = Object.keys(steps);

export async function apply(kubectl: Kubectl, items: readonly Json[]): Promise<void> {
  await kubectl.run(["apply", "-f", "-"], { input: JSON.stringify({ apiVersion: "v1", kind: "List", items }) });
}

export async function rolledOut(kubectl: Kubectl, inNamespace: string, name: string): Promise<void> {
  await kubectl.run(["rollout", "status", `daemonset/${name}`, "-n", inNamespace, `--timeout=${READY_MS}ms`]);
}

async function podsOf(kubectl: Kubectl, inNamespace: string): Promise<Json[]> {
  return JSON.parse(await kubectl.run(["get", "pods", "-n", inNamespace, "-o", "json"])).items;
}

function namespace(name: string): Json {
  return { apiVersion: "v1", kind: "Namespace", metadata: { name } };
}

export function podOf(name: string, registry: string, script: string, labels: Record<string, string> = {}): Json {
  return {
    apiVersion: "v1",
    kind: "Pod",
    metadata: { name, namespace: "default", labels },
    spec: {
      restartPolicy: "Never",
      terminationGracePeriodSeconds: 1,
      containers: [{ name: "main", image: `${registry}/busybox:1`, command: ["sh", "-c", script] }],
    },
  };
}

export function daemonSet(name: string, inNamespace: string, spec: Json): Json {
  const labels = { app: name };
  return {
    apiVersion: "apps/v1",
    kind: "DaemonSet",
    metadata: { name, namespace: inNamespace },
    spec: {
      selector: { matchLabels: labels },
      template: { metadata: { labels }, spec: { tolerations: everywhere, ...spec } },
    },
  };
}

/** As the page for operators has it. */
async function kubeRouterItems(): Promise<Json[]> {
  const page = await readFile(join(import.meta.dirname, "../../docs/operate.md"), "utf8");
  const [, text] = /```yaml\n# network-policies\.yaml\n([^]*?)\n```/.exec(page)!;
  return parseAllDocuments(text!).map((each) => each.toJS());
}

/** Its account, and what it may read. */
export async function kubeRouterRights(): Promise<Json[]> {
  return (await kubeRouterItems()).filter(({ kind }) => kind !== "DaemonSet");
}

/** On one of both nodes only, with its image made here, and what docs/operate.md says of a cluster of two families. */
async function kubeRouter(registry: string): Promise<Json[]> {
  const items = await kubeRouterItems();
  const { spec } = items.find(({ kind }) => kind === "DaemonSet")!.spec.template;
  spec.containers[0].image = `${registry}/kube-router:1`;
  spec.containers[0].args = [
    ...spec.containers[0].args.filter((each: string) => !each.startsWith("--service-cluster-ip-range=")),
    ...["--enable-ipv6=true", `--service-cluster-ip-range=${serviceCidr},${serviceIpv6Cidr}`],
  ];
  spec.nodeSelector = { "kubernetes.io/hostname": nodeNames[0] };
  return items;
}

/** Of a pod's own ServiceAccount, for an API server that is not reached by its Service. */
export function podKubeconfig(apiServer: string): string {
  const account = "/var/run/secrets/kubernetes.io/serviceaccount";
  return JSON.stringify({
    apiVersion: "v1",
    kind: "Config",
    clusters: [{ name: "default", cluster: { server: apiServer, "certificate-authority": `${account}/ca.crt` } }],
    contexts: [{ name: "default", context: { cluster: "default", namespace: "default", user: "default" } }],
    "current-context": "default",
    users: [{ name: "default", user: { tokenFile: `${account}/token` } }],
  });
}

/** One of both nodes only: they are one host, whose rules two of them would both write. */
function kubeProxy(registry: string, apiServer: string): Json[] {
  const name = "kube-proxy";
  const config = {
    apiVersion: "kubeproxy.config.k8s.io/v1alpha1",
    kind: "KubeProxyConfiguration",
    mode: "nftables",
    clusterCIDR: machineCidr,
    clientConnection: { kubeconfig: "/var/lib/kube-proxy/kubeconfig.conf" },
    // Zero: leave the host's limits of connection tracking alone.
    conntrack: { maxPerCore: 0, tcpEstablishedTimeout: "0s", tcpCloseWaitTimeout: "0s" },
  };
  const own = { name, namespace: "kube-system" };
  return [
    { apiVersion: "v1", kind: "ServiceAccount", metadata: own },
    {
      apiVersion: "rbac.authorization.k8s.io/v1",
      kind: "ClusterRoleBinding",
      metadata: { name: "kubeadm:node-proxier" },
      roleRef: { apiGroup: "rbac.authorization.k8s.io", kind: "ClusterRole", name: "system:node-proxier" },
      subjects: [{ kind: "ServiceAccount", ...own }],
    },
    {
      apiVersion: "v1",
      kind: "ConfigMap",
      metadata: own,
      data: { "kubeconfig.conf": podKubeconfig(apiServer), "config.conf": JSON.stringify(config) },
    },
    daemonSet(name, own.namespace, {
      priorityClassName: "system-node-critical",
      serviceAccountName: name,
      hostNetwork: true,
      nodeSelector: { "kubernetes.io/os": "linux", "kubernetes.io/hostname": nodeNames[0] },
      containers: [
        {
          name,
          image: `${registry}/kube-proxy:1`,
          command: [
            "/usr/local/bin/kube-proxy",
            "--config=/var/lib/kube-proxy/config.conf",
            "--hostname-override=$(NODE_NAME)",
          ],
          securityContext: { privileged: true },
          env: [{ name: "NODE_NAME", valueFrom: { fieldRef: { fieldPath: "spec.nodeName" } } }],
          volumeMounts: [
            { mountPath: "/var/lib/kube-proxy", name: "kube-proxy" },
            { mountPath: LOCK_FILE, name: "xtables-lock", readOnly: false },
            { mountPath: "/lib/modules", name: "lib-modules", readOnly: true },
          ],
        },
      ],
      volumes: [
        { name: "kube-proxy", configMap: { name } },
        { name: "xtables-lock", hostPath: { path: LOCK_FILE, type: "FileOrCreate" } },
        { name: "lib-modules", hostPath: { path: "/lib/modules" } },
      ],
    }),
  ];
}

function nodeExporter(registry: string): Json {
  const mount = (name: string, more: Json = {}) => ({ name, mountPath: `/host/${name}`, readOnly: true, ...more });
  const volume = (name: string, path: string) => ({ name, hostPath: { path } });
  return daemonSet("node-exporter", "monitoring", {
    hostNetwork: true,
    hostPID: true,
    // The ports of both nodes are one host's.
    nodeSelector: { "kubernetes.io/hostname": nodeNames[0] },
    securityContext: { runAsNonRoot: true, runAsUser: 65_534, runAsGroup: 65_534, fsGroup: 65_534 },
    containers: [
      {
        name: "node-exporter",
        image: `${registry}/node-exporter:1`,
        args: [
          "--path.procfs=/host/proc",
          "--path.sysfs=/host/sys",
          "--path.rootfs=/host/root",
          // Its own choice leaves out what lies below /run and what is a tmpfs of a container.
          "--collector.filesystem.mount-points-exclude=^$",
          "--collector.filesystem.fs-types-exclude=^(overlay|proc|sysfs|cgroup2?|nsfs)$",
          `--web.listen-address=[$(HOST_IP)]:${EXPORTER_PORT}`,
        ],
        env: [{ name: "HOST_IP", value: hostAddresses[0] }],
        securityContext: { readOnlyRootFilesystem: true, allowPrivilegeEscalation: false },
        ports: [{ name: "metrics", containerPort: EXPORTER_PORT }],
        readinessProbe: { httpGet: { path: "/", port: EXPORTER_PORT }, periodSeconds: 1 },
        volumeMounts: [mount("proc"), mount("sys"), mount("root", { mountPropagation: "HostToContainer" })],
      },
    ],
    volumes: [volume("proc", "/proc"), volume("sys", "/sys"), volume("root", "/")],
  });
}

/** What collectors of logs do: they look for files by a kubelet's names, follow each, and say where a line is from. */
function logCollector(registry: string, logs: string): Json {
  const script = `cd ${logs}; seen=; while sleep 1; do for f in pods/*/*/*.log containers/*.log; do
    case "$seen" in *"$f"*) continue;; esac; [ -e "$f" ] || continue; seen="$seen $f"
    case "$f" in containers/*) echo "$f";; pods/logging_*) ;; *) tail -n +1 -f "$f" | while read -r line; do echo "$f: $line"; done & esac
  done; done`;
  return daemonSet("collector", "logging", {
    nodeSelector: { "kubernetes.io/hostname": nodeNames[0] },
    terminationGracePeriodSeconds: 1,
    containers: [
      {
        name: "collector",
        image: `${registry}/busybox:1`,
        command: ["sh", "-c", script],
        volumeMounts: [{ name: "varlog", mountPath: logs, readOnly: true }],
      },
    ],
    volumes: [{ name: "varlog", hostPath: { path: logs } }],
  });
}

/** It calls iptables, which loads its matches and targets from a folder (Debian: packages iptables and ipset). */
export async function kubeRouterImage(): Promise<TestImage> {
  const triple = { x64: "x86_64", arm64: "aarch64" }[process.arch as string] ?? process.arch;
  const extensions = join("usr/lib", `${triple}-linux-gnu`, "xtables");
  const router = { path: "kube-router", content: await readFile(await buildKubeRouter()), mode: 0o755 };
  const families = ["iptables", "ip6tables"].flatMap((each) => [each, `${each}-save`, `${each}-restore`]);
  const entries: TarEntry[] = [router, ...(await hostPrograms([...families, "ipset", "ip"]))];
  entries.push({ path: extensions, type: "directory", mode: 0o755 });
  entries.push({ path: "etc/iproute2", type: "directory", mode: 0o755 });
  entries.push({
    path: "etc/iproute2/rt_tables",
    content: "255 local\n254 main\n253 default\n0 unspec\n",
    mode: 0o644,
  });
  for (const name of await readdir(join("/", extensions)))
    entries.push({ path: join(extensions, name), content: await readFile(join("/", extensions, name)), mode: 0o644 });
  return await busyboxImage(entries, { Entrypoint: ["/kube-router"] });
}

async function pushImages({ registry }: Environment): Promise<void> {
  await registry.push("busybox:1", await busyboxImage());
  const proxy = { path: "usr/local/bin/kube-proxy", content: await readFile(await buildKubeProxy()), mode: 0o755 };
  const folders = ["usr", "usr/local", "usr/local/bin"].map((path) => ({
    path,
    type: "directory" as const,
    mode: 0o755,
  }));
  await registry.push("kube-proxy:1", await busyboxImage([...folders, proxy, ...(await hostPrograms(["nft"]))]));
  await registry.push("kube-router:1", await kubeRouterImage());
  await registry.push(
    "node-exporter:1",
    await programImage("bin/node_exporter", buildNodeExporter(), ["/bin/node_exporter"]),
  );
}

async function main(): Promise<number> {
  await setUp();
  const hadLock = existsSync(LOCK_FILE);
  const logs = await mkdtemp(join(tmpdir(), "vmlet-daemonsets-"));
  // The exporter is nobody there, and looks at what is mounted in it.
  await chmod(logs, 0o755);
  await using environment = await startEnvironment({
    engine: "cri",
    kubeProxy: false,
    dualStack: true,
    host: { namespaces: ["kube-system", "monitoring", "logging"], podLogs: join(logs, "pods") },
  });
  await pushImages(environment);
  const kubectl = await createKubectl(environment.cluster.adminKubeconfig);
  const code = await runSteps(steps, { environment, kubectl, logs }, () => describeAll(kubectl));
  await rm(logs, { recursive: true, force: true });
  if (!hadLock) await rm(LOCK_FILE, { force: true });
  return code;
}

/** Everything that helps to see why a step failed. */
async function describeAll(kubectl: Kubectl): Promise<string> {
  const asked = [
    ["get", "pods", "--all-namespaces", "--output=wide"],
    ["get", "events", "--all-namespaces"],
    ["logs", "--namespace=kube-system", "--selector=app=kube-proxy", "--tail=20"],
    ["logs", "--namespace=kube-system", "--selector=app=kube-router", "--tail=20"],
    ["logs", "--namespace=monitoring", "--selector=app=node-exporter", "--tail=20"],
  ];
  const outputs = await Promise.all(asked.map((args) => kubectl.try(args)));
  return outputs.map(({ stdout, stderr }) => stdout + stderr).join("\n");
}

if (process.argv[1] === import.meta.filename)
  process.exitCode = isInside()
    ? await main()
    : await runInside([...environmentPrograms, buildNodeExporter, buildKubeRouter]);
