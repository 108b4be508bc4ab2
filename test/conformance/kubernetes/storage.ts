/**
 * `npm run conformance:storage [-- --focus REGEX] [--skip REGEX] [--unpassed] [--within SECONDS] [--parallel N] [--attempts N] [--engine vm] [--table]`:
 * Kubernetes' external storage suite against the CSI driver of vmlet's volumes, and its StatefulSet tests that claim some:
 * two nodes on an engine, `vmlet csi` and the CSI project's sidecars beside the control plane as the chart runs them.
 * `--engine vm` has a table of its own, RESULTS-storage-vm.md, and so has `--engine incus`, whose machines are containers of an
 * Incus cluster, with its custom volumes.
 * `--focus` also takes a group (`^subPath$`); `--within` chooses what passed in RESULTS-storage.md in no more seconds than
 * that, and leaves the file as it is; without it the file gets what was run, as it ends. `--tmpfs 6g` keeps images and volumes in so much
 * memory, for a host whose disk is nearly full (the nodes would have disk pressure), on a file system of 200 GiB: StatefulSets' tests
 * claim 10 GiB for each pod, all of which is reserved, and write next to nothing. With `--zones` each node has a backend of its own, which is
 * a zone, as the group `topology` wants it. `--node-ssh` lets tests stop a node's kubelet (run.ts). `--table` runs nothing: it writes the
 * file anew, of the results that it has and all that the suite has besides.
 *
 * Needs what `npm run conformance` needs, and loop devices.
 */
