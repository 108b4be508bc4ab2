/** Builds Go programs (the control plane, the peers that the bench compares with) into the cache. */
import { readFile } from "node:fs/promises";
import { basename, join } from "node:path";
import { cached, cacheKey } from "./cache.ts";
import { runCommand } from "./exec.ts";
import { wantedKubernetes, withControlPlaneModule } from "./other-kubernetes.ts";

/** Of what is pinned: Kubernetes' own suite, its images, kube-proxy, and the control plane unless the environment names another. */
export const kubernetesVersion = "1.37.1";

export const controlPlaneModule = join(import.meta.dirname, "../controlplane");
export const virtualKubeletModule = join(import.meta.dirname, "../virtual-kubelet");
export const kubernetesModule = join(import.meta.dirname, "../kubernetes");
export const nodeExporterModule = join(import.meta.dirname, "../node-exporter");
export const containerdModule = join(import.meta.dirname, "../../../helm/runtime/containerd");
export const runcModule = join(import.meta.dirname, "../../../helm/runtime/runc");
export const kubeRouterModule = join(import.meta.dirname, "../kube-router");
const multusModule = join(import.meta.dirname, "../multus");
export const csiModule = join(import.meta.dirname, "../csi");
export const csiSidecarsModule = join(import.meta.dirname, "../csi-sidecars");

/** Of the control plane that `buildControlPlane` makes. */
export function controlPlaneVersion(): string {
  return wantedKubernetes(kubernetesVersion);
}

/**
 * One binary that is etcd, kube-apiserver, kube-controller-manager or kube-scheduler, by its first argument. About seven
 * minutes on two cores with cold caches. The version flags matter: without them the server calls itself
 * `v0.0.0-master+$Format` and kubectl, Helm and skew checks fail to parse it.
 */
export async function buildControlPlane(): Promise<string> {
  const version = controlPlaneVersion();
  const args = ["build", "-trimpath", "-ldflags", versionFlags(version)];
  if (version === kubernetesVersion)
    return buildGo({ name: "controlplane", module: controlPlaneModule, sources: ["main.go"], args, target: "." });
  const main = join(controlPlaneModule, "main.go");
  const key = cacheKey([await readFile(main), await goVersion(), args.join(" ")]);
  return cached(`controlplane-${version}-${key}`, (temporary) =>
    withControlPlaneModule(version, main, async (cwd) => {
      const [verb = "build", ...rest] = args;
      // No go.sum is there yet: Go writes it.
      await runCommand("go", [verb, "-mod=mod", ...rest, "-o", temporary, "."], { cwd, env: goEnv() });
    }),
  );
}

/** What the linker is told: no symbols, and how the programs of that release of Kubernetes call themselves. */
function versionFlags(version: string): string {
  const [major, minor] = version.split(".");
  const flags = {
    "k8s.io/component-base/version.gitVersion": `v${version}`,
    "k8s.io/component-base/version.gitMajor": major,
    "k8s.io/component-base/version.gitMinor": minor,
    "k8s.io/client-go/pkg/version.gitVersion": `v${version}`,
  };
  return ["-s", "-w", ...Object.entries(flags).map(([name, value]) => `-X ${name}=${value}`)].join(" ");
}

/** virtual-kubelet's own e2e suite as a test binary (`go test -c`). */
export function buildVirtualKubeletSuite(): Promise<string> {
  return buildGo({
    name: "virtual-kubelet-e2e",
    module: virtualKubeletModule,
    sources: ["suite_test.go"],
    args: ["test", "-c", "-vet=off", "-trimpath"],
    target: ".",
  });
}

/** The `virtual-kubelet` command with its mock provider: a peer of the bench. Pinned by the same go.mod as its suite. */
export function buildVirtualKubelet(): Promise<string> {
  return buildProgram(
    "virtual-kubelet",
    virtualKubeletModule,
    "github.com/virtual-kubelet/virtual-kubelet/cmd/virtual-kubelet",
  );
}

/** metrics-server: the source of `kubectl top` and of the autoscaler's CPU figures. */
export function buildMetricsServer(): Promise<string> {
  return buildProgram("metrics-server", kubernetesModule, "sigs.k8s.io/metrics-server/cmd/metrics-server");
}

