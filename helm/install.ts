/**
 * Writes install.yaml, the chart's objects for those who install without Helm, and install-csi.yaml, what volumes need
 * besides. They are rendered by the real helm from the chart and install-values.yaml, so that they cannot come apart.
 * Run: npm run helm:generate
 */
import { writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { isMap, parseAllDocuments, type Document } from "yaml";
import { helmBinary } from "../test/e2e/harness/binaries.ts";
import { runCommand } from "../test/e2e/harness/exec.ts";

export const installFile = join(import.meta.dirname, "install.yaml");

export const csiFile = join(import.meta.dirname, "install-csi.yaml");

const NAMESPACE = "vmlet";

const HEAD = `# vmlet without Helm, generated from the chart (npm run helm:generate). What stands in <> is yours:
#
#   sed -e "s|<CLUSTER-ID>|$(kubectl get namespace kube-system --output jsonpath={.metadata.uid})|" \\
#       -e "s|<IMAGE>|registry.example.com/me/vmlet|" -e "s|<BACKEND>|vms.example.com|" install.yaml | kubectl apply --filename -
#   kubectl create secret generic vm-api --namespace ${NAMESPACE} --from-file=token=./token
#
# The node's name, burst-0, stands in the ConfigMap and in the ClusterRole; more nodes have a line in both, and a port of their
# own in the Deployment and the NetworkPolicy. \`kubectl rollout restart deployment vmlet --namespace ${NAMESPACE}\` has
# the agents read a ConfigMap that changed. An API server with a public address is to be added to the NetworkPolicy.
#
# Uninstall: \`kubectl drain burst-0 --ignore-daemonsets --delete-emptydir-data\` (without the agent nobody would end the
# machines of its pods), \`kubectl delete --filename\` this file, \`kubectl delete node burst-0\`.
apiVersion: v1
kind: Namespace
metadata:
  name: ${NAMESPACE}
  labels:
    pod-security.kubernetes.io/enforce: restricted
`;

const CSI_HEAD = `# The CSI driver of vmlet's persistent volumes (volumes.vmlet.dev), for those who install without Helm: beside install.yaml, with
# the same marks to fill in, for a backend with the capability volumes.persistent. Generated from the chart (npm run helm:generate).
# Snapshots are left out: they need kinds that not every cluster has, and the chart looks whether they are there.
`;

/** What is true of Helm's releases only. */
const HELMS = [
  ["metadata", "labels", "helm.sh/chart"],
  ["metadata", "labels", "app.kubernetes.io/managed-by"],
  // Would not follow the ConfigMap, which is edited by hand here.
  ["metadata", "annotations", "checksum/config"],
];

/** @throws Error with helm's own message, or where there is no helm for this machine's architecture */
export async function installYaml(): Promise<string> {
  return [HEAD, ...(await rendered())].join("---\n");
}

/** @throws Error likewise */
export async function csiYaml(): Promise<string> {
  const [first, ...others] = await rendered(["--set=csi.enabled=true", "--show-only=templates/csi.yaml"]);
  return [CSI_HEAD + first, ...others].join("---\n");
}

async function rendered(more: readonly string[] = []): Promise<string[]> {
  const { stdout } = await runCommand(
    await helmBinary(),
    [
      ...["template", "vmlet", join(import.meta.dirname, "vmlet"), "--namespace", NAMESPACE, "--no-hooks"],
      ...["--values", join(import.meta.dirname, "install-values.yaml"), ...more],
    ],
    // No HOME: nothing of the user's can change what is rendered.
    { env: { PATH: process.env["PATH"], HOME: tmpdir() } },
  );
  // kubectl reads YAML 1.1, where 0440 is octal.
  const documents = parseAllDocuments(stdout, { version: "1.1" });
  if ("empty" in documents) throw new Error("helm rendered nothing");
  return documents.filter(({ contents }) => contents !== null).map(withoutHelm);
}

function withoutHelm(document: Document): string {
  for (const path of HELMS) {
    for (const at of [path, ["spec", "template", ...path]]) {
      if (!document.hasIn(at)) continue;
      document.deleteIn(at);
      const above = at.slice(0, -1);
      const left = document.getIn(above);
      if (isMap(left) && left.items.length === 0) document.deleteIn(above);
    }
  }
  const text = document.toString({ lineWidth: 0 });
  return text.replace(/^---\n/, "").replace(/^# Source: .*\n+/m, "");
}

if (process.argv[1] === import.meta.filename) {
  await writeFile(installFile, await installYaml());
  await writeFile(csiFile, await csiYaml());
}
