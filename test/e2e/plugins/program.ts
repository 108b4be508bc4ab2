/**
 * Plugins that extend a node, against a real control plane, on engine cri: Kubernetes' sample device plugin and its test
 * driver of Dynamic Resource Allocation, and a CSI driver of our own; plugin, backend and agent are killed at each step.
 *
 * A program of its own, because it needs namespaces of its own: there, plugins find the backend where they find a
 * kubelet. It prints one line of JSON for each step; the test reads them. By hand, the name of a group runs that alone.
 */
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { environmentPrograms, startEnvironment } from "../../conformance/kubernetes/environment.ts";
import { isInside, runInside, setUp } from "../../conformance/kubernetes/namespaces.ts";
import { busyboxImage } from "../../support/registry.ts";
import { buildDraTestDriver, buildSampleDevicePlugin } from "../harness/build.ts";
import { runCommand } from "../harness/exec.ts";
import { createKubectl, type Kubectl } from "../harness/kubectl.ts";
import { runSteps, type Steps } from "../harness/steps.ts";
import { CDI, claimSteps, DRIVER } from "./claims.ts";
import { CSI_SOCKET, csiSteps } from "./csi.ts";
import { diskSteps } from "./csi-disks.ts";
import { deviceSteps } from "./devices.ts";
import { KUBELET, node, type World } from "./world.ts";

const groups: Record<string, Steps<World>> = {
  devices: deviceSteps,
  claims: claimSteps,
  csi: { ...csiSteps, ...diskSteps },
};
const all: Steps<World> = { ...deviceSteps, ...claimSteps, ...csiSteps, ...diskSteps };
const [, , group = ""] = process.argv;
/** What is built; the CSI driver needs nothing. */
const programs = group === "csi" ? [] : [buildSampleDevicePlugin, buildDraTestDriver];

export const stepNames = Object.keys(all);

async function describeAll(kubectl: Kubectl): Promise<string> {
  const asked = [
    ["get", "pods", "--output=wide"],
    ["get", "events"],
    ["get", "resourceclaims,resourceslices,csinodes", "--output=yaml"],
    ["describe", "node", node],
  ];
  const outputs = await Promise.all(asked.map((args) => kubectl.try(args)));
  return outputs.map(({ stdout, stderr }) => stdout + stderr).join("\n");
}

async function main(): Promise<number> {
  await setUp();
  for (const folder of [KUBELET, CDI]) {
    await mkdir(folder, { recursive: true });
    await runCommand("mount", ["-t", "tmpfs", "plugins", folder]);
  }
  // A folder of the host that a driver's DaemonSet would have made.
  await mkdir(join(KUBELET, "plugins", DRIVER), { recursive: true });
  const [devicePlugin = "", testDriver = ""] = await Promise.all(programs.map((build) => build()));
  await using environment = await startEnvironment({
    engine: "cri",
    nodes: 1,
    kubeProxy: false,
    plugins: { directory: KUBELET },
  });
  await environment.registry.push("busybox:1", await busyboxImage());
  const { adminKubeconfig } = environment.cluster;
  const kubectl = await createKubectl(adminKubeconfig);
  const args = [`--kubeconfig=${adminKubeconfig}`, "kubelet-plugin", `--node-name=${node}`, "--num-devices=2"];
  const world: World = {
    environment,
    kubectl,
    device: { name: "device-plugin", program: devicePlugin, args: [] },
    driver: { name: "dra-driver", program: testDriver, args: [...args, `--drivername=${DRIVER}`, `--cdi-dir=${CDI}`] },
    csi: {
      name: "csi-driver",
      program: process.execPath,
      args: [join(import.meta.dirname, "csi-program.ts"), CSI_SOCKET],
    },
  };
  return await runSteps(groups[group] ?? all, world, () => describeAll(kubectl));
}

if (process.argv[1] === import.meta.filename)
  process.exitCode = isInside() ? await main() : await runInside([...environmentPrograms, ...programs]);