import { existsSync } from "node:fs";
import { mkdir, mkdtemp, readFile, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import PQueue from "p-queue";
import { stringify } from "yaml";
import { kubernetesVersion } from "../../e2e/harness/build.ts";
import { runCommand } from "../../e2e/harness/exec.ts";
import { sidecarPrograms } from "../../e2e/volume-driver.ts";
import { engineFacts, environmentPrograms, startEnvironment } from "./environment.ts";
import { pushImages, repositoryList, storageImages, storagePrograms, suitePrograms } from "./images.ts";
import { fetchGuestPackages, startIncusEnvironment } from "./incus-environment.ts";
import { isInside, runInside, setUp } from "./namespaces.ts";
import { startNodeSsh } from "./node-ssh.ts";
import { fromMarkdown, merge, resultsOf, toldOf, withNotRun, type Result } from "./report.ts";
import { isSerial, type GinkgoReport, type Spec } from "./specs.ts";
import { storageSpecOf, storageSpecs, toStorageMarkdown } from "./storage-specs.ts";
import { STORAGE_ENGINES, storageSuite } from "./suite-reports.ts";
import { listImages, print, runSpecs } from "./suite-run.ts";
import { startVolumes } from "./volumes.ts";

const { values: options } = parseArgs({
  options: {
    focus: { type: "string", default: "" },
    skip: { type: "string" },
    unpassed: { type: "boolean", default: false },
    within: { type: "string" },
    parallel: { type: "string", default: "4" },
    attempts: { type: "string", default: "1" },
    list: { type: "boolean", default: false },
    table: { type: "boolean", default: false },
    engine: { type: "string", default: "cri" },
    zones: { type: "boolean", default: false },
    tmpfs: { type: "string" },
    "node-ssh": { type: "boolean", default: false },
  },
});
const engine = STORAGE_ENGINES.find((each) => each === options.engine);
if (engine === undefined) throw new Error(`--engine: there is ${STORAGE_ENGINES.join(", ")}, and no ${options.engine}`);
const resultsFile = join(import.meta.dirname, `../RESULTS-storage${engine === "cri" ? "" : `-${engine}`}.md`);
/** Only of this run, which has mounts of its own. */
const MEMORY = "/mnt";
/** Its file has holes: what is reserved on it, and not written, takes no memory. */
const DISK_SIZE = "200G";

if (options.table) {
  const { suite } = await chosen(await mkdtemp(join(tmpdir(), "vmlet-storage-table-")));
  await writeTable([], suite);
} else if (options.list) {
  const { specs } = await chosen(await mkdtemp(join(tmpdir(), "vmlet-storage-list-")));
  for (const spec of specs) console.log(`${spec.group}\t${spec.name}`);
} else
  process.exitCode = isInside()
    ? await main()
    : await runInside([
        ...environmentPrograms,
        ...suitePrograms,
        ...sidecarPrograms,
        ...storagePrograms,
        ...(engine === "incus" ? [fetchGuestPackages] : []),
      ]);

async function main(): Promise<number> {
  const reportDir = await mkdtemp(join(tmpdir(), "vmlet-storage-"));
  console.log(`logs: ${reportDir}`);
  const { specs, suite, driverFile } = await chosen(reportDir);
  const host = { ...(await setUp()), ...engineFacts(engine!) };
  if (options.tmpfs !== undefined) {
    await runCommand("mount", ["-t", "tmpfs", "-o", `size=${options.tmpfs}`, "tmpfs", MEMORY]);
    const [image, disk] = [join(MEMORY, "disk.img"), join(MEMORY, "disk")];
    await runCommand("truncate", ["--size", DISK_SIZE, image]);
    await runCommand("mkfs.ext4", ["-q", "-m", "0", image]);
    await mkdir(disk);
    await runCommand("mount", ["-o", "loop", image, disk]);
    process.env["TMPDIR"] = disk;
  }
  const abort = new AbortController();
  process.once("SIGINT", () => abort.abort());
  await using environment = await startMachines();
  const { cluster, registry, providers } = environment;
  console.log(`control plane, backend, agents and sidecars log to ${cluster.sandbox.dir}`);
  await startVolumes(cluster, engine!, providers);
  using ssh = options["node-ssh"] ? await startNodeSsh(cluster.sandbox, environment.agents) : undefined;
  const repositories = join(reportDir, "repositories.yaml");
  await writeFile(repositories, stringify(repositoryList(registry.host)));
  await pushImages(registry, await listImages(repositories), storageImages);
  const groups = new Map(specs.map(({ name, group }) => [name, group]));
  const resultsSoFar = (of: readonly Spec[], reports: readonly GinkgoReport[]) => {
    const told = toldOf(of, reports, { isCut: abort.signal.aborted, nameOf: (each) => storageSpecOf(each)?.name });
    return resultsOf(told, reports, host, kubernetesVersion).map((each) => ({
      ...each,
      group: groups.get(each.name)!,
    }));
  };
  const writing = new PQueue({ concurrency: 1 });
  const reports = await runSpecs(specs, Number(options.parallel), {
    ...{ environment, host, repositories, reportDir, attempts: options.attempts, signal: abort.signal, ssh },
    flags: [`--storage.testdriver=${driverFile}`],
    // A run takes hours: what has ended is kept whatever ends the run.
    ended: async (ofProcess, report) => {
      if (options.within !== undefined) return;
      await writing.add(() => writeTable(resultsSoFar(ofProcess, [report]), suite));
    },
  });
  await environment.saveLogs(reportDir);
  const results = resultsSoFar(specs, reports);
  print(results);
  return results.some(({ outcome }) => outcome === "failed") ? 1 : 0;
}

/** The environment, and where its volumes are: one entry for a backend, or a cloud. */
async function startMachines() {
  if (engine === "incus") {
    const environment = await startIncusEnvironment({ volumes: true });
    return Object.assign(environment, { providers: [environment.provider] });
  }
  const environment = await startEnvironment({ engine: engine!, zones: options.zones });
  return Object.assign(environment, { providers: environment.backends.map(({ provider }) => provider) });
}

async function writeTable(newer: readonly Result[], suite: readonly Spec[]): Promise<void> {
  const all = withNotRun(merge(await lastResults(), newer), suite);
  await writeFile(resultsFile, toStorageMarkdown(all, { kubernetes: kubernetesVersion, engine: engine! }));
}

/** The specs that the options choose; what the suite has depends on the driver's file. */
async function chosen(dir: string) {
  const { driverFile, report } = await storageSuite(dir, engine!);
  const passed = (await lastResults()).filter(({ outcome }) => outcome === "passed");
  const within = Number(options.within);
  const focus = new RegExp(options.focus);
  const skip = options.skip === undefined ? undefined : new RegExp(options.skip);
  const suite = storageSpecs(report);
  const specs = suite.filter((spec) => {
    if (!(focus.test(spec.name) || focus.test(spec.group)) || skip?.test(spec.name)) return false;
    const before = passed.find(({ name }) => name === spec.name);
    if (options.unpassed && before !== undefined) return false;
    return options.within === undefined || (before !== undefined && before.seconds <= within && !isSerial(spec));
  });
  if (specs.length === 0) throw new Error("--focus, --skip, --unpassed and --within leave no test");
  return { specs, suite, driverFile };
}

async function lastResults() {
  return existsSync(resultsFile) ? fromMarkdown(await readFile(resultsFile, "utf8")) : [];
}
