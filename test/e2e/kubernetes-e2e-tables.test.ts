/** The tables of results name what the suite has, of the release that is pinned: each spec, and none that is gone. */
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { differences, fromMarkdown } from "../conformance/kubernetes/report.ts";
import { suiteOf, type Spec } from "../conformance/kubernetes/specs.ts";
import { storageSpecs } from "../conformance/kubernetes/storage-specs.ts";
import { storageSuite } from "../conformance/kubernetes/suite-reports.ts";
import { kubernetesVersion } from "./harness/build.ts";

let dir: string;
let tagged: readonly Spec[];
let storage: readonly Spec[];

// One list has it all: with a driver's file the suite has the driver's specs besides its own.
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), "vmlet-tables-"));
  const { report } = await storageSuite(dir);
  tagged = suiteOf(report).tagged;
  storage = storageSpecs(report);
}, 2_400_000);
afterAll(() => rm(dir, { recursive: true, force: true }));

const table = (name: string) => readFile(join(import.meta.dirname, "../conformance", name), "utf8");

test.each([
  ["RESULTS.md", "conformance"],
  ["RESULTS-cri.md", "conformance"],
  ["RESULTS-vm.md", "conformance"],
  ["RESULTS-storage.md", "storage"],
])("%s names each spec of the suite for %s, and no other", async (name, kind) => {
  const specs = kind === "storage" ? storage : tagged;
  expect(specs.length).toBeGreaterThan(100);
  expect(differences(fromMarkdown(await table(name)), specs)).toEqual({ unnamed: [], gone: [] });
});

test.each(["RESULTS.md", "RESULTS-cri.md", "RESULTS-vm.md", "RESULTS-storage.md"])(
  "%s says of which release the list is",
  async (name) => expect(await table(name)).toContain(`suite of Kubernetes ${kubernetesVersion}`),
);