/**
 * Kubernetes' own e2e suite (Ginkgo). Without `-vet=off` it would vet every dependency; without its version it finds no
 * pods that the Pod Security Standards admit. About 15 CPU minutes when nothing is cached.
 */
export function buildKubernetesSuite(): Promise<string> {
  return buildGo({
    name: "kubernetes-e2e",
    module: kubernetesModule,
    sources: [],
    args: ["test", "-c", "-vet=off", "-trimpath", "-ldflags", versionFlags(kubernetesVersion)],
    target: "k8s.io/kubernetes/test/e2e",
  });
}

/** The program of Kubernetes' test image `agnhost`, which most of the suite's pods run. */
export function buildAgnhost(): Promise<string> {
  return buildProgram("agnhost", kubernetesModule, "k8s.io/kubernetes/test/images/agnhost");
}

/** The program of Kubernetes' test image `nonewprivs`: it prints its effective user id. */
export function buildNonewprivs(): Promise<string> {
  return buildProgram("nonewprivs", kubernetesModule, "k8s.io/kubernetes/test/images/nonewprivs");
}

/** A server that sends what a client's conntrack takes for invalid, of a regression test of kube-proxy's. */
export function buildRegression74839(): Promise<string> {
  return buildProgram(
    "regression-issue-74839",
    kubernetesModule,
    "k8s.io/kubernetes/test/images/regression-issue-74839",
  );
}

/** Kubernetes' own device plugin, of the suite's tests: two devices of `example.com/resource`, each a file of the host. */
export function buildSampleDevicePlugin(): Promise<string> {
  return buildProgram("sample-device-plugin", kubernetesModule, "k8s.io/kubernetes/test/images/sample-device-plugin");
}

/** The driver of Dynamic Resource Allocation of Kubernetes' own tests: its devices are variables in containers. */
export function buildDraTestDriver(): Promise<string> {
  return buildProgram("dra-test-driver", kubernetesModule, "k8s.io/kubernetes/test/e2e/dra/test-driver");
}

/** kube-proxy, for clusters whose pods use Services. */
export function buildKubeProxy(): Promise<string> {
  return buildProgram("kube-proxy", kubernetesModule, "k8s.io/kubernetes/cmd/kube-proxy");
}

/** CoreDNS, the DNS server of a cluster, with the plugins that the tests' Corefile names. */
export function buildCoreDns(): Promise<string> {
  return buildProgram("coredns", kubernetesModule, "./coredns", ["coredns/main.go"]);
}

/** The CoreDNS of Kubernetes' test image `agnhost`. */
export function buildHostsDns(): Promise<string> {
  return buildProgram("hosts-dns", kubernetesModule, "./hosts-dns", ["hosts-dns/main.go"]);
}

/** What lets the program of Kubernetes' tests be a plugin of a node: it stands in for the CSI driver hostpath's proxy. */
export function buildSocketProxy(): Promise<string> {
  return buildProgram("socket-proxy", kubernetesModule, "./socket-proxy", ["socket-proxy/main.go"]);
}

/** Kubernetes' sample of an API server of one's own, which its test of the aggregator runs in a pod. */
export function buildSampleApiServer(): Promise<string> {
  return buildProgram("sample-apiserver", kubernetesModule, "k8s.io/sample-apiserver");
}

/** Prometheus' node exporter, whose DaemonSet wants the node's network, processes and files. */
export function buildNodeExporter(): Promise<string> {
  return buildProgram("node-exporter", nodeExporterModule, "github.com/prometheus/node_exporter");
}

/** etcd by itself, for an image: that of the control plane is a part of its program. */
export function buildEtcd(): Promise<string> {
  return buildProgram("etcd", controlPlaneModule, "go.etcd.io/etcd/server/v3");
}

/** containerd, the runtime of engine cri's tests, without what needs C libraries. */
export function buildContainerd(): Promise<string> {
  return buildContainerdProgram("containerd");
}

/** Its shim, which it finds on the PATH by this name only. */
export function buildContainerdShim(): Promise<string> {
  return buildContainerdProgram("containerd-shim-runc-v2");
}

