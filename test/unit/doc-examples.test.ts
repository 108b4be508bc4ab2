/**
 * Every example of the documents: YAML is read as what it is for would read it, and of commands it is told which test
 * runs them, or why none can.
 */
import { existsSync, globSync, readFileSync } from "node:fs";
import { basename, join } from "node:path";
import { Ajv } from "ajv";
import { describe, expect, test } from "vitest";
import { parse, parseAllDocuments } from "yaml";
import { backendConfigSchema } from "../../providers/local/config.ts";
import { parseConfig } from "../../src/config/load.ts";
import type { Json } from "../../src/devcluster/objects/object.ts";
import { decode } from "../../src/devcluster/objects/schema.ts";

const root = join(import.meta.dirname, "../..");
const read = (path: string) => readFileSync(join(root, path), "utf8");

interface Example {
  file: string;
  language: string;
  text: string;
}

const FENCE = "```";

/** Of a document, its fenced blocks in order. @throws Error where one is not closed */
function examplesIn(file: string): Example[] {
  const found: Example[] = [];
  let open: { language: string; lines: string[] } | undefined;
  for (const line of read(file).split("\n")) {
    const text = line.trimStart();
    if (text.startsWith(FENCE) && open === undefined) open = { language: text.slice(FENCE.length).trim(), lines: [] };
    else if (text.startsWith(FENCE)) {
      found.push({ file, language: open!.language, text: open!.lines.join("\n") });
      open = undefined;
    } else open?.lines.push(line);
  }
  if (open !== undefined) throw new Error(`${file}: a block is not closed`);
  return found;
}

/** Of folders that are made, nothing. */
const MADE = ["node_modules", "dist", ".pages", ".cache", ".vmlet", "coverage"];
const documents = globSync("**/*.md", { cwd: root, exclude: (path) => MADE.includes(basename(path)) });
const examples = documents.flatMap((file) => examplesIn(file));
const of = (language: string) => examples.filter((each) => each.language === language);

/** Commands by their document and first line: the test that runs them as they stand or by their parts, or a reason. */
const COMMANDS: Readonly<Record<string, { run: string } | { not: string }>> = {
  "CONTRIBUTING.md npm ci && npm test": { run: ".ci/run" },
  "README.md npm ci && npm start": { run: "test/e2e/newcomer.ts" },
  "README.md npm start -- --engine memory": { run: "test/integration/cli/dev-simulated.test.ts" },
  "README.md npm ci && npm test": { run: ".ci/run" },
  "README.md npm run -s vmlet -- check": { run: "test/integration/cli/exit-status.test.ts" },
  "README.md kubectl create namespace vmlet": { run: "test/e2e/helm-in-cluster.ts" },
  "README.md kubectl vmlet nodes": { run: "test/unit/cli/commands.test.ts" },
  "docs/operate.md ip route add": {
    not: "two hosts and a network between them; test/integration/oci/two-hosts.test.ts has both",
  },
  "docs/quickstarts.md kubectl get nodes": { run: "test/e2e/newcomer.ts" },
  "docs/quickstarts.md kind create cluster": { not: "kind needs a Docker engine" },
  "docs/quickstarts.md k3d cluster create": { not: "k3d needs a Docker engine" },
  "docs/quickstarts.md minikube start": {
    not: "minikube needs a driver: a Docker engine or a hypervisor, and downloads",
  },
  "docs/quickstarts.md npm run -s vmlet -- check": { run: "test/integration/cli/exit-status.test.ts" },
  "examples/backends/README.md npm run -s vmlet -- new backend": { run: "test/unit/cli/new.test.ts" },
  "examples/backends/README.md npm run -s vmlet -- conformance": { run: "test/conformance/sample-backends.test.ts" },
  "helm/vmlet/README.md kubectl create namespace vmlet": { run: "test/e2e/helm-in-cluster.ts" },
  "helm/vmlet/README.md openssl req": { run: "test/e2e/helm-in-cluster.ts" },
  "providers/README.md npm run -s vmlet -- conformance http://localhost:8480\n": {
    run: "test/conformance/sample-backends.test.ts",
  },
  "providers/README.md npm run -s vmlet -- conformance http://localhost:8480 --restart-command": {
    not: "systemctl, with the author's own unit; the flag is tried with the samples' backends",
  },
  "providers/README.md npm run -s vmlet -- conformance http://localhost:8480 --pods": {
    run: "test/integration/cli/pod-conformance.test.ts",
  },
  "providers/README.md npm run -s vmlet -- dev --backend": { run: "test/integration/cli/dev-backend.test.ts" },
  "providers/README.md vmlet csi": { run: "test/e2e/volume-driver.ts" },
  "providers/README.md vmlet images pull": { run: "test/integration/cli/images.test.ts" },
  "providers/README.md incus project create": { run: "test/support/incus.ts" },
  "providers/README.md vmlet cloud image": { run: "test/support/incus.ts" },
  "providers/README.md npm run -s vmlet -- backend check": { run: "test/integration/cli/exit-status.test.ts" },
  "providers/README.md vmlet backend --config": { run: "test/integration/cri/systemd.test.ts" },
};

