/** What the suite runs against: a control plane, a registry, two nodes on one backend, kube-proxy and CoreDNS. */
import { randomBytes } from "node:crypto";
import { copyFile, mkdir, readdir, rmdir } from "node:fs/promises";
import { join } from "node:path";
import { cgroupVersion } from "../../../providers/local/bundle/cgroup.ts";
import { machineHash } from "../../../providers/local/host/machine-hash.ts";
import { unmountBelow } from "../../../providers/local/host/mounts.ts";
import {
  startAgent,
  startBackend,
  type AgentProcess,
  type BackendOptions,
  type BackendProcess,
} from "../../e2e/harness/agent.ts";
import { buildControlPlane, buildCoreDns, buildKubeProxy, buildKubeRouter } from "../../e2e/harness/build.ts";
import type { Json } from "../../e2e/harness/client.ts";
import { startCluster, type Cluster } from "../../e2e/harness/cluster.ts";
import type { Sandbox } from "../../e2e/harness/processes.ts";
import { must, waitFor } from "../../e2e/harness/wait.ts";
import { missingForContainerd } from "../../support/containerd.ts";
import { type ContainerEngine, engineOnThisHost } from "../../support/engines.ts";
import { startRegistry, type TestRegistry } from "../../support/registry.ts";
import { clusterDomain, dnsAddress, startDns } from "./cluster-dns.ts";
import type { EngineFacts } from "./specs.ts";
import { hostAddress, hostAddresses, hostIpv6Addresses, serviceCidr, serviceIpv6Cidr } from "./namespaces.ts";

export const nodeNames = ["node-a", "node-b"] as const;

/** What makes its programs, for `runInside`. */
export const environmentPrograms = [buildControlPlane, buildKubeProxy, buildCoreDns, missingForContainerd] as const;

export const machineCidr = "10.99.0.0/16";
const machineIpv6Cidr = "fd00:10:99::/64";
/** With a backend for each node. */
const machineCidrs = ["10.99.0.0/17", "10.99.128.0/17"] as const;
const registryPort = 5001;
const kubeletPort = 10_250;
/** Where tests look for the registry that they run in a pod on the node's network. */
const podRegistry = "localhost:5000";
const KUBELET_FOLDER = "/var/lib/kubelet";
const HOST_ENGINES: readonly ContainerEngine[] = ["cri", "oci"];

/** Whether an engine gives pods the host, where its owner lets it. */
export function hasHostAccess(engine: ContainerEngine): boolean {
  return HOST_ENGINES.includes(engine);
}

/** What tests may ask of the engine. */
export function engineFacts(engine: ContainerEngine | "incus"): EngineFacts {
  const isVm = engine === "vm";
  return {
    hostAccess: engine !== "incus" && hasHostAccess(engine),
    podResize: !isVm,
    cgroupV1: !isVm && cgroupVersion() === 1,
  };
}

/** Whatever the nodes' machines are. */
export interface SuiteEnvironment extends AsyncDisposable {
  cluster: Cluster;
  registry: TestRegistry;
  /** Of each node, in the order of their names. */
  agents: readonly AgentProcess[];
  /** Copies the logs of everything that was started. */
  saveLogs(dir: string): Promise<void>;
}

export interface Environment extends SuiteEnvironment {
  /** The nodes', or the first node's. */
  backend: BackendProcess;
  /** With `zones`, of each node, in the order of their names. */
  backends: readonly BackendProcess[];
}

export interface EnvironmentOptions {
  /** Default `oci`. */
  engine?: ContainerEngine | undefined;
  /** How many nodes there are. Default: all. */
  nodes?: number | undefined;
  /** Whether each node has a backend of its own, which is a zone of the node's name. */
  zones?: boolean | undefined;
  /** Merged over each node's entry of the agent's configuration. */
  node?: Json;
  /**
   * Whether each node has a host: a backend of its own, with folders of its own where tests look for a kubelet's and CDI's.
   * Default: one backend for all, which serves no plugins.
   */
  hosts?: boolean | undefined;
  /** The backend's `engine.plugins`. Default: none are served. */
  plugins?: { directory: string } | undefined;
  /** The backend's `engine.host`. Default: all, to pods of every namespace, where the engine has that. */
  host?: Json;
  /** Whether kube-proxy runs on this host. Default true. */
  kubeProxy?: boolean | undefined;
  /** Whether kube-router's firewall runs on this host: it takes it for one node's, so there is one. Default false. */
  networkPolicies?: boolean | undefined;
  /** Whether machines, Services and nodes have IPv6 addresses, too. Default false. */
  dualStack?: boolean | undefined;
  /** Ports of this host that machines reach, besides those of the control plane. */
  openHostPorts?: readonly number[] | undefined;
}

