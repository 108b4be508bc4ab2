import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { parse } from "yaml";
import { z } from "zod";
import { documentValues, generated } from "../../../helm/generate.ts";
import { documentFields, fieldsTable } from "../../../src/config/reference.ts";
import { valuesJsonSchema } from "../../../helm/values.ts";
import { backendConfigSchema } from "../../../providers/local/config.ts";
import { ENVIRONMENT } from "../../../src/config/load.ts";
import { agentConfigSchema } from "../../../src/config/schema.ts";
import type { Json } from "../../e2e/harness/client.ts";
import { chart, ciValues, helm, minimal, refusal } from "./render.ts";

const values = parse(await readFile(join(chart, "values.yaml"), "utf8"));
const schema = valuesJsonSchema() as Json;
const generatedFiles = [...(await generated())];
const ci = await ciValues();

describe("what is generated from the values", () => {
  test.each(generatedFiles)("%s is up to date", async (file, content) => {
    expect(await readFile(file, "utf8"), "npm run helm:generate").toBe(content);
  });
});

describe("schema and values.yaml", () => {
  test("have the same keys", () => {
    expect(paths(schema)).toEqual(valuePaths(values, schema));
  });

  test("refuse unknown keys at every level that the chart defines", () => {
    expect(openObjects(schema)).toEqual([]);
  });
});

describe("the README's table", () => {
  test("refuses a value without a description", () => {
    expect(() => documentValues("# -- One.\na: 1\nb:\n  c: 2\n")).toThrow("b.c");
  });

  test("has a comment's lines in one", () => {
    expect(documentValues("# -- One\n# line.\na: { b: 1 }\n")).toEqual([
      { key: "a", default: "{ b: 1 }", description: "One line." },
    ]);
  });
});

describe("the reference of the configuration files", () => {
  test.each([
    ["agent", agentConfigSchema],
    ["backend", backendConfigSchema],
  ])("says of every field of the %s's what it means", (_, configSchema) => {
    const fields = documentFields(configSchema);
    expect(fields.filter(({ meaning }) => !/[A-Za-z].*\./.test(meaning)).map(({ field }) => field)).toEqual([]);
  });

  test("names the variables that go over the file", async () => {
    const text = await readFile(join(chart, "../../CONFIGURATION.md"), "utf8");
    expect([...text.matchAll(/^\| `(VMLET_\w+)`/gm)].map(([, name]) => name!)).toEqual(Object.keys(ENVIRONMENT));
  });

  test("tells fields of one kind of object with the kinds, those of several once", () => {
    const b = z.int().describe("Bees.");
    const kinds = [
      z.strictObject({ type: z.literal("x"), b }),
      z.strictObject({ type: z.literal("y"), b, c: z.string().default("d|e").describe("Cs.") }),
    ] as const;
    const described = documentFields(z.strictObject({ list: z.array(z.discriminatedUnion("type", kinds)).optional() }));
    expect(fieldsTable(described).split("\n").slice(2)).toEqual([
      "| `list[].type` | One of `x`, `y`. | required |",
      "| `list[].b` | (x, y) Bees. | required |",
      '| `list[].c` | (y) Cs. | `"d\\|e"` |',
    ]);
  });
});

describe("helm refuses, naming the key,", () => {
  test.each<[string, Json, string]>([
    ["an unknown key", { replicaCount: 3 }, "replicaCount"],
    ["an unknown key of a node", { nodes: [{ name: "n", provider: { type: "memory" }, capacty: {} }] }, "capacty"],
    [
      "a node name that Kubernetes would refuse",
      { nodes: [{ name: "Burst_0", provider: { type: "memory" } }] },
      "/nodes/0/name",
    ],
    [
      "a backend address of another scheme",
      { nodes: [{ name: "n", provider: { type: "http-vm", url: "ftp://x" } }] },
      "/nodes/0/provider",
    ],
    [
      "a backend address that shows secrets to the network",
      { nodes: [{ name: "n", provider: { type: "http-vm", url: "http://vms.example.com" } }] },
      "/nodes/0/provider",
    ],
    [
      "a capacity that is no quantity",
      { nodes: [{ name: "n", provider: { type: "memory" }, capacity: { cpu: "four" } }] },
      "/nodes/0/capacity/cpu",
    ],
    ["a duration that is none", { leaderElection: { leaseDuration: "soon" } }, "/leaderElection/leaseDuration"],
    ["an unknown identity", { identity: { mode: "cluster-admin" } }, "/identity/mode"],
    ["a digest that is none", { image: { digest: "latest" } }, "/image/digest"],
    ["root", { podSecurityContext: { runAsUser: 0 } }, "/podSecurityContext/runAsUser"],
    ["a secret's content", { backend: { token: "hunter2" } }, "token"],
    ["a secret's name that is none", { existingSecrets: ["../etc"] }, "/existingSecrets/0"],
    ["a text where a list belongs", { existingSecrets: "vm-api" }, "/existingSecrets"],
    ["a log level that there is none of", { logLevel: "loud" }, "/logLevel"],
  ])("%s", async (_, wrong, key) => {
    expect(await refusal(minimal(wrong))).toContain(key);
  });
});

