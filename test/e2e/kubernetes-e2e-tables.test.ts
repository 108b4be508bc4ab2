/** The tables of results name what the suite has, of the release that is pinned: each spec, and none that is gone. */
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { differences, fromMarkdown } from "../conformance/kubernetes/report.ts";
import { suiteOf, type Spec } from "../conformance/kubernetes/specs.ts";
import { storageSpecs } from "../conformance/kubernetes/storage-specs.ts";
import { STORAGE_ENGINES, type StorageEngine, storageSuite } from "../conformance/kubernetes/suite-reports.ts";
import { kubernetesVersion } from "./harness/build.ts";

let dir: string;
let tagged: readonly Spec[];
let untagged: readonly Spec[];
const storage: Partial<Record<StorageEngine, readonly Spec[]>> = {};

// One list has it all: with a driver's file the suite has the driver's specs besides its own.
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), "vmlet-tables-"));
  for (const engine of STORAGE_ENGINES) {
    const { report } = await storageSuite(dir, engine);
    tagged = suiteOf(report).specs;
    untagged = suiteOf(report, { untagged: true }).specs;
    storage[engine] = storageSpecs(report);
  }
}, 2_400_000);
afterAll(() => rm(dir, { recursive: true, force: true }));

const table = (name: string) => readFile(join(import.meta.dirname, "../conformance", name), "utf8");

test.each([
  ["RESULTS.md", () => tagged],
  ["RESULTS-cri.md", () => tagged],
  ["RESULTS-vm.md", () => tagged],
  ["RESULTS-incus.md", () => tagged],
  ["RESULTS-untagged.md", () => untagged],
  ["RESULTS-storage.md", () => storage.cri!],
  ["RESULTS-storage-vm.md", () => storage.vm!],
  ["RESULTS-storage-incus.md", () => storage.incus!],
] as const)("%s names each spec of the suite, and no other", async (name, specsOf) => {
  const specs = specsOf();
  expect(specs.length).toBeGreaterThan(50);
  expect(differences(fromMarkdown(await table(name)), specs)).toEqual({ unnamed: [], gone: [] });
});

test.each([
  ...["RESULTS.md", "RESULTS-cri.md", "RESULTS-vm.md", "RESULTS-incus.md", "RESULTS-untagged.md"],
  ...["RESULTS-storage.md", "RESULTS-storage-vm.md", "RESULTS-storage-incus.md"],
])("%s says of which release the list is", async (name) =>
  expect(await table(name)).toContain(`suite of Kubernetes ${kubernetesVersion}`),
);
