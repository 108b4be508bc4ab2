/**
 * `npm run conformance [-- --focus REGEX] [--skip REGEX] [--unpassed] [--within SECONDS] [--untagged] [--parallel N] [--engine vm] [--attempts N] [--list] [--table]`:
 * Kubernetes' own e2e suite against vmlet's nodes. `--focus` also takes a group (`^common/node$`); `--unpassed` chooses what
 * RESULTS.md does not have as passed, `--within` what passed there in no more seconds than that (CI's slice); with it
 * RESULTS.md stays as it is. `--untagged` takes those of the tests that are tagged neither [Conformance] nor [NodeConformance] which any
 * cluster can be asked for, with engine cri, in place of the tagged: their table is RESULTS-untagged.md. Some of them want
 * `--network-policies` (kube-router's firewall on this host), `--dual-stack` (IPv6 beside IPv4), `--dns-pods` (CoreDNS as a
 * Deployment of theirs, not on this host), `--volumes` (vmlet's own, of the class that claims get which name none),
 * `--node-ssh` (a server of SSH on each node's host, and a systemd that has a kubelet: the agent) or `--hosts` (a backend for
 * each node, with a kubelet's folders for plugins of its own: the group `dra`, whose drivers the suite is itself).
 * `--engine vm` has a table of its own, RESULTS-vm.md, with what was run of it; so has `--engine incus`, whose machines are
 * containers of an Incus cluster. `--attempts 2` tries what fails once more, and
 * says so: some tests race with any node ("lifecycle of Pods and PodStatus" wants a pod Ready just when its image changes).
 * `--table` runs nothing: it writes the engine's table anew, of the results that it has and all that the suite has besides.
 * That is what a new release of the suite wants first: CI fails where a table does not name what the suite has.
 *
 * Needs root on Linux, Go, and the Debian packages runc, umoci, nftables, iproute2, docker-registry, busybox-static
 * and gcc; for the group `network` also bind9-dnsutils, netcat-openbsd, wget and iperf. Logs and ginkgo's reports stay in the folder
 * that is printed at the start.
 */