function buildContainerdProgram(name: string): Promise<string> {
  const version = "github.com/containerd/containerd/v2/version.Version=v2.2.0";
  return buildGo({
    name,
    module: containerdModule,
    sources: [],
    args: ["build", "-trimpath", "-tags", "no_btrfs no_devmapper no_zfs", "-ldflags", `-s -w -X ${version}`],
    target: `github.com/containerd/containerd/v2/cmd/${name}`,
  });
}

/** The CSI project's own checks of a driver. */
export function buildCsiSanity(): Promise<string> {
  return buildProgram("csi-sanity", csiModule, "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity");
}

/** The sidecars that lead from claims and attachments to a CSI driver. Six CPU minutes together when nothing is cached. */
export function buildCsiProvisioner(): Promise<string> {
  return buildProgram(
    "csi-provisioner",
    csiSidecarsModule,
    "github.com/kubernetes-csi/external-provisioner/v6/cmd/csi-provisioner",
  );
}

export function buildCsiAttacher(): Promise<string> {
  return buildProgram(
    "csi-attacher",
    csiSidecarsModule,
    "github.com/kubernetes-csi/external-attacher/v4/cmd/csi-attacher",
  );
}

export function buildCsiResizer(): Promise<string> {
  return buildProgram("csi-resizer", csiSidecarsModule, "github.com/kubernetes-csi/external-resizer/cmd/csi-resizer");
}

export function buildCsiSnapshotter(): Promise<string> {
  return buildProgram(
    "csi-snapshotter",
    csiSidecarsModule,
    "github.com/kubernetes-csi/external-snapshotter/v8/cmd/csi-snapshotter",
  );
}

/** One for a whole cluster, whatever drivers it has: it binds VolumeSnapshots to their contents. */
export function buildSnapshotController(): Promise<string> {
  const target = "github.com/kubernetes-csi/external-snapshotter/v8/cmd/snapshot-controller";
  return buildProgram("snapshot-controller", csiSidecarsModule, target);
}

/** The CSI project's example of a populator, which writes what a `Hello` says to volumes whose claims name it. */
export function buildHelloPopulator(): Promise<string> {
  const target = "github.com/kubernetes-csi/lib-volume-populator/example/hello-populator";
  return buildProgram("hello-populator", csiSidecarsModule, target);
}

/** Without symbols. @param sources of the module itself that it is made of */
function buildProgram(name: string, module: string, target: string, sources: readonly string[] = []): Promise<string> {
  return buildGo({ name, module, sources, args: ["build", "-trimpath", "-ldflags", "-s -w"], target });
}

/**
 * runc, newer than Debian's, which has no user namespaces for volumes. It needs a C compiler, pkg-config and the headers
 * of libseccomp, by which it filters system calls.
 */
export function buildRunc(): Promise<string> {
  return buildGo({
    name: "runc",
    module: runcModule,
    sources: [],
    args: ["build", "-trimpath", "-tags", "seccomp", "-ldflags", "-s -w -X main.version=1.3.3"],
    target: "github.com/opencontainers/runc",
    cgo: true,
  });
}

/** A file of the source of Kubernetes, which is in the module cache once anything of it was built. */
export function kubernetesSource(path: string): Promise<string> {
  return sourceOf("k8s.io/kubernetes", kubernetesModule, path);
}

/** The folder with the kinds of `snapshot.storage.k8s.io`. */
export function snapshotKinds(): Promise<string> {
  return sourceOf("github.com/kubernetes-csi/external-snapshotter/client/v8", csiSidecarsModule, "config/crd");
}

async function sourceOf(name: string, module: string, path: string): Promise<string> {
  const { stdout } = await runCommand("go", ["list", "-m", "-f", "{{.Dir}}", name], { cwd: module, env: goEnv() });
  return join(stdout.trim(), path);
}

/** kube-router, whose firewall holds pods to NetworkPolicies. It calls `iptables` and `ipset`. */
export function buildKubeRouter(): Promise<string> {
  return buildProgram("kube-router", kubeRouterModule, "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router");
}

