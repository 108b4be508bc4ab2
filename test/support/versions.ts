/** Versions of what vmlet was really run with, from where the tests take it. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { CLIENT_VERSIONS } from "../e2e/harness/binaries.ts";
import {
  containerdModule,
  controlPlaneModule,
  kubernetesModule,
  kubernetesVersion,
  runcModule,
  virtualKubeletModule,
} from "../e2e/harness/build.ts";

/** The version that a go.mod requires of each module. */
export function requiredVersions(folder: string): Map<string, string> {
  const lines = readFileSync(join(folder, "go.mod"), "utf8").split("\n");
  const required = lines.map((line) => /^(?:require )?\s*(\S+) v(\d\S*)/.exec(line));
  return new Map(required.flatMap((found) => (found === null ? [] : [[found[1]!, found[2]!]])));
}

/** @throws Error when the module is not required */
function requiredVersion(folder: string, module: string): string {
  const version = requiredVersions(folder).get(module);
  if (version === undefined) throw new Error(`${folder}/go.mod: ${module} is not required`);
  return version;
}

export function versionRows(): string[][] {
  const built = requiredVersion(controlPlaneModule, "k8s.io/kubernetes");
  if (built !== kubernetesVersion)
    throw new Error(`the control plane is ${built} and calls itself ${kubernetesVersion}`);
  return [
    ["kube-apiserver, controller-manager, scheduler", built, "every suite of e2e"],
    ["etcd", requiredVersion(controlPlaneModule, "go.etcd.io/etcd/server/v3"), "every suite of e2e"],
    [
      "kube-proxy",
      requiredVersion(kubernetesModule, "k8s.io/kubernetes"),
      "`e2e/helm-in-cluster`, and Kubernetes' own e2e suite",
    ],
    ["Kubernetes' e2e suite", requiredVersion(kubernetesModule, "k8s.io/kubernetes"), "`test/conformance/RESULTS*.md`"],
    ["kubectl", CLIENT_VERSIONS.kubectl, "`e2e/kubectl` and others"],
    ["kubectl, an old one", CLIENT_VERSIONS.oldKubectl, "`e2e/kubectl`, `e2e/metrics`"],
    ["Helm", CLIENT_VERSIONS.helm, "`e2e/helm`"],
    [
      "CoreDNS",
      requiredVersion(kubernetesModule, "github.com/coredns/coredns"),
      "`e2e/helm-in-cluster`, and Kubernetes' own e2e suite",
    ],
    ["metrics-server", requiredVersion(kubernetesModule, "sigs.k8s.io/metrics-server"), "`e2e/metrics`"],
    [
      "virtual-kubelet's e2e suite",
      requiredVersion(virtualKubeletModule, "github.com/virtual-kubelet/virtual-kubelet"),
      "`e2e/virtual-kubelet`",
    ],
    ["containerd", requiredVersion(containerdModule, "github.com/containerd/containerd/v2"), "engine `cri`"],
    ["runc", requiredVersion(runcModule, "github.com/opencontainers/runc"), "engine `cri`"],
  ];
}