export async function startEnvironment({
  engine = "oci",
  networkPolicies = false,
  nodes = networkPolicies ? 1 : nodeNames.length,
  zones = false,
  node = {},
  hosts = false,
  plugins,
  host = { namespaces: ["*"] },
  kubeProxy = true,
  dualStack = false,
  openHostPorts = [],
}: EnvironmentOptions = {}): Promise<Environment> {
  const { missing } = await engineOnThisHost(engine);
  if (missing.length > 0) throw new Error(`engine ${engine} cannot run on this host: ${missing.join(", ")}`);
  const registry = await startSuiteRegistry();
  let cluster: Cluster | undefined;
  const backends: BackendProcess[] = [];
  const dispose = async () => {
    for (const each of backends) await each.stop();
    // Machines that a run left behind when it was interrupted still have their file systems below the folder.
    if (cluster) await unmountBelow(cluster.sandbox.dir);
    await cluster?.stop();
    for (const { stateDir } of backends) await removeControlGroups(stateDir);
    await registry.stop();
  };
  try {
    cluster = await startSuiteCluster({ dualStack, olderClaims: hosts });
    const ranges = dualStack ? `${machineCidr},${machineIpv6Cidr}` : machineCidr;
    const apiPort = portOf(cluster);
    const { sandbox } = cluster;
    const newBackend = (cidr: string, more: Partial<BackendOptions> = {}) =>
      startBackend({
        sandbox,
        ...more,
        engine: {
          ...optionsOf(engine, { host, plugins: hosts ? { directory: KUBELET_FOLDER } : plugins }),
          // Its network is this run's alone, its name is claimed of the whole host.
          network: {
            bridge: `vc${randomBytes(3).toString("hex")}`,
            cidr,
            openHostPorts: [apiPort, 53, kubeletPort, ...openHostPorts],
          },
          images: { parallelPulls: 4, insecureRegistries: [registry.host, podRegistry] },
        },
      });
    if (hosts || zones)
      for (const [index, nodeName] of nodeNames.entries())
        backends.push(await newBackend(machineCidrs[index]!, await ofNode(nodeName, { hosts, sandbox })));
    else backends.push(await newBackend(ranges));
    const providers = backends.map(({ provider }) => provider);
    const started = await startNodes(cluster, { providers, cidr: ranges, nodes, node, kubeProxy });
    if (networkPolicies) await startFirewall(cluster);
    return { cluster, registry, backend: backends[0]!, backends, ...started, [Symbol.asyncDispose]: dispose };
  } catch (thrown) {
    await dispose();
    throw thrown;
  }
}

export function startSuiteRegistry(): Promise<TestRegistry> {
  return startRegistry({ port: registryPort });
}

/** @param olderClaims whether the API server has the versions of ResourceClaims that are off by default now */
export function startSuiteCluster({ dualStack = false, olderClaims = false } = {}): Promise<Cluster> {
  return startCluster({
    apiServerFlags: [
      "--bind-address=0.0.0.0",
      `--advertise-address=${hostAddress}`,
      "--endpoint-reconciler-type=lease",
      // Inside the cluster, the certificate is good for the Service's name, not for the host's address.
      "--service-account-jwks-uri=https://kubernetes.default.svc/openid/v1/jwks",
      ...(olderClaims ? ["--runtime-config=resource.k8s.io/v1beta1=true,resource.k8s.io/v1beta2=true"] : []),
      ...(dualStack ? [`--service-cluster-ip-range=${serviceCidr},${serviceIpv6Cidr}`] : []),
    ],
  });
}

const isDual = (cidr: string) => cidr.includes(",");
const portOf = ({ url }: Cluster) => Number(new URL(url).port);

interface NodesOptions {
  /** Of each node, in the order of their names, or one of all. */
  providers: readonly Json[];
  /** Range of the machines' addresses, or one of each family: then the nodes have an address of each, too. */
  cidr: string;
  nodes?: number | undefined;
  node?: Json;
  kubeProxy?: boolean | undefined;
}

/** The agents, DNS and the Services' rules, until the nodes are ready. */
export async function startNodes(
  cluster: Cluster,
  { providers, cidr, nodes = nodeNames.length, node = {}, kubeProxy = true }: NodesOptions,
): Promise<Pick<SuiteEnvironment, "agents" | "saveLogs">> {
  const agents: AgentProcess[] = [];
  for (const [index, nodeName] of nodeNames.slice(0, nodes).entries()) {
    const address = hostAddresses[index]!;
    const ipv6 = isDual(cidr) ? [hostIpv6Addresses[index]!] : [];
    const agent = await startAgent({
      sandbox: cluster.sandbox,
      kubeconfig: await cluster.userKubeconfig(`system:node:${nodeName}`, ["system:nodes"]),
      nodeName,
      identity: "direct",
      provider: providers[index] ?? providers[0]!,
      node: {
        taints: [],
        addresses: [address, ...ipv6],
        // Where pods have no access to a host, a path of their own machine.
        allowHostPath: true,
        capacity: { cpu: "16", memory: "32Gi", pods: "110", "ephemeral-storage": "100Gi" },
        // A node's own credentials may not read it from kube-system.
        kubelet: { clientCAFile: cluster.caFile, address, port: kubeletPort },
        dns: { clusterDns: [dnsAddress], clusterDomain },
        ...node,
      },
    });
    agents.push(agent);
  }
  await startDns(cluster);
  if (kubeProxy) await startKubeProxy(cluster, cidr);
  const { admin } = cluster;
  await waitFor({ what: "ready nodes", timeoutMs: 60_000 }, async () => {
    const { items } = await admin.get("/api/v1/nodes");
    const ready = items.filter(({ status }: Json) =>
      status.conditions?.some((each: Json) => each.type === "Ready" && each.status === "True"),
    );
    must(ready.length === nodes, items);
  });
  const { dir } = cluster.sandbox;
  const saveLogs = async (target: string) => {
    for (const file of await readdir(dir))
      if (file.endsWith(".log")) await copyFile(join(dir, file), join(target, file));
  };
  return { agents, saveLogs };
}

