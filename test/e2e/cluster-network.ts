/**
 * A cluster's own network on hosts whose runtime has none yet: two hosts, each with a containerd of its own (`engine.socket`), no
 * CNI configuration, and a node. kube-router comes as a DaemonSet, as its project installs it: it brings the configuration,
 * and the routes between the hosts. One of them has a second node, whose pods are VMs on the same network.
 *
 * A program of its own, because it needs namespaces of its own. It prints one line of JSON for each step; the test reads them.
 */
import { mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { findTool } from "../../providers/local/host/command.ts";
import {
  environmentPrograms,
  removeControlGroups,
  startSuiteCluster,
  startSuiteRegistry,
} from "../conformance/kubernetes/environment.ts";
import { hostAddress, isInside, runInside, setUp } from "../conformance/kubernetes/namespaces.ts";
import { busyboxImage, type TestRegistry } from "../support/registry.ts";
import { apply, daemonSet, kubeRouterImage, kubeRouterRights, podKubeconfig, podOf, rolledOut } from "./daemonsets.ts";
import { buildKubeRouter, buildMultus } from "./harness/build.ts";
import type { Json } from "./harness/client.ts";
import type { Cluster } from "./harness/cluster.ts";
import { runCommand } from "./harness/exec.ts";
import { createKubectl, type Kubectl } from "./harness/kubectl.ts";
import type { ManagedProcess, Sandbox } from "./harness/processes.ts";
import { runSteps, type Steps } from "./harness/steps.ts";
import { must, waitFor } from "./harness/wait.ts";
import { multus, multusImage, sideNetwork } from "./multus.ts";

interface World {
  cluster: Cluster;
  registry: TestRegistry;
  kubectl: Kubectl;
  hosts: readonly Host[];
}

interface Host {
  readonly node: string;
  readonly address: string;
  /** What `spec.podCIDR` of its node is. */
  readonly podCidr: string;
  /** In front of a command's words: runs it there. */
  readonly within: readonly [string, ...string[]];
  backend: ManagedProcess;
}

const READY_MS = 120_000;
/** Where the control plane is, on the link between all hosts. */
const LINK = "underlay";
const HOSTS = [
  { node: "host-a", address: "192.0.2.21", podCidr: "10.98.1.0/24" },
  { node: "host-b", address: "192.0.2.22", podCidr: "10.98.2.0/24" },
] as const;
const KUBELET_PORT = 10_250;
/** On the second host. */
const VM_NODE = "host-b-vm";
const VM_KUBELET_PORT = 10_260;
const SIDE = "10.97.7.0/24";
const NETWORK = "/etc/cni/net.d/10-kuberouter.conflist";
const HOST_PORT = 18_080;
const PROGRAM = join(import.meta.dirname, "../../src/cli/main.ts");
const ADDRESS = `jsonpath={.status.podIP}`;
const READY = ["--for=condition=Ready", `--timeout=${READY_MS}ms`];

/** In order; each builds on those before it. */
const steps: Steps<World> = {
  "nodes come without a network, and say so: of containers and of VMs": async ({ cluster }) => {
    await waitFor({ what: "all nodes to tell that there is no network", timeoutMs: READY_MS }, async () => {
      const { items } = await cluster.admin.get("/api/v1/nodes");
      must(items.length === HOSTS.length + 1, items);
      const told = items.map((node: Json) => [conditionOf(node, "Ready")?.status, networkOf(node)?.reason].join(" "));
      must(
        told.every((each: string) => each === "True NetworkPluginNotReady"),
        told,
      );
      must(items.every(isTainted), items);
    });
  },

  "a pod that wants an address waits, and says what for": async ({ kubectl, registry, hosts }) => {
    const page = "mkdir /w; echo served > /w/index.html; httpd -f -p 8080 -h /w";
    const [a, b] = hosts;
    await apply(kubectl, [
      onNode(a!, podOf("web", registry.host, page), [{ containerPort: 8080, hostPort: HOST_PORT }]),
      onNode(a!, podOf("beside", registry.host, "sleep 100000")),
      onNode(b!, podOf("away", registry.host, "sleep 100000")),
    ]);
    await waitFor({ what: "the scheduler to tell why it waits", timeoutMs: READY_MS }, async () => {
      const { status } = JSON.parse(await kubectl.run(["get", "pod", "away", "-o", "json"]));
      const [scheduled] = status.conditions ?? [];
      must(scheduled?.message?.includes("untolerated taint") === true, status);
    });
  },

  "a pod that is given to a node without a network is not lost: it is tried again": async ({ kubectl, registry }) => {
    const early = podOf("early", registry.host, "sleep 100000");
    early.spec.nodeName = HOSTS[1].node;
    await apply(kubectl, [early]);
    await waitFor({ what: "an event that names the network", timeoutMs: READY_MS }, async () => {
      const events = await kubectl.run(["events", "--for", "pod/early"]);
      must(/FailedCreatePodSandBox.*cni plugin not initialized/.test(events), events);
    });
  },

  "a DaemonSet that has the hosts' own network installs one": async ({ kubectl, registry, cluster }) => {
    await apply(kubectl, await kubeRouter(registry.host, cluster.url));
    await rolledOut(kubectl, "kube-system", "kube-router");
    await waitFor({ what: "the nodes to have their network", timeoutMs: READY_MS }, async () => {
      const { items } = await cluster.admin.get("/api/v1/nodes");
      must(
        items.every((node: Json) => networkOf(node)?.status === "False" && !isTainted(node)),
        items,
      );
    });
  },

  "pods have addresses of their node's range": async ({ kubectl }) => {
    await kubectl.run(["wait", "pod/web", "pod/beside", "pod/away", "pod/early", ...READY]);
    for (const [pod, { podCidr }] of [
      ["web", HOSTS[0]],
      ["beside", HOSTS[0]],
      ["away", HOSTS[1]],
      ["early", HOSTS[1]],
    ] as const) {
      const address = await kubectl.run(["get", "pod", pod, "-o", ADDRESS]);
      must(address.startsWith(podCidr.replace("0/24", "")), [pod, address]);
    }
  },

  "pods reach each other, on one host and across hosts": async ({ kubectl }) => {
    const web = await kubectl.run(["get", "pod", "web", "-o", ADDRESS]);
    for (const pod of ["beside", "away", "early"])
      await waitFor({ what: `${pod} to reach the other pod`, timeoutMs: READY_MS }, async () => {
        const { stdout, stderr } = await kubectl.try(ask(pod, `http://${web}:8080/`));
        must(stdout === "served\n", stdout + stderr);
      });
  },

  "pods that are VMs are on the network of their host, too": async ({ kubectl, registry }) => {
    const [, { podCidr }] = HOSTS;
    const page = "mkdir /w; echo served > /w/index.html; httpd -f -p 8080 -h /w";
    await apply(kubectl, [onNode({ node: VM_NODE }, podOf("in-vm", registry.host, page))]);
    await kubectl.run(["wait", "pod/in-vm", ...READY]);
    const address = await kubectl.run(["get", "pod", "in-vm", "-o", ADDRESS]);
    must(address.startsWith(podCidr.replace("0/24", "")), address);
    const web = await kubectl.run(["get", "pod", "web", "-o", ADDRESS]);
    for (const [pod, target] of [
      ["in-vm", web],
      ["beside", address],
      ["away", address],
    ] as const)
      await waitFor({ what: `${pod} to reach the other pod`, timeoutMs: READY_MS }, async () => {
        const { stdout, stderr } = await kubectl.try(ask(pod, `http://${target}:8080/`));
        must(stdout === "served\n", stdout + stderr);
      });
  },

  "limits of a pod's traffic are the network's plugins', of containers and of VMs": async (world) => {
    const { kubectl, registry, hosts } = world;
    const [a, b] = hosts;
    let tried = 0;
    for (const [node, host] of [
      [a!.node, a!],
      [VM_NODE, b!],
    ] as const)
      // An agent learns within a minute what a network that has come can do; until then it warns.
      await waitFor({ what: `${node} to limit what comes to its pod`, timeoutMs: READY_MS }, async () => {
        const name = `limited-${++tried}`;
        await apply(kubectl, [limited(onNode({ node }, podOf(name, registry.host, "sleep 100000")))]);
        await kubectl.run(["wait", `pod/${name}`, ...READY]);
        const { stdout } = await runOn(host, "tc", "qdisc", "show");
        const events = await kubectl.run(["events", "--for", `pod/${name}`]);
        await kubectl.run(["delete", "pod", name, "--grace-period=1"]);
        must(stdout.includes(`rate ${LIMIT.replace("k", "Kbit")}`), stdout + events);
        must(!events.includes("BandwidthNotLimited"), events);
      });
  },

  "a port of the host leads to its pod, by the network's own plugin": async () => {
    await waitFor({ what: "the port to answer", timeoutMs: READY_MS }, async () => {
      const page = await (await fetch(`http://${HOSTS[0].address}:${HOST_PORT}/`)).text();
      must(page === "served\n", page);
    });
  },

  "a backend that is killed finds its machines again, with their addresses": async ({ kubectl, hosts, cluster }) => {
    const [a] = hosts;
    const before = await kubectl.run(["get", "pod", "web", "-o", ADDRESS]);
    await a!.backend.kill("SIGKILL");
    a!.backend = startBackend(cluster.sandbox, a!);
    await waitFor({ what: "the pod to be reached again", timeoutMs: READY_MS }, async () => {
      const { stdout, stderr } = await kubectl.try(ask("beside", `http://${before}:8080/`));
      must(stdout === "served\n", stdout + stderr);
    });
    const { status } = JSON.parse(await kubectl.run(["get", "pod", "web", "-o", "json"]));
    must(status.podIP === before && status.containerStatuses[0].restartCount === 0, status);
  },

  "a network that goes leaves pods alone, and keeps new ones away until it is back": async (world) => {
    const { kubectl, cluster, hosts } = world;
    const [, b] = hosts;
    const [file, aside] = [NETWORK, "/var/lib/cni/aside"];
    const isThere = (wanted: boolean) =>
      waitFor({ what: wanted ? "the network to be back" : "the network to be gone", timeoutMs: READY_MS }, async () => {
        const node = await cluster.admin.get(`/api/v1/nodes/${b!.node}`);
        must(networkOf(node)?.status === (wanted ? "False" : "True"), node.status.conditions);
      });
    await runOn(b!, "sh", "-c", `mv ${file} ${aside}`);
    await isThere(false);
    const running = await kubectl.run(["get", "pod", "away", "-o", "jsonpath={.status.phase}"]);
    must(running === "Running", running);
    await runOn(b!, "sh", "-c", `cp ${aside} ${file}.new && mv ${file}.new ${file}`);
    await isThere(true);
  },

  "a plugin that looks the pod up gives it a further interface, by its annotation": async (world) => {
    const { kubectl, cluster, registry, hosts } = world;
    const nodes = HOSTS.map(({ node }) => node);
    await apply(kubectl, multus(registry.host, nodes, await cluster.userKubeconfig("multus"), NETWORK));
    await rolledOut(kubectl, "kube-system", "multus");
    await kubectl.run(["wait", "--for=condition=Established", "crd", "--all", `--timeout=${READY_MS}ms`]);
    const twice = onNode(hosts[0]!, podOf("twice", registry.host, "sleep 100000"));
    twice.metadata.annotations = { "k8s.v1.cni.cncf.io/networks": "side" };
    await apply(kubectl, [sideNetwork("side", SIDE), twice]);
    await kubectl.run(["wait", "pod/twice", ...READY]);
    const links = await kubectl.run(["exec", "twice", "--", "ip", "-o", "-4", "address"]);
    must(links.includes("eth0 ") && links.includes(`net1    inet ${SIDE.replace("0/24", "")}`), links);
    const { metadata, status } = JSON.parse(await kubectl.run(["get", "pod", "twice", "-o", "json"]));
    must(status.podIP.startsWith(HOSTS[0].podCidr.replace("0/24", "")), status);
    must(metadata.annotations["k8s.v1.cni.cncf.io/network-status"].includes("default/side"), metadata);
  },

  "VMs come and go with that plugin, with the cluster's network alone": async ({ kubectl, registry }) => {
    await apply(kubectl, [onNode({ node: VM_NODE }, podOf("late-vm", registry.host, "sleep 100000"))]);
    await kubectl.run(["wait", "pod/late-vm", ...READY]);
    const { metadata, status } = JSON.parse(await kubectl.run(["get", "pod", "late-vm", "-o", "json"]));
    must(status.podIP.startsWith(HOSTS[1].podCidr.replace("0/24", "")), status);
    must(metadata.annotations["k8s.v1.cni.cncf.io/network-status"].includes(status.podIP), metadata);
  },

  "nothing of the pods is left of what the network's plugins write down": async ({ kubectl, hosts }) => {
    await kubectl.run(["delete", "pod", "--all", "--grace-period=1", `--timeout=${READY_MS}ms`]);
    const network = ["daemonset/kube-router", "--namespace=kube-system", "--cascade=foreground"];
    await kubectl.run(["delete", ...network, `--timeout=${READY_MS}ms`]);
    for (const host of hosts)
      await waitFor({ what: "the leases to be given back", timeoutMs: READY_MS }, async () => {
        const { stdout } = await runOn(host, "find", "/var/lib/cni/networks", "-name", "10.9[78].*");
        must(stdout === "", stdout);
      });
  },
};

export const stepNames = Object.keys(steps);

const conditionOf = ({ status }: Json, type: string) =>
  (status.conditions as Json[] | undefined)?.find((each) => each["type"] === type);
const networkOf = (node: Json) => conditionOf(node, "NetworkUnavailable");
const isTainted = ({ spec }: Json) =>
  (spec.taints ?? []).some(({ key }: Json) => key === "node.kubernetes.io/network-unavailable");
const ask = (pod: string, url: string) => ["exec", pod, "--", "timeout", "3", "wget", "-qO-", url];

/** Of what comes to the pod. */
const LIMIT = "2468k";

function limited(pod: Json): Json {
  pod.metadata.annotations = { "kubernetes.io/ingress-bandwidth": LIMIT };
  return pod;
}

function onNode({ node }: Pick<Host, "node">, pod: Json, ports: readonly Json[] = []): Json {
  pod.spec.nodeSelector = { "kubernetes.io/hostname": node };
  pod.spec.containers[0].ports = ports;
  return pod;
}

/** As its project's generic-kuberouter.yaml, with a kubeconfig: nobody has made the API server's Service reachable yet. */
async function kubeRouter(registry: string, apiServer: string): Promise<Json[]> {
  const own = { name: "kube-router", namespace: "kube-system" };
  const bridge = { type: "bridge", bridge: "kube-bridge", isDefaultGateway: true, ipam: { type: "host-local" } };
  const plugins = [
    bridge,
    { type: "portmap", capabilities: { portMappings: true } },
    { type: "bandwidth", capabilities: { bandwidth: true } },
  ];
  const network = { cniVersion: "0.3.0", name: "mynet", plugins };
  const mount = (name: string, mountPath: string) => ({ name, mountPath });
  const image = `${registry}/kube-router:1`;
  return [
    ...(await kubeRouterRights()),
    {
      apiVersion: "v1",
      kind: "ConfigMap",
      metadata: own,
      data: { "cni-conf.json": JSON.stringify(network), kubeconfig: podKubeconfig(apiServer) },
    },
    daemonSet(own.name, own.namespace, {
      priorityClassName: "system-node-critical",
      serviceAccountName: own.name,
      // VMs are on the network that it makes for the node of containers.
      affinity: {
        nodeAffinity: {
          requiredDuringSchedulingIgnoredDuringExecution: {
            nodeSelectorTerms: [
              { matchExpressions: [{ key: "kubernetes.io/hostname", operator: "NotIn", values: [VM_NODE] }] },
            ],
          },
        },
      },
      hostNetwork: true,
      hostPID: true,
      initContainers: [
        {
          name: "install-cni",
          image,
          command: [
            "sh",
            "-c",
            "cp /config/cni-conf.json /etc/cni/net.d/.new && mv /etc/cni/net.d/.new /etc/cni/net.d/10-kuberouter.conflist",
          ],
          volumeMounts: [mount("cni-conf-dir", "/etc/cni/net.d"), mount("config", "/config")],
        },
      ],
      containers: [
        {
          name: own.name,
          image,
          args: [
            "--run-router=true",
            "--run-firewall=false",
            "--run-service-proxy=false",
            "--bgp-graceful-restart=true",
            "--kubeconfig=/config/kubeconfig",
          ],
          env: [
            { name: "NODE_NAME", valueFrom: { fieldRef: { fieldPath: "spec.nodeName" } } },
            { name: "KUBE_ROUTER_CNI_CONF_FILE", value: "/etc/cni/net.d/10-kuberouter.conflist" },
          ],
          securityContext: { privileged: true },
          volumeMounts: [
            mount("lib-modules", "/lib/modules"),
            mount("cni-conf-dir", "/etc/cni/net.d"),
            mount("xtables-lock", "/run/xtables.lock"),
            mount("config", "/config"),
          ],
        },
      ],
      volumes: [
        { name: "lib-modules", hostPath: { path: "/lib/modules", type: "DirectoryOrCreate" } },
        { name: "cni-conf-dir", hostPath: { path: "/etc/cni/net.d" } },
        { name: "xtables-lock", hostPath: { path: "/run/xtables.lock", type: "FileOrCreate" } },
        { name: "config", configMap: { name: own.name } },
      ],
    }),
  ];
}

type Place = Pick<Host, "node" | "within">;

function runOn({ within: [program, ...words] }: Place, ...command: string[]) {
  return runCommand(program, [...words, ...command]);
}

function spawnOn(sandbox: Sandbox, { node, within: [program, ...words] }: Place, name: string, ...command: string[]) {
  return sandbox.spawn(`${node}-${name}`, program, [...words, ...command]);
}

const portsOf = (...served: readonly { url?: string; host?: string }[]) =>
  served.map(({ url, host }) => new URL(url ?? `http://${host}`).port);

const folderOf = (sandbox: Sandbox, { node }: Pick<Host, "node">) => join(sandbox.dir, node);

const stateDirOf = (sandbox: Sandbox, host: Pick<Host, "node">) => join(folderOf(sandbox, host), "backend");

/** A host of its own: network, mounts, and what lies in /run, /etc/cni, /var/lib/cni and /opt. */
async function startHost(
  { cluster, registry }: Pick<World, "cluster" | "registry">,
  named: (typeof HOSTS)[number],
): Promise<Host> {
  const { sandbox } = cluster;
  const { node, address } = named;
  const dir = folderOf(sandbox, named);
  await mkdir(dir);
  const begin = [
    "mount -t sysfs sysfs /sys",
    "mount --rbind /mnt /sys/fs/cgroup",
    "mount --make-rshared /",
    ...["/run", "/etc/cni", "/var/lib/cni", "/opt"].map((path) => `mkdir -p ${path}; mount -t tmpfs tmpfs ${path}`),
    "mkdir -p /run/netns /etc/cni/net.d",
    "ip link set lo up",
    "echo 1 > /proc/sys/net/ipv4/ip_forward",
    `touch ${dir}/begun`,
    "exec sleep infinity",
  ].join(" && ");
  const host = sandbox.spawn(node, "unshare", ["--net", "--mount", "--propagation", "private", "sh", "-c", begin]);
  await waitFor({ what: `${node} to begin`, timeoutMs: READY_MS }, () => runCommand("test", ["-e", `${dir}/begun`]));
  const namespaces = [`--net=/proc/${host.pid}/ns/net`, `--mount=/proc/${host.pid}/ns/mnt`];
  const place: Place = { node, within: ["nsenter", ...namespaces] };
  const link = ["type", "veth", "peer", "name", "eth0", "netns", String(host.pid)];
  await runCommand("ip", ["link", "add", `to-${node}`, "master", LINK, "up", ...link]);
  await runOn(place, "ip", "address", "add", `${address}/24`, "dev", "eth0");
  await runOn(place, "ip", "link", "set", "eth0", "up");
  // As a host reaches them elsewhere: at loopback's addresses here.
  for (const port of portsOf(cluster, registry))
    spawnOn(sandbox, place, `relay-${port}`, process.execPath, "-e", RELAY, port, relayOf(sandbox, port));
  const socket = await startContainerd(sandbox, place, registry);
  await configureBackend(sandbox, place, {
    ...{ type: "cri", socket, allowPrivileged: true },
    host: { namespaces: ["kube-system"] },
  });
  return { ...named, ...place, backend: startBackend(sandbox, place) };
}

/** A second backend of the host, whose machines are VMs on the same network. */
async function startVms({ cluster, registry }: Pick<World, "cluster" | "registry">, host: Host): Promise<void> {
  const { sandbox } = cluster;
  const place: Place = { node: VM_NODE, within: host.within };
  await mkdir(folderOf(sandbox, place));
  await configureBackend(sandbox, place, {
    ...{ type: "vm", cni: {} },
    images: { insecureRegistries: [registry.host] },
  });
  startBackend(sandbox, place);
  await startAgent(cluster, { ...place, address: host.address, kubeletPort: VM_KUBELET_PORT });
}

/** From one place to another, each a port of loopback's or the path of a socket. */
const RELAY = `const { connect, createServer } = require("node:net");
const [from, to] = process.argv.slice(1).map((each) => (each.startsWith("/") ? { path: each } : { host: "127.0.0.1", port: Number(each) }));
createServer((a) => {
  const b = connect(to);
  for (const [one, other] of [[a, b], [b, a]]) one.on("error", () => other.destroy()).pipe(other);
}).listen(from)`;

/** A path leads from every host to the network of the control plane. */
const relayOf = ({ dir }: Sandbox, port: string) => join(dir, `port-${port}.sock`);

/** As Debian or a cloud's image has it: nothing in it knows of vmlet. */
async function startContainerd(sandbox: Sandbox, place: Place, registry: TestRegistry): Promise<string> {
  const dir = folderOf(sandbox, place);
  const socket = join(dir, "containerd.sock");
  const file = join(dir, "containerd.toml");
  await writeFile(
    file,
    `version = 3
root = "${dir}/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.nri.v1.nri"]
[grpc]
address = "${socket}"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "${registry.host}/pause:1"
[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["/opt/cni/bin", "/usr/lib/cni"]
conf_dir = "/etc/cni/net.d"
use_internal_loopback = true
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
`,
  );
  spawnOn(sandbox, place, "containerd", findTool("containerd")!, "--config", file);
  await waitFor({ what: `${place.node}'s containerd`, timeoutMs: READY_MS }, () => runCommand("test", ["-S", socket]));
  return socket;
}

async function configureBackend(sandbox: Sandbox, place: Place, engine: Json): Promise<void> {
  const dir = folderOf(sandbox, place);
  await writeFile(
    join(dir, "backend.yaml"),
    JSON.stringify({
      apiVersion: "vmlet.dev/v1",
      kind: "BackendConfig",
      stateDir: stateDirOf(sandbox, place),
      listen: { socket: join(dir, "backend.sock") },
      engine,
    }),
  );
}

function startBackend(sandbox: Sandbox, place: Place): ManagedProcess {
  const config = join(folderOf(sandbox, place), "backend.yaml");
  return spawnOn(sandbox, place, "backend", process.execPath, PROGRAM, "backend", "--config", config);
}

/** It runs where its node's address is, so that the API server finds its kubelet API there. */
async function startAgent(
  { sandbox, userKubeconfig, caFile, admin }: Cluster,
  host: Place & { address: string; podCidr?: string; kubeletPort?: number },
): Promise<void> {
  const { node, address, podCidr, kubeletPort = KUBELET_PORT } = host;
  const dir = folderOf(sandbox, host);
  const config = join(dir, "agent.yaml");
  await writeFile(
    config,
    JSON.stringify({
      apiVersion: "vmlet.dev/v1",
      kind: "AgentConfig",
      clusterId: "e2e",
      kubeconfig: await userKubeconfig(`system:node:${node}`, ["system:nodes"]),
      identity: { mode: "direct" },
      health: { address: "127.0.0.1", port: kubeletPort - 2 },
      nodes: [
        {
          name: node,
          provider: { type: "http-vm", url: `unix:${join(dir, "backend.sock")}` },
          taints: [],
          addresses: [address],
          kubelet: { clientCAFile: caFile, address, port: kubeletPort },
        },
      ],
    }),
  );
  spawnOn(sandbox, host, "agent", process.execPath, PROGRAM, "run", "--config", config);
  const path = `/api/v1/nodes/${node}`;
  await waitFor({ what: `the Node ${node}`, timeoutMs: READY_MS }, () => admin.get(path));
  if (podCidr !== undefined) await admin.patch(path, { spec: { podCIDR: podCidr, podCIDRs: [podCidr] } });
}

async function main(): Promise<number> {
  await setUp();
  // Each host's /sys is its own network's; the control groups are all one.
  await runCommand("mount", ["--rbind", "/sys/fs/cgroup", "/mnt"]);
  await runCommand("ip", ["-batch", "-"], {
    input: [`link add ${LINK} type bridge`, `link set ${LINK} up`, "link delete host0", ""].join("\n"),
  });
  await runCommand("ip", ["address", "add", `${hostAddress}/24`, "dev", LINK]);
  await using begun = new AsyncDisposableStack();
  const registry = await startSuiteRegistry();
  begun.defer(() => registry.stop());
  await registry.push("busybox:1", await busyboxImage());
  await registry.push("pause:1", await busyboxImage([], { Cmd: ["/bin/sleep", "1000000"] }));
  await registry.push("kube-router:1", await kubeRouterImage());
  await registry.push("multus:1", await multusImage());
  const cluster = await startSuiteCluster();
  const { sandbox, adminKubeconfig } = cluster;
  begun.defer(async () => {
    for (const { node } of [...HOSTS, { node: VM_NODE }]) await removeControlGroups(stateDirOf(sandbox, { node }));
  });
  begun.use(cluster);
  for (const port of portsOf(cluster, registry))
    sandbox.spawn(`relay-${port}`, process.execPath, ["-e", RELAY, relayOf(sandbox, port), port]);
  const hosts: Host[] = [];
  for (const named of HOSTS) {
    const host = await startHost({ cluster, registry }, named);
    hosts.push(host);
    await startAgent(cluster, host);
  }
  await startVms({ cluster, registry }, hosts[1]!);
  const kubectl = await createKubectl(adminKubeconfig);
  return await runSteps(steps, { cluster, registry, kubectl, hosts }, () => describeAll(kubectl));
}

/** Everything that helps to see why a step failed. */
async function describeAll(kubectl: Kubectl): Promise<string> {
  const asked = [
    ["get", "pods", "--all-namespaces", "--output=wide"],
    ["get", "events", "--all-namespaces"],
    ["logs", "--namespace=kube-system", "--selector=app=kube-router", "--tail=20"],
  ];
  const outputs = await Promise.all(asked.map((args) => kubectl.try(args)));
  return outputs.map(({ stdout, stderr }) => stdout + stderr).join("\n");
}

if (process.argv[1] === import.meta.filename)
  process.exitCode = isInside()
    ? await main()
    : await runInside([...environmentPrograms, buildKubeRouter, buildMultus]);
