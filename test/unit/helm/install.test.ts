/** install.yaml, for those who install without Helm: the chart's objects, of which nothing runs before it is filled in. */
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { parseAllDocuments } from "yaml";
import { csiFile, csiYaml, installFile, installYaml } from "../../../helm/install.ts";
import { parseConfig } from "../../../src/config/load.ts";
import type { Json } from "../../e2e/harness/client.ts";
import { chart, find, named, render } from "./render.ts";

const text = await readFile(installFile, "utf8");
/** As kubectl reads it. */
const objectsOf = (yaml: string): Json[] =>
  [...parseAllDocuments(yaml, { version: "1.1" })].map((document) => document.toJS());

const OWN = {
  "<CLUSTER-ID>": "0e62d0f9-62a2-44a2-9a0e-1f1e7dd0c7b0",
  "<IMAGE>": "registry.example.com/me/vmlet",
  "<BACKEND>": "vms.example.com",
};

/** The text with what is each installation's own, but for what was forgotten. */
function filledIn(forgotten?: keyof typeof OWN): string {
  return Object.entries(OWN).reduce(
    (yaml, [mark, own]) => (mark === forgotten ? yaml : yaml.replaceAll(mark, own)),
    text,
  );
}

function configOf(yaml: string) {
  return parseConfig(find(objectsOf(yaml), "ConfigMap").data["vmlet.yaml"], "vmlet.yaml");
}

test("is up to date", async () => {
  expect(text, "npm run helm:generate").toBe(await installYaml());
});

describe("install-csi.yaml", async () => {
  const csi = await readFile(csiFile, "utf8");

  test("is up to date", async () => {
    expect(csi, "npm run helm:generate").toBe(await csiYaml());
  });

  test("has the same marks, and nothing of install.yaml", () => {
    const marks = (yaml: string) => new Set(yaml.match(/<[A-Z-]+>/g));
    expect(marks(csi)).toEqual(marks(text));
    const other = objectsOf(text).map(named);
    expect(objectsOf(csi).map(named)).toEqual(
      expect.arrayContaining(["CSIDriver/volumes.vmlet.dev", "StorageClass/vmlet"]),
    );
    expect(
      objectsOf(csi)
        .map(named)
        .filter((name) => other.includes(name)),
    ).toEqual([]);
    expect(csi).not.toMatch(/helm\.sh|managed-by: Helm/);
  });
});

describe("not filled in", () => {
  test.each([
    ["<CLUSTER-ID>", "clusterId"],
    ["<BACKEND>", "provider.url"],
  ] as const)("with %s, the agent refuses it, naming %s", (mark, field) => {
    expect(() => configOf(filledIn(mark))).toThrow(field);
  });

  test("its image is none that a registry could have", () => {
    expect(find(objectsOf(text), "Deployment").spec.template.spec.containers[0].image).toMatch(/^<IMAGE>:/);
  });
});

test("filled in, the agent takes it", () => {
  expect(configOf(filledIn()).nodes.map(({ name }) => name)).toEqual(["burst-0"]);
});

test("has what the chart has but for its hooks and Helm's own marks, and the namespace", async () => {
  const rendered = await render(
    join(chart, "../install-values.yaml"),
    ["--namespace", "vmlet", "--no-hooks"],
    chart,
    "vmlet",
  );
  const [namespace, ...objects] = objectsOf(text);
  expect([named(namespace), ...objects.map(named)]).toEqual(["Namespace/vmlet", ...rendered.map(named)]);
  for (const [index, object] of objects.entries()) {
    const { data, rules, subjects } = rendered[index]!;
    expect({ data: object.data, rules: object.rules, subjects: object.subjects }).toEqual({ data, rules, subjects });
  }
  expect(text).not.toMatch(/helm\.sh|managed-by: Helm|checksum/);
});

test("keeps the mode of the files that hold tokens", () => {
  const { volumes } = find(objectsOf(text), "Deployment").spec.template.spec;
  const modes = volumes.flatMap(({ projected, secret }: Json) => (projected ?? secret)?.defaultMode ?? []);
  expect(modes).toEqual([0o440, 0o440]);
});