/** The rules of Services, in the kernel of this host: machines reach them through their bridge. */
async function startKubeProxy({ sandbox, userKubeconfig }: Cluster, cidr: string): Promise<void> {
  sandbox.spawn("kube-proxy", await buildKubeProxy(), [
    `--kubeconfig=${await userKubeconfig("system:kube-proxy")}`,
    "--proxy-mode=nftables",
    `--cluster-cidr=${cidr}`,
    `--hostname-override=${nodeNames[0]}`,
    // It is the other node's as well.
    `--nodeport-addresses=${[
      ...hostAddresses.map((address) => `${address}/32`),
      ...(isDual(cidr) ? hostIpv6Addresses.map((address) => `${address}/128`) : []),
    ].join(",")}`,
    // Zero: leave the host's limits of connection tracking alone. The last is this network's own.
    "--conntrack-max-per-core=0",
    "--conntrack-tcp-timeout-established=0",
    "--conntrack-tcp-timeout-close-wait=1h",
  ]);
}

/** The rules of NetworkPolicies, beside the backend's own: kube-router's firewall, as a node has it. */
async function startFirewall({ sandbox, userKubeconfig }: Cluster): Promise<void> {
  sandbox.spawn("kube-router", await buildKubeRouter(), [
    `--kubeconfig=${await userKubeconfig("kube-router", ["system:masters"])}`,
    ...["--run-firewall=true", "--run-router=false", "--run-service-proxy=false"],
    `--hostname-override=${nodeNames[0]}`,
    `--service-cluster-ip-range=${serviceCidr}`,
    "--v=1",
  ]);
}

/** What a backend's `engine` has for the suite, whatever else it has. */
function optionsOf(engine: ContainerEngine, { host, plugins }: Pick<EnvironmentOptions, "host" | "plugins">): Json {
  return {
    type: engine,
    // Every container of a VM is alone with its kernel: there is nothing to allow.
    ...(engine !== "vm" && { allowPrivileged: true }),
    ...(hasHostAccess(engine) && { host }),
    ...(plugins !== undefined && { plugins }),
    // What the suite takes each runtime to have besides its own: `PreconfiguredRuntimeClassHandler`.
    ...(engine === "cri" && { runtimes: { "test-handler": "io.containerd.runc.v2" } }),
  };
}

/** What the backend of a node has that is its own: it is a host, or a zone. */
async function ofNode(
  name: string,
  { hosts, sandbox }: { hosts: boolean; sandbox: Sandbox },
): Promise<Partial<BackendOptions>> {
  const own = hosts ? { within: await withFolders(join(sandbox.dir, `host-${name}`)) } : { config: { zone: name } };
  return { name: `backend-${name}`, ...own };
}

/** What becomes a program that has these folders below `dir`. */
async function withFolders(dir: string): Promise<string[]> {
  const folders = [KUBELET_FOLDER, "/var/run/cdi"];
  for (const folder of folders) {
    await mkdir(folder, { recursive: true });
    await mkdir(join(dir, folder), { recursive: true });
  }
  const mounts = folders.map((folder) => `mount --bind "$0${folder}" ${folder}`);
  return ["unshare", "--mount", "--propagation", "slave", "sh", "-ec", [...mounts, 'exec "$@"'].join("; "), dir];
}

/** The kernel keeps empty control groups for ever; nothing else of this run outlives its namespaces. */
export async function removeControlGroups(stateDir: string): Promise<void> {
  const name = `vmlet-${machineHash(stateDir)}`;
  const removeTree = async (folder: string): Promise<void> => {
    const entries = await readdir(folder, { withFileTypes: true }).catch(() => []);
    for (const entry of entries) if (entry.isDirectory()) await removeTree(join(folder, entry.name));
    await rmdir(folder).catch(() => undefined);
  };
  const root = "/sys/fs/cgroup";
  for (const tree of ["", ...(await readdir(root))]) await removeTree(join(root, tree, name));
}
