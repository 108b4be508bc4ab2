/** What GitHub runs of us: commands that there are, no more rights than a job needs, nothing published untested. */
import { existsSync, readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { parse } from "yaml";

interface Step {
  uses?: string;
  run?: string;
}

interface Job {
  needs?: string[];
  uses?: string;
  environment?: string;
  permissions?: Record<string, string>;
  "timeout-minutes"?: number;
  steps?: Step[];
}

interface Workflow {
  permissions: Record<string, string>;
  jobs: Record<string, Job>;
}

const root = join(import.meta.dirname, "../..");
const folder = join(root, ".github/workflows");
const files = readdirSync(folder).toSorted();
const read = (file: string) => readFileSync(join(folder, file), "utf8");
const { scripts } = JSON.parse(readFileSync(join(root, "package.json"), "utf8")) as { scripts: Record<string, string> };

test("there are one for changes, one for releases and one for the site", () => {
  expect(files).toEqual(["ci.yaml", "release.yaml", "site.yaml"]);
});

test("the site is built without a right to publish, and published without the repository's code", () => {
  const { build, publish } = (parse(read("site.yaml")) as Workflow).jobs;
  expect(build!.permissions).toBe(undefined);
  expect(build!.steps!.map(({ run }) => run)).toContain('npm run docs:site -- "$PWD/site"');
  expect(publish!.permissions).toEqual({ pages: "write", "id-token": "write" });
  expect(publish!.environment).toBe("github-pages");
  expect(publish!.steps!.map(({ uses }) => uses)).toEqual(["actions/deploy-pages@v4"]);
});

test.each(files)("every command of npm in %s is one that the package has", (file) => {
  const wanted = [...read(file).matchAll(/npm run (?:-s )?([\w:]+)/g)].map(([, script = ""]) => script);
  expect(wanted.filter((script) => !(script in scripts))).toEqual([]);
});

test.each(files)("every file of the repository that %s names is there", (file) => {
  const named = read(file).match(/(?<=\s|\.\/)(?:\.ci|\.github|helm|test)\/[\w./-]+\w/g) ?? [];
  expect(named.length).toBeGreaterThan(0);
  expect(named.filter((path) => !existsSync(join(root, path)))).toEqual([]);
});

test.each(files)("%s may read alone, where a job does not say more, and every job has an end", (file) => {
  const { permissions, jobs } = parse(read(file)) as Workflow;
  expect(permissions).toEqual({ contents: "read" });
  const endless = Object.values(jobs).filter((job) => job.uses === undefined && job["timeout-minutes"] === undefined);
  expect(endless).toEqual([]);
});

test.each(files)("actions of %s are GitHub's or Docker's, of a fixed major version", (file) => {
  const { jobs } = parse(read(file)) as Workflow;
  const used = Object.values(jobs).flatMap(({ steps = [] }) => steps.flatMap(({ uses }) => uses ?? []));
  expect(used.filter((action) => !/^(?:actions|docker)\/[\w-]+@v\d+$/.test(action))).toEqual([]);
});

test("what may write to a registry or to the repository waits for all tests, and for the environment's approval", () => {
  const { jobs } = parse(read("release.yaml")) as Workflow;
  const waitsForTests = (name: string): boolean =>
    name === "test" || (jobs[name]?.needs ?? []).some((needed) => waitsForTests(needed));
  const publishing = Object.entries(jobs).filter(
    ([name, { permissions = {} }]) =>
      name === "npm" || permissions["packages"] === "write" || permissions["contents"] === "write",
  );
  expect(publishing.map(([name]) => name)).toEqual(["npm", "images", "chart", "page"]);
  for (const [name, { environment }] of publishing) {
    expect(waitsForTests(name), name).toBe(true);
    expect(environment, name).toBe("release");
  }
});

test("a release has the package, the chart, the bill of materials, krew's manifest and install.yaml", () => {
  const text = read("release.yaml");
  for (const command of ["npm run package", "helm package helm/vmlet", "npm run sbom", "npm run krew"])
    expect(text).toContain(command);
  expect(text).toContain("cp helm/install.yaml helm/install-csi.yaml");
  expect(text).toContain("npm publish --provenance");
});