import { existsSync } from "node:fs";
import { mkdtemp, readFile, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import PQueue from "p-queue";
import { stringify } from "yaml";
import { buildKubeRouter, kubernetesVersion } from "../../e2e/harness/build.ts";
import { sidecarPrograms } from "../../e2e/volume-driver.ts";
import { chosenEngine, parseEngine } from "../../support/engines.ts";
import { moveDnsIntoPods } from "./cluster-dns.ts";
import { engineFacts, environmentPrograms, startEnvironment } from "./environment.ts";
import { pushImages, repositoryList, suitePrograms, untaggedImages, untaggedPrograms } from "./images.ts";
import { fetchGuestPackages, startIncusEnvironment } from "./incus-environment.ts";
import { isInside, runInside, setUp } from "./namespaces.ts";
import { startNodeSsh } from "./node-ssh.ts";
import { complete, fromMarkdown, merge, resultsOf, toldOf, toMarkdown, type Result } from "./report.ts";
import { leftOut, isSerial, selectSpecs, specOf, suiteOf, type GinkgoReport, type Spec } from "./specs.ts";
import { suiteReport } from "./suite-reports.ts";
import { listImages, print, readReport, runSpecs } from "./suite-run.ts";
import { startVolumes } from "./volumes.ts";

const { values: options } = parseArgs({
  options: {
    focus: { type: "string", default: "" },
    skip: { type: "string" },
    parallel: { type: "string", default: "4" },
    list: { type: "boolean", default: false },
    table: { type: "boolean", default: false },
    unpassed: { type: "boolean", default: false },
    within: { type: "string" },
    untagged: { type: "boolean", default: false },
    "network-policies": { type: "boolean", default: false },
    "dual-stack": { type: "boolean", default: false },
    "dns-pods": { type: "boolean", default: false },
    volumes: { type: "boolean", default: false },
    "node-ssh": { type: "boolean", default: false },
    hosts: { type: "boolean", default: false },
    engine: { type: "string", default: chosenEngine("oci") },
    attempts: { type: "string", default: "1" },
  },
});
const SUITE_FILE = "specs.json";
/** What a table takes a host to have, that names what is not left out by design. */
const ANY_HOST = { dummyLinks: true, oomScores: true, sctp: true, selinux: true, nfs: true };
const engine = options.engine === "incus" ? "incus" : parseEngine(options.engine);
/** Where `--within` looks up how long a test takes, whatever the engine: the whole suite is run on engine oci. */
const knownResults = join(import.meta.dirname, "../RESULTS.md");
const { untagged, "network-policies": networkPolicies } = options;
const ofBackends = (["network-policies", "dual-stack", "dns-pods", "volumes", "node-ssh", "hosts"] as const).find(
  (name) => options[name],
);
if (engine === "incus" && ofBackends !== undefined) throw new Error(`--${ofBackends}: not with --engine incus`);
if (untagged && engine !== "cri") throw new Error("--untagged: with --engine cri, whose owner may give pods the host");
const resultsFile =
  engine === "oci" ? knownResults : join(import.meta.dirname, `../RESULTS-${untagged ? "untagged" : engine}.md`);

if (options.table) {
  await writeTable([], await suiteReport(join(await mkdtemp(join(tmpdir(), "vmlet-conformance-table-")), SUITE_FILE)));
} else if (options.list) {
  for (const spec of await chosen(await mkdtemp(join(tmpdir(), "vmlet-conformance-list-"))))
    console.log(`${spec.group}\t${leftOut(spec, { ...ANY_HOST, ...engineFacts(engine) }) ? "-" : "+"}\t${spec.name}`);
} else if (isInside()) {
  process.exitCode = await main();
} else {
  const ofEngine = engine === "incus" ? [fetchGuestPackages] : [];
  const besides = [
    ...(networkPolicies ? [buildKubeRouter] : []),
    ...(untagged ? untaggedPrograms : []),
    ...(options.volumes ? sidecarPrograms : []),
  ];
  process.exitCode = await runInside([...environmentPrograms, ...suitePrograms, ...ofEngine, ...besides]);
}

async function main(): Promise<number> {
  const reportDir = await mkdtemp(join(tmpdir(), "vmlet-conformance-"));
  console.log(`logs: ${reportDir}`);
  const specs = await chosen(reportDir);
  const suite = await readReport(join(reportDir, SUITE_FILE));
  const host = { ...(await setUp()), ...engineFacts(engine) };
  const abort = new AbortController();
  process.once("SIGINT", () => abort.abort());
  await using environment = await startMachines();
  console.log(`control plane, backend and agents log to ${environment.cluster.sandbox.dir}`);
  using ssh = options["node-ssh"] ? await startNodeSsh(environment.cluster.sandbox, environment.agents) : undefined;
  const repositories = join(reportDir, "repositories.yaml");
  await writeFile(repositories, stringify(repositoryList(environment.registry.host)));
  const images = await pushImages(environment.registry, await listImages(repositories), untagged ? untaggedImages : {});
  console.log(`images: ${images.join(", ")}`);

  const wanted = specs.filter((spec) => leftOut(spec, host) === undefined);
  const resultsSoFar = (of: readonly Spec[], reports: readonly GinkgoReport[]) => {
    const told = toldOf(of, reports, { isCut: abort.signal.aborted, nameOf: (each) => specOf(each).name });
    return resultsOf(told, reports, host, kubernetesVersion);
  };
  const writing = new PQueue({ concurrency: 1 });
  const isTold = options.within === undefined || engine !== "oci";
  const reports = await runSpecs(wanted, Number(options.parallel), {
    ...{ environment, host, repositories, reportDir, attempts: options.attempts, ssh },
    signal: abort.signal,
    // A run may take hours: what has ended is kept whatever ends the run.
    ended: async (ofProcess, report) => {
      if (isTold) await writing.add(() => writeTable(resultsSoFar(ofProcess, [report]), suite));
    },
  });

  await environment.saveLogs(reportDir);
  const results = resultsSoFar(specs, reports);
  print(results);
  if (isTold) await writeTable(results, suite);
  return results.some(({ outcome }) => outcome === "failed") ? 1 : 0;
}

async function startMachines() {
  if (engine === "incus") return await startIncusEnvironment();
  const { hosts, "dual-stack": dualStack } = options;
  const environment = await startEnvironment({ engine, networkPolicies, dualStack, hosts });
  if (options["dns-pods"]) await moveDnsIntoPods(environment.cluster, environment.registry);
  if (options.volumes) await startVolumes(environment.cluster, engine, [environment.backend.provider]);
  return environment;
}

async function writeTable(newer: readonly Result[], report: GinkgoReport): Promise<void> {
  const suite = suiteOf(report, { untagged });
  const host = { ...ANY_HOST, ...engineFacts(engine) };
  const all = complete(merge(await lastResults(resultsFile), newer), { ...suite, host });
  await writeFile(
    resultsFile,
    toMarkdown(all, { kubernetes: kubernetesVersion, engine, untagged, others: suite.others }),
  );
}

/** The specs that the options choose. */
async function chosen(dir: string): Promise<Spec[]> {
  const specs = selectSpecs(await suiteReport(join(dir, SUITE_FILE)), options);
  const skip = options.skip === undefined ? undefined : new RegExp(options.skip);
  const passed = async (file: string) => (await lastResults(file)).filter(({ outcome }) => outcome === "passed");
  const done = new Set(options.unpassed ? (await passed(resultsFile)).map(({ name }) => name) : []);
  const within = Number(options.within);
  const quick =
    options.within === undefined
      ? undefined
      : new Set((await passed(knownResults)).filter(({ seconds }) => seconds <= within).map(({ name }) => name));
  const left = specs.filter(
    (spec) => !skip?.test(spec.name) && !done.has(spec.name) && (!quick || (quick.has(spec.name) && !isSerial(spec))),
  );
  if (left.length === 0) throw new Error(`--focus, --skip, --unpassed and --within leave no test`);
  return left;
}

async function lastResults(file: string): Promise<Result[]> {
  return existsSync(file) ? fromMarkdown(await readFile(file, "utf8")) : [];
}
