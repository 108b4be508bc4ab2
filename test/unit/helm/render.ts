/** Renders the chart with the real helm. */
import { cp, mkdtemp, readdir, readFile, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseAllDocuments } from "yaml";
import { helmBinary } from "../../e2e/harness/binaries.ts";
import type { Json } from "../../e2e/harness/client.ts";
import { runCommand, tryCommand, type CommandResult } from "../../e2e/harness/exec.ts";

export const chart = join(import.meta.dirname, "../../../helm/vmlet");
export const release = "burst";
export const namespace = "vmlet-system";

/** The values files that the chart is tested with, by name. */
export async function ciValues(): Promise<[name: string, file: string][]> {
  const files = (await readdir(join(chart, "ci"))).filter((file) => file.endsWith("-values.yaml")).toSorted();
  return files.map((file) => [file.replace("-values.yaml", ""), join(chart, "ci", file)]);
}

export async function valuesFile(values: Json): Promise<string> {
  const file = join(await mkdtemp(join(tmpdir(), "vmlet-values-")), "values.json");
  await writeFile(file, JSON.stringify(values));
  return file;
}

/** One node and what else is wanted: the least that renders. */
export function minimal(more: Json = {}): Json {
  return {
    clusterId: "test",
    image: { repository: "r.example.com/vmlet" },
    nodes: [{ name: "n", provider: { type: "memory" } }],
    ...more,
  };
}

export async function helm(args: readonly string[]): Promise<CommandResult> {
  // No HOME: neither plugins nor repositories of the user can change what is rendered.
  return tryCommand(await helmBinary(), args, { env: { PATH: process.env["PATH"], HOME: tmpdir() } });
}

/** Every object of the chart, or of another version of it. @throws Error with helm's own message when it does not render */
export async function render(
  file: string,
  args: readonly string[] = [],
  from: string = chart,
  name: string = release,
): Promise<Json[]> {
  const { stdout } = await runCommand(
    await helmBinary(),
    ["template", name, from, "--namespace", namespace, "--values", file, ...args],
    {
      env: { PATH: process.env["PATH"], HOME: tmpdir() },
    },
  );
  const documents = parseAllDocuments(stdout);
  // A key that stands twice: kubectl and Helm disagree about which one counts.
  for (const error of "empty" in documents ? [] : documents.flatMap(({ errors }) => errors)) throw error;
  return documents.map((document) => document.toJS()).filter((object) => object !== null);
}

export async function renderValues(values: Json): Promise<Json[]> {
  return render(await valuesFile(values));
}

/** The chart as a later release of it: versions of its own, the same templates. @returns its folder */
export async function laterChart(): Promise<string> {
  const folder = join(await mkdtemp(join(tmpdir(), "vmlet-chart-")), "vmlet");
  await cp(chart, folder, { recursive: true });
  const file = join(folder, "Chart.yaml");
  const text = await readFile(file, "utf8");
  await writeFile(
    file,
    text.replace(/^version: .*$/m, "version: 99.0.0").replace(/^appVersion: .*$/m, 'appVersion: "99"'),
  );
  return folder;
}

/** Why helm refuses these values. @throws Error when it takes them */
export async function refusal(values: Json): Promise<string> {
  const result = await helm([
    "template",
    release,
    chart,
    "--namespace",
    namespace,
    "--values",
    await valuesFile(values),
  ]);
  if (result.code === 0) throw new Error("helm took the values");
  return result.stderr;
}

export const named = (object: Json) => `${object.kind}/${object.metadata.name}`;

export function find(objects: readonly Json[], kind: string, name?: string): Json {
  const found = objects.filter(
    (object) => object.kind === kind && (name === undefined || object.metadata.name === name),
  );
  if (found.length !== 1)
    throw new Error(`${found.length} objects are a ${kind} ${name ?? ""}; there are ${objects.map(named).join(", ")}`);
  return found[0];
}

/** The pod templates of workloads, and pods, with what carries them. */
export function podsOf(objects: readonly Json[]): { owner: Json; metadata: Json; spec: Json }[] {
  return objects.flatMap((owner) => {
    if (owner.kind === "Pod") return [{ owner, metadata: owner.metadata, spec: owner.spec }];
    const template = owner.spec?.template;
    return template?.spec ? [{ owner, metadata: template.metadata ?? {}, spec: template.spec }] : [];
  });
}