test("helm says what is wrong with a provider of the type that was named, and nothing of the other types", async () => {
  const providerOf = (provider: Json) => refusal(minimal({ nodes: [{ name: "n", provider }] }));
  const misspelled = await providerOf({ type: "http-vm", ulr: "https://vms.example.com" });
  expect(misspelled).toContain("missing property 'url'");
  expect(misspelled).toContain("additional properties 'ulr' not allowed");
  expect(misspelled).not.toMatch(/memory|module/);
  expect(await providerOf({ type: "htp-vm" })).toContain("value must be one of 'http-vm', 'memory', 'module'");
  expect(await providerOf({ url: "https://vms.example.com" })).toContain("missing property 'type'");
});

describe("helm refuses, naming the cure,", () => {
  test.each<[string, Json, string]>([
    ["a cluster that is not told apart", { clusterId: "" }, "clusterId is required where Helm cannot ask the cluster"],
    ["no node", { nodes: [] }, "nodes: name at least one virtual node"],
    ["no image, of which none is published", { image: {} }, "image.repository: is required, because no image of vmlet"],
    [
      "a backend without an image",
      { backend: { enabled: true, existingSecret: "s" } },
      "backend.image.repository: is required, because no image of vmlet",
    ],
    ["a node without a provider", { nodes: [{ name: "n" }] }, "nodes[0].provider is required"],
    ["two nodes of one port", { nodes: twoNodes(10250, 10250) }, "nodes[1].kubelet.port: 10250 is taken by nodes[0]"],
    [
      "a node on the health port",
      { nodes: twoNodes(10248, 10249) },
      "nodes[0].kubelet.port: 10248 is taken by health.port",
    ],
    [
      "a node on the port for probes",
      { nodes: twoNodes(10250, 10247) },
      "nodes[1].kubelet.port: 10247 is taken by health.probePort",
    ],
    ["a port that is not known in advance", { nodes: twoNodes(0, 10250) }, "nodes[0].kubelet.port: 0"],
    ["replicas without an election", { leaderElection: { enabled: false } }, "leaderElection.enabled: must be true"],
    ["a backend without a token", { backend: { enabled: true } }, "backend.existingSecret: is required"],
    ["no ServiceAccount at all", { serviceAccount: { create: false } }, "serviceAccount.name is required"],
    [
      "addresses for some of the nodes",
      { nodes: [{ ...twoNodes(1, 2)[0], addresses: ["10.0.0.1"] }, twoNodes(1, 2)[1]] },
      "nodes[].addresses: give them for all nodes or for none",
    ],
  ])("%s", async (_, wrong, message) => {
    expect(await refusal(minimal(wrong))).toContain(message);
  });
});

describe("helm lint --strict", () => {
  test.each([
    ["without values, as editors and CI run it first", []],
    ["what only lacks the cluster's ID, which an installation looks up", ["--set=clusterId="]],
    ["a node without a provider", ["--set=nodes[0].name=n"]],
  ])("accepts the chart %s", async (_, args) => {
    const { code, stdout } = await helm(["lint", "--strict", chart, ...args]);
    expect(code, stdout).toBe(0);
  });

  test.each(ci)("accepts %s", async (_, file) => {
    const { code, stdout } = await helm(["lint", "--strict", chart, "--values", file]);
    expect(code, stdout).toBe(0);
  });
});

function twoNodes(first: number, second: number): Json[] {
  return [first, second].map((port, index) => ({ name: `n${index}`, provider: { type: "memory" }, kubelet: { port } }));
}

/** Keys that helm itself adds, or that hold what users bring along. */
const ownByUser = ["global", "nodes"];

/** Dotted paths of the schema's properties. */
function paths(node: Json, prefix = ""): string[] {
  return Object.entries<Json>(node.properties ?? {})
    .filter(([key]) => !ownByUser.includes(prefix + key))
    .flatMap(([key, child]) => (child.properties ? paths(child, `${prefix}${key}.`) : [prefix + key]))
    .toSorted();
}

/** Dotted paths of the values, as deep as the schema names keys; what the schema has and an object of values lacks is optional. */
function valuePaths(value: Json, node: Json, prefix = ""): string[] {
  const keys = new Set([
    ...Object.keys(value ?? {}),
    ...(prefix.endsWith("resources.") ? Object.keys(node.properties) : []),
  ]);
  return [...keys]
    .filter((key) => !ownByUser.includes(prefix + key))
    .flatMap((key) => {
      const child = node.properties?.[key];
      return child?.properties ? valuePaths(value[key], child, `${prefix}${key}.`) : [prefix + key];
    })
    .toSorted();
}

/** Paths of objects with named properties that take others besides. What is judged by its kind takes what its kind takes. */
function openObjects(node: Json, path = ""): string[] {
  if (node === null || typeof node !== "object") return [];
  const kinds = (node.allOf ?? []).filter((each: Json) => each.if !== undefined);
  const isClosed = node.additionalProperties === false || kinds.length > 0;
  const own = node.properties !== undefined && !isClosed ? [path || "/"] : [];
  const below = Object.entries(node).filter(([key]) => key !== "if");
  return [...own, ...below.flatMap(([key, child]) => openObjects(child, `${path}/${key}`))];
}