const entryOf = ({ file, text }: Example) =>
  Object.keys(COMMANDS)
    .filter((key) => `${file} ${text}\n`.startsWith(key))
    .toSorted((a, b) => b.length - a.length)[0];

describe("commands", () => {
  test("each are run by a test, or have a reason why not", () => {
    expect(
      of("sh")
        .filter((each) => entryOf(each) === undefined)
        .map(({ file, text }) => `${file} ${text}`),
    ).toEqual([]);
  });

  test("no reason and no test is of commands that are gone, and each test is there", () => {
    const used = new Set(of("sh").map(entryOf));
    expect(Object.keys(COMMANDS).filter((key) => !used.has(key))).toEqual([]);
    const tests = Object.values(COMMANDS).flatMap((each) => ("run" in each ? [each.run] : []));
    expect(tests.filter((path) => !existsSync(join(root, path)))).toEqual([]);
  });
});

type Parsed = Record<string, unknown>;

const chartValues = new Ajv({ strict: false, formats: { uri: true } }).compile(
  JSON.parse(read("helm/vmlet/values.schema.json")) as object,
);
const agent = { apiVersion: "vmlet.dev/v1", kind: "AgentConfig" };
const node = { name: "burst-0", provider: { type: "http-vm", url: "https://vms.example.com" }, capacity: { cpu: "1" } };
const backend = {
  apiVersion: "vmlet.dev/v1",
  kind: "BackendConfig",
  stateDir: "/var/lib/vmlet",
  listen: { socket: "/run/vmlet/backend.sock" },
};
const chart = parse(read("helm/vmlet/values.yaml")) as Parsed;

/** By what a block is of: who would read it, with what it leaves out; each throws where it is wrong. */
const READERS: readonly [is: (block: Parsed, example: Example) => boolean, read: (block: Parsed) => unknown][] = [
  [({ kind, metadata }) => kind !== "Pod" && metadata !== undefined, readObject],
  [({ kind, spec }) => kind === "Pod" || spec !== undefined, readPod],
  [({ kind }, { file }) => kind === undefined && (file.startsWith("helm/") || file === "README.md"), readValues],
  [({ kind, nodes }) => kind === "AgentConfig" || nodes !== undefined, readAgent],
  [() => true, readBackend],
];

function readPod(block: Parsed): void {
  const containers = [{ name: "main", image: "busybox" }];
  const spec = { containers, ...(block["spec"] as object) };
  const pod = { metadata: { name: "pod" }, ...block, apiVersion: "v1", kind: "Pod", spec };
  expect(decode("V1Pod", "Pod", "v1", pod as Json).unknownFields).toEqual([]);
}

/** What the API server makes of the whole, the test that applies it sees (test/e2e/daemonsets.ts). */
function readObject(block: Parsed): void {
  expect(block).toMatchObject({
    apiVersion: expect.any(String),
    kind: expect.any(String),
    metadata: { name: expect.any(String) },
  });
  const { template } = (block["spec"] ?? {}) as { template?: Parsed };
  if (template !== undefined) readPod({ spec: template["spec"] });
}

function readValues(block: Parsed): void {
  expect(chartValues(merged(chart, block)), JSON.stringify(chartValues.errors)).toBe(true);
}

/** As Helm puts values over the chart's own. */
function merged(base: unknown, over: unknown): unknown {
  const isObject = (value: unknown): value is Parsed =>
    typeof value === "object" && value !== null && !Array.isArray(value);
  if (!isObject(base) || !isObject(over)) return over;
  return {
    ...base,
    ...Object.fromEntries(Object.entries(over).map(([key, value]) => [key, merged(base[key], value)])),
  };
}

function readAgent(block: Parsed): void {
  const nodes = (block["nodes"] as Parsed[] | undefined)?.map((each) => ({ ...node, ...each })) ?? [node];
  parseConfig(JSON.stringify({ ...agent, ...block, nodes }), "vmlet.yaml");
}

function readBackend(block: Parsed): void {
  const { error } = backendConfigSchema.safeParse({ ...backend, ...block });
  expect(error?.issues ?? []).toEqual([]);
}

test.each(of("yaml").map((each) => [each.file, each.text.split("\n")[0], each] as const))(
  "YAML of %s is right: %s",
  (_file, _line, example) => {
    for (const document of parseAllDocuments(example.text)) {
      expect(document.errors).toEqual([]);
      const block = document.toJS() as Parsed | null;
      // A comment for editors.
      if (block === null) continue;
      const [, reader] = READERS.find(([is]) => is(block, example))!;
      reader(block);
    }
  },
);

test("what is no command and no YAML is a drawing, a plot, or the one example in TypeScript", () => {
  const others = examples.filter(({ language }) => !["sh", "yaml", "", "plot"].includes(language));
  expect(others.map(({ file, language }) => `${file}: ${language}`)).toEqual(["providers/README.md: ts"]);
});
