/**
 * Writes what follows from the schemas: the chart's values.schema.json and the table in its README, the tables of
 * CONFIGURATION.md, and of both configuration files the JSON Schemas
 * and the examples. Run: npm run helm:generate
 */
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { isMap, isScalar, parseDocument, stringify, type Node, type Pair } from "yaml";
import { backendConfigSchema } from "../providers/local/config.ts";
import { volumeBackendsSchema } from "../src/config/provider-schema.ts";
import { agentFile, backendFile } from "../src/cli/config.ts";
import { agentConfigSchema } from "../src/config/schema.ts";
import { documentFields, fieldsTable, jsonSchemaOf } from "../src/config/reference.ts";
import { valuesJsonSchema } from "./values.ts";

export const chart = join(import.meta.dirname, "vmlet");

const configuration = join(import.meta.dirname, "../CONFIGURATION.md");

const examples = join(import.meta.dirname, "../examples/config");

const schemas = join(import.meta.dirname, "../schemas");

const jsonText = (value: object): string => `${JSON.stringify(value, null, 2)}\n`;

export interface ValueDoc {
  /** As `--set` takes it: `image.tag`. */
  key: string;
  default: string;
  description: string;
}

/**
 * The values with their comments. A comment that begins with `-- ` describes the key below it, and all that is below
 * that; a mapping without one is described key by key.
 *
 * @throws Error that names a key which no comment describes
 */
export function documentValues(yaml: string): ValueDoc[] {
  const document = parseDocument(yaml);
  const docs: ValueDoc[] = [];
  const visit = (pairs: Pair[], prefix: string, above: string | null | undefined) => {
    pairs.forEach((pair, index) => {
      const key = pair.key as Node;
      const path = prefix + String(isScalar(key) ? key.value : key);
      // The parser gives the comment above a mapping's first key to the mapping.
      const comment = key.commentBefore ?? (index === 0 ? above : undefined);
      const description = describe(comment);
      if (description !== undefined) {
        const value = (pair.value as Node).toJS(document) as unknown;
        docs.push({
          key: path,
          default: stringify(value, { collectionStyle: "flow", lineWidth: 0 }).trim(),
          description,
        });
      } else if (isMap(pair.value)) {
        visit(pair.value.items, `${path}.`, pair.value.commentBefore);
      } else {
        throw new Error(`values.yaml: ${path}: no comment that begins with "-- " describes it`);
      }
    });
  };
  if (!isMap(document.contents)) throw new Error("values.yaml: must hold one mapping");
  visit(document.contents.items, "", document.commentBefore ?? document.contents.commentBefore);
  return docs;
}

/** The last block of a comment that begins with `-- `, in one line. */
function describe(comment: string | null | undefined): string | undefined {
  const start = comment?.lastIndexOf("-- ") ?? -1;
  if (start === -1) return undefined;
  return comment!
    .slice(start + 3)
    .split("\n")
    .map((line) => line.trim())
    .join(" ");
}

export function valuesTable(docs: readonly ValueDoc[]): string {
  const cell = (text: string) => text.replaceAll("|", "\\|");
  const rows = docs.map((doc) => `| \`${doc.key}\` | ${cell(doc.description)} | \`${cell(doc.default)}\` |`);
  return ["| Value | Meaning | Default |", "|---|---|---|", ...rows].join("\n");
}

/** Each generated file, by path, with what it should hold. @throws Error when a text has lost its marks */
export async function generated(): Promise<Map<string, string>> {
  const readme = join(chart, "README.md");
  const values = valuesTable(documentValues(await readFile(join(chart, "values.yaml"), "utf8")));
  const agent = fieldsTable(documentFields(agentConfigSchema));
  const backend = fieldsTable(documentFields(backendConfigSchema));
  const csi = fieldsTable(documentFields(volumeBackendsSchema));
  return new Map([
    [join(chart, "values.schema.json"), jsonText(valuesJsonSchema())],
    [join(schemas, "agent.schema.json"), jsonText(jsonSchemaOf(agentConfigSchema, "vmlet AgentConfig"))],
    [join(schemas, "backend.schema.json"), jsonText(jsonSchemaOf(backendConfigSchema, "vmlet BackendConfig"))],
    [join(examples, "vmlet.yaml"), agentFile("../../schemas/agent.schema.json")],
    [join(examples, "backend.yaml"), backendFile("../../schemas/backend.schema.json")],
    [readme, await withTables(readme, { values })],
    [configuration, await withTables(configuration, { agent, backend, csi })],
  ]);
}

/** The file's text with each table between its marks. */
async function withTables(file: string, tables: Record<string, string>): Promise<string> {
  let text = await readFile(file, "utf8");
  for (const [name, table] of Object.entries(tables)) {
    const begin = `<!-- ${name}:begin (npm run helm:generate) -->`;
    const end = `<!-- ${name}:end -->`;
    const [from, to] = [text.indexOf(begin), text.indexOf(end)];
    if (from === -1 || to < from) throw new Error(`${file}: must hold the lines ${begin} and ${end}`);
    text = `${text.slice(0, from)}${begin}\n${table}\n${text.slice(to)}`;
  }
  return text;
}

if (process.argv[1] === import.meta.filename) {
  for (const [file, content] of await generated()) await writeFile(file, content);
}
