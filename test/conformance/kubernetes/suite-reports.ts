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

/** Whose volumes the suite can be run with. */
export const STORAGE_ENGINES = ["cri", "vm", "incus"] as const;
export type StorageEngine = (typeof STORAGE_ENGINES)[number];

/** What an engine's volumes are. A guest has a kernel of its own: one machine has a disk. */
const OWN: Readonly<
  Record<
    StorageEngine,
    { smallest: string; fsTypes: object; mountOptions?: object; capabilities: object; snapshotStress?: object }
  >
> = {
  cri: {
    // The smallest that all of its file systems can have.
    smallest: "300Mi",
    fsTypes: { "": {}, ext4: {}, xfs: {} },
    capabilities: {
      // The kernel lets a mounted ext4 grow for those alone who have it.
      onlineExpansion: ownCapabilities().includes("CAP_SYS_RESOURCE"),
      multipods: true,
      block: true,
      RWX: true,
      capReadOnlyMany: true,
      topology: true,
    },
  },
  vm: {
    smallest: "16Mi",
    fsTypes: { "": {}, ext4: {} },
    capabilities: {
      onlineExpansion: true,
      multipods: false,
      block: true,
      RWX: false,
      capReadOnlyMany: false,
      topology: false,
    },
  },
  // Of a pool that is one file system, which a volume is a part of.
  incus: {
    smallest: "16Mi",
    fsTypes: { "": {} },
    mountOptions: {},
    capabilities: {
      onlineExpansion: true,
      multipods: false,
      block: false,
      RWX: false,
      capReadOnlyMany: false,
      topology: false,
      // What df shows is the whole pool: a volume's own size is its quota.
      FSResizeFromSourceNotSupported: true,
    },
    // Copied while pods write to them.
    snapshotStress: { NumPods: 3, NumSnapshots: 3 },
  },
};

/** What the suite may ask of the driver: of this engine, and on this host. */
function driverOf(engine: StorageEngine): object {
  const { smallest, fsTypes, mountOptions = { noatime: {} }, capabilities, snapshotStress } = OWN[engine];
  return {
    StorageClass: { FromExistingClassName: "vmlet" },
    SnapshotClass: { FromName: true },
    DriverInfo: {
      Name: CSI_DRIVER,
      SupportedSizeRange: { Min: smallest },
      SupportedFsType: fsTypes,
      SupportedMountOption: mountOptions,
      StressTestOptions: { NumPods: 4, NumRestarts: 3 },
      // They are taken of volumes that pods have, and waited for meanwhile.
      ...(snapshotStress && { VolumeSnapshotStressTestOptions: snapshotStress }),
      Capabilities: {
        persistence: true,
        fsGroup: true,
        exec: true,
        snapshotDataSource: true,
        pvcDataSource: true,
        controllerExpansion: true,
        offlineExpansion: true,
        readWriteOncePod: true,
        ...capabilities,
      },
      TopologyKeys: [ZONE_KEY],
    },
  };
}

/** @param file where the report is left */
export async function suiteReport(file: string, flags: readonly string[] = []): Promise<GinkgoReport> {
  await runCommand(await buildKubernetesSuite(), [
    ...["--ginkgo.dry-run", "--ginkgo.no-color", `--ginkgo.json-report=${file}`],
    ...flags,
  ]);
  return await readReport(file);
}

/** What it has for a CSI driver depends on the driver's file, which is left in the folder. */
export async function storageSuite(
  dir: string,
  engine: StorageEngine,
): Promise<{ driverFile: string; report: GinkgoReport }> {
  const driverFile = join(dir, "driver.yaml");
  await writeFile(driverFile, stringify(driverOf(engine)));
  return { driverFile, report: await suiteReport(join(dir, "specs.json"), [`--storage.testdriver=${driverFile}`]) };
}
