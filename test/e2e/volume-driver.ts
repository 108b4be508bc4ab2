/**
 * What the chart runs for persistent volumes (`csi.enabled`), as processes of this host: the arguments of its containers
 * and the rights of its ServiceAccount; only sockets, ports and files are other ones. Beside it the snapshot controller, of
 * which a cluster has one whatever drivers there are.
 */
import { readdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { installChart, type Installation } from "./helm-install.ts";
import { restartable, type RestartableProcess } from "./harness/agent.ts";
import {
  buildCsiAttacher,
  buildCsiProvisioner,
  buildCsiResizer,
  buildCsiSnapshotter,
  buildSnapshotController,
  snapshotKinds,
} from "./harness/build.ts";
import { clientOf, type Json } from "./harness/client.ts";
import type { Cluster } from "./harness/cluster.ts";
import { createKubectl } from "./harness/kubectl.ts";
import { freePort } from "./harness/ports.ts";
import { waitFor } from "./harness/wait.ts";

const RELEASE = "disks";
type Provider = VolumeDriverOptions["nodes"][number]["provider"];

/** The files that a provider's configuration names, each by where the chart has it of a Secret. */
function secretsOf(secret: string, provider: Provider): { path: string; inChart: string }[] {
  const files = "tokenFile" in provider ? { tokenFile: provider.tokenFile } : provider.cloud;
  return Object.entries(files).flatMap(([key, path]) =>
    key.endsWith("File") && typeof path === "string" ? [{ path, inChart: `/etc/vmlet/secrets/${secret}/${key}` }] : [],
  );
}
const SIDECARS: Record<string, () => Promise<string>> = {
  provisioner: buildCsiProvisioner,
  attacher: buildCsiAttacher,
  resizer: buildCsiResizer,
  snapshotter: buildCsiSnapshotter,
};

/** What makes the programs beside the driver. */
export const sidecarPrograms = [...Object.values(SIDECARS), buildSnapshotController] as const;

export interface VolumeDriver {
  readonly chart: Installation;
  /** The sidecars' and the driver's ServiceAccount. */
  readonly account: string;
  readonly driver: RestartableProcess;
}

export interface VolumeDriverOptions {
  cluster: Cluster;
  /** As the agents have them. */
  nodes: readonly {
    name: string;
    provider: { type: "http-vm"; url: string; tokenFile: string } | { type: "cloud"; cloud: object };
  }[];
  clusterId: string;
  /** The chart's `csi`. */
  csi?: Json;
}

export async function startVolumeDriver(options: VolumeDriverOptions): Promise<VolumeDriver> {
  const { cluster, nodes, clusterId, csi = {} } = options;
  const { sandbox, admin, adminKubeconfig } = cluster;
  const programs = await Promise.all(
    Object.entries(SIDECARS).map(async ([name, build]) => [name, await build()] as const),
  );
  await createSnapshotKinds(cluster);
  const controller = [`--kubeconfig=${adminKubeconfig}`, "--leader-election=false"];
  sandbox.spawn("snapshot-controller", "/bin/sh", again(await buildSnapshotController(), controller));

  // Nodes of one provider share a Secret, as they share its configuration.
  const secretOf = (provider: Provider) => nodes.find((node) => node.provider === provider)!.name;
  const secrets = nodes.flatMap(({ provider }) => secretsOf(secretOf(provider), provider));
  const inChart = (provider: Provider) =>
    secretsOf(secretOf(provider), provider).reduce(
      (text, each) => text.replaceAll(JSON.stringify(each.path), JSON.stringify(each.inChart)),
      JSON.stringify(provider),
    );
  const chart = await installChart(cluster, RELEASE, {
    clusterId,
    existingSecrets: [...new Set(nodes.map(({ provider }) => secretOf(provider)))],
    nodes: nodes.map(({ name, provider }) => ({ name, provider: JSON.parse(inChart(provider)) })),
    csi: { enabled: true, ...csi },
  });
  // They run here, and no image of them could be pulled.
  for (const { metadata, kind } of chart.objects.filter((object) => object.kind === "Deployment"))
    await admin.patch(`/apis/apps/v1/namespaces/${metadata.namespace}/${kind.toLowerCase()}s/${metadata.name}`, {
      spec: { replicas: 0 },
    });
  const account = `${RELEASE}-vmlet-csi`;
  const { containers } = chart.objects.find(({ kind, metadata }) => kind === "Deployment" && metadata.name === account)!
    .spec.template.spec;
  const socket = join(sandbox.dir, "csi.sock");
  const withSecrets = (text: string) => secrets.reduce((all, each) => all.replaceAll(each.inChart, each.path), text);
  const backendsFile = join(sandbox.dir, "backends.yaml");
  const backends = chart.objects.find(({ kind, metadata }) => kind === "ConfigMap" && metadata.name === account);
  if (backends !== undefined) await writeFile(backendsFile, withSecrets(backends.data["backends.yaml"]));
  const argsOf = async (container: Json): Promise<[args: string[], port: number]> => {
    const port = await freePort();
    const args = (container.args as string[]).map((arg) =>
      withSecrets(arg)
        .replace("/csi/csi.sock", socket)
        .replace("/etc/vmlet/csi/backends.yaml", backendsFile)
        .replace(/^(--http-endpoint=).*$/, `$1127.0.0.1:${port}`)
        .replace(/^(--health-port=).*$/, `$1${port}`)
        .replace("=0.0.0.0", "=127.0.0.1"),
    );
    return [args, port];
  };
  const [driverContainer, ...sidecars] = containers;
  const [driverArgs, healthPort] = await argsOf(driverContainer);
  const health = clientOf(`http://127.0.0.1:${healthPort}`);
  const ownAccount = `--kubeconfig=${await chart.credentials(account)}`;
  const driver = restartable(sandbox, "csi", [...driverArgs, ownAccount], () => health.text("/readyz"));
  await driver.start();
  for (const container of sidecars) {
    const program = programs.find(([name]) => name === container.name)![1];
    const [args] = await argsOf(container);
    const kubeconfig = await chart.credentials(account);
    sandbox.spawn(`csi-${container.name}`, "/bin/sh", again(program, [...args, `--kubeconfig=${kubeconfig}`]));
  }
  return { chart, account, driver };
}

/** They end when they lose the driver, or their lease, and a kubelet starts them again. */
const again = (program: string, args: readonly string[]) => [
  "-c",
  'while :; do "$@"; sleep 1; done',
  "sh",
  program,
  ...args,
];

async function createSnapshotKinds({ adminKubeconfig, admin }: Cluster): Promise<void> {
  const folder = await snapshotKinds();
  const kubectl = await createKubectl(adminKubeconfig);
  const files = (await readdir(folder)).filter((file) => file.startsWith("snapshot."));
  for (const file of files) await kubectl.run(["create", "--filename", join(folder, file)]);
  for (const file of files) {
    const plural = /_(\w+)\.yaml$/.exec(file)![1];
    await waitFor({ what: `${plural} to be served` }, () => admin.get(`/apis/snapshot.storage.k8s.io/v1/${plural}`));
  }
}