/** Multus, a network plugin that calls others. */
export function buildMultus(): Promise<string> {
  return buildProgram("multus", multusModule, "gopkg.in/k8snetworkplumbingwg/multus-cni.v4/cmd/multus");
}

/** kwok, another peer of the bench. */
export function buildKwok(): Promise<string> {
  return installGo("kwok", "sigs.k8s.io/kwok/cmd/kwok", "v0.7.0");
}

/** The linter of GitHub's workflows. */
export function buildActionlint(): Promise<string> {
  return installGo("actionlint", "github.com/rhysd/actionlint/cmd/actionlint", "v1.7.7");
}

/** `go install` leaves a program under its own name in GOBIN, which is not wanted twice. */
async function installGo(name: string, path: string, version: string): Promise<string> {
  const key = cacheKey([version, await goVersion()]);
  return cached(`${name}-${key}`, async (temporary) => {
    const bin = `${temporary}.bin`;
    await runCommand("go", ["install", `${path}@${version}`], { env: { ...goEnv(), GOBIN: bin } });
    await runCommand("mv", [join(bin, name), temporary]);
    await runCommand("rm", ["-r", bin]);
  });
}

interface GoProgram {
  name: string;
  /** Folder of the go.mod. */
  module: string;
  /** Files of the module, beside go.mod and go.sum, that the program is made from. */
  sources: readonly string[];
  args: readonly string[];
  target: string;
  /** It has parts in C. */
  cgo?: boolean | undefined;
}

async function buildGo(program: GoProgram): Promise<string> {
  const files = ["go.mod", "go.sum", ...program.sources].map((file) => readFile(join(program.module, file)));
  const key = cacheKey([...(await Promise.all(files)), await goVersion(), program.args.join(" "), program.target]);
  return cached(`${program.name}-${key}`, async (temporary) => {
    const [verb = "build", ...args] = program.args;
    await runCommand("go", [verb, ...args, "-o", temporary, program.target], {
      cwd: program.module,
      env: goEnv(program),
    });
  });
}

/** `go version go1.26.8 linux/amd64`: the compiler and the target, both of which the binary depends on. */
async function goVersion(): Promise<string> {
  return (await runCommand("go", ["version"])).stdout.trim();
}

/** The compiler collects its garbage less often than it would by itself, which saves a seventh of its time. */
function goEnv({ cgo = false }: Pick<GoProgram, "cgo"> = {}): NodeJS.ProcessEnv {
  return { GOGC: "400", ...process.env, CGO_ENABLED: cgo ? "1" : "0" };
}

if (process.argv[1] !== undefined && basename(process.argv[1]) === "build.ts") {
  const builds: Record<string, () => Promise<string>> = {
    controlplane: buildControlPlane,
    "virtual-kubelet-e2e": buildVirtualKubeletSuite,
    "virtual-kubelet": buildVirtualKubelet,
    kwok: buildKwok,
    actionlint: buildActionlint,
    "metrics-server": buildMetricsServer,
    "kubernetes-e2e": buildKubernetesSuite,
    agnhost: buildAgnhost,
    nonewprivs: buildNonewprivs,
    "sample-device-plugin": buildSampleDevicePlugin,
    "dra-test-driver": buildDraTestDriver,
    "kube-proxy": buildKubeProxy,
    coredns: buildCoreDns,
    "hosts-dns": buildHostsDns,
    "socket-proxy": buildSocketProxy,
    etcd: buildEtcd,
    "node-exporter": buildNodeExporter,
    "sample-apiserver": buildSampleApiServer,
    containerd: buildContainerd,
    "containerd-shim": buildContainerdShim,
    runc: buildRunc,
    "csi-provisioner": buildCsiProvisioner,
    "csi-attacher": buildCsiAttacher,
    "csi-resizer": buildCsiResizer,
    "csi-snapshotter": buildCsiSnapshotter,
    "snapshot-controller": buildSnapshotController,
    "hello-populator": buildHelloPopulator,
  };
  for (const name of process.argv.slice(2)) {
    const build = builds[name];
    if (!build) throw new Error(`build.ts: unknown program ${name}; known are ${Object.keys(builds).join(", ")}`);
    console.log(`${name}: ${await build()}`);
  }
}
