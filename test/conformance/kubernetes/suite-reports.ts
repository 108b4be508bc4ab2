/** What the suite has, without a run of it. */
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { stringify } from "yaml";
import { ownCapabilities } from "../../../providers/local/bundle/own-capabilities.ts";
import { CSI_DRIVER, ZONE_KEY } from "../../../src/provider/csi-names.ts";
import { buildKubernetesSuite } from "../../e2e/harness/build.ts";
import { runCommand } from "../../e2e/harness/exec.ts";
import type { GinkgoReport } from "./specs.ts";
import { readReport } from "./suite-run.ts";

/** What the suite may ask of the driver: of this engine, and on this host. */
const DRIVER = {
  StorageClass: { FromExistingClassName: "vmlet" },
  SnapshotClass: { FromName: true },
  DriverInfo: {
    Name: CSI_DRIVER,
    // The smallest that all of its file systems can have.
    SupportedSizeRange: { Min: "300Mi" },
    SupportedFsType: { "": {}, ext4: {}, xfs: {} },
    SupportedMountOption: { noatime: {} },
    // None for snapshots: their stress takes them of volumes that pods have, and waits for them meanwhile.
    StressTestOptions: { NumPods: 4, NumRestarts: 3 },
    Capabilities: {
      persistence: true,
      fsGroup: true,
      exec: true,
      snapshotDataSource: true,
      pvcDataSource: true,
      controllerExpansion: true,
      offlineExpansion: true,
      // The kernel lets a mounted ext4 grow for those alone who have it.
      onlineExpansion: ownCapabilities().includes("CAP_SYS_RESOURCE"),
      readWriteOncePod: true,
      multipods: true,
      block: false,
      RWX: true,
      capReadOnlyMany: true,
      topology: true,
    },
    TopologyKeys: [ZONE_KEY],
  },
};

/** @param file where the report is left */
export async function suiteReport(file: string, flags: readonly string[] = []): Promise<GinkgoReport> {
  await runCommand(await buildKubernetesSuite(), [
    ...["--ginkgo.dry-run", "--ginkgo.no-color", `--ginkgo.json-report=${file}`],
    ...flags,
  ]);
  return await readReport(file);
}

/** What it has for a CSI driver depends on the driver's file, which is left in the folder. */
export async function storageSuite(dir: string): Promise<{ driverFile: string; report: GinkgoReport }> {
  const driverFile = join(dir, "driver.yaml");
  await writeFile(driverFile, stringify(DRIVER));
  return { driverFile, report: await suiteReport(join(dir, "specs.json"), [`--storage.testdriver=${driverFile}`]) };
}
