/** What is installed: pinned by its content, without scripts that run on installation, under licences that go with ours, and not more and more. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";

interface Locked {
  version?: string;
  resolved?: string;
  integrity?: string;
  hasInstallScript?: boolean;
  license?: string;
  link?: boolean;
  dev?: boolean;
  devOptional?: boolean;
}

const root = join(import.meta.dirname, "../..");
const lock = JSON.parse(readFileSync(join(root, "package-lock.json"), "utf8")) as { packages: Record<string, Locked> };
const { dependencies } = JSON.parse(readFileSync(join(root, "package.json"), "utf8")) as {
  dependencies: Record<string, string>;
};
const installed = Object.entries(lock.packages).filter(([place]) => place !== "");
const atRunTime = installed.filter(([, entry]) => !entry.dev && !entry.devOptional);
const named = (entries: typeof installed) => entries.map(([place]) => place);

/** Permissive ones, and those without conditions. */
const LICENCES = [
  "MIT",
  "Apache-2.0",
  "ISC",
  "BSD-2-Clause",
  "BSD-3-Clause",
  "(Apache-2.0 AND BSD-3-Clause)",
  "0BSD",
  "Unlicense",
  "PSF-2.0",
  "BlueOak-1.0.0",
];
/** Raised on purpose only, with a reason in the commit. */
const MOST_AT_RUN_TIME = 120;

test("every package is pinned by the hash of its content", () => {
  expect(named(installed.filter(([, { integrity }]) => integrity?.startsWith("sha512-") !== true))).toEqual([]);
});

test("every package comes from a registry: none from an address, a repository or a folder of its own", () => {
  const isRegistry = ({ resolved = "https://", link }: Locked) => resolved.startsWith("https://") && link !== true;
  expect(named(installed.filter(([, entry]) => !isRegistry(entry)))).toEqual([]);
});

test("no package runs a script when it is installed, and none could", () => {
  expect(named(installed.filter(([, { hasInstallScript }]) => hasInstallScript === true))).toEqual([]);
  expect(readFileSync(join(root, ".npmrc"), "utf8")).toMatch(/^ignore-scripts=true$/m);
});

test("what runs is under licences that allow it to be passed on with vmlet", () => {
  const others = atRunTime.filter(([, { license = "none" }]) => !LICENCES.includes(license));
  expect(others.map(([place, { license }]) => `${place}: ${license}`)).toEqual([]);
});

test("what runs is asked for by exact versions, and is not more than it was", () => {
  expect(Object.entries(dependencies).filter(([, version]) => !/^\d+\.\d+\.\d+$/.test(version))).toEqual([]);
  expect(atRunTime.length).toBeLessThanOrEqual(MOST_AT_RUN_TIME);
});
