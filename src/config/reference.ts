/** The fields of a configuration file, read from its schema: as documents, as a table in Markdown, as JSON Schema. */
import { z } from "zod";

/** What is read of a JSON Schema. */
interface SchemaNode {
  const?: unknown;
  default?: unknown;
  description?: string;
  enum?: unknown[];
  type?: string;
  required?: string[];
  properties?: Record<string, SchemaNode>;
  items?: SchemaNode;
  anyOf?: SchemaNode[];
  oneOf?: SchemaNode[];
}

export interface FieldDoc {
  /** `nodes[].kubelet.port`. */
  field: string;
  /** The kinds of object that have it, by their `type`; empty when all have. */
  kinds: readonly string[];
  meaning: string;
  /** Empty when there is none. */
  default: string;
}

/** The fields of the file, each before those below it. */
export function documentFields(schema: z.ZodType): FieldDoc[] {
  return fieldsOf(z.toJSONSchema(schema, { io: "input", unrepresentable: "any" }) as SchemaNode, "", []);
}

function fieldsOf(node: SchemaNode, prefix: string, kinds: readonly string[]): FieldDoc[] {
  return Object.entries(node.properties ?? {}).flatMap(([name, child]) => {
    const field = prefix + name;
    const parts = partsOf(child, field, kinds);
    // An object whose parts say all that there is to say has no row.
    if (parts.length > 0 && child.description === undefined) return parts;
    const isRequired = node.required?.includes(name) === true;
    const fallback = parts.length > 0 || child.default === undefined ? "" : code(JSON.stringify(child.default));
    return [{ field, kinds, meaning: meaningOf(child), default: isRequired ? "required" : fallback }, ...parts];
  });
}

function partsOf(node: SchemaNode, field: string, kinds: readonly string[]): FieldDoc[] {
  if (node.items !== undefined) return partsOf(node.items, `${field}[]`, kinds);
  const variants = (node.oneOf ?? node.anyOf ?? []).filter(({ properties }) => properties !== undefined);
  if (variants.length === 0) return fieldsOf(node, `${field}.`, kinds);
  const rows = variants.flatMap((variant) => {
    const kind = variant.properties?.["type"]?.const;
    return fieldsOf(variant, `${field}.`, typeof kind === "string" ? [kind] : kinds);
  });
  return merged(rows);
}

/** What several kinds have in common stands once; of `type`, whose value tells the kind, one row says it all. */
function merged(rows: readonly FieldDoc[]): FieldDoc[] {
  const byText = new Map<string, FieldDoc>();
  for (const row of rows) {
    const isType = row.field.endsWith(".type") && row.kinds.length > 0;
    const key = isType ? row.field : [row.field, row.meaning, row.default].join("\0");
    const before = byText.get(key);
    const kinds = [...(before?.kinds ?? []), ...row.kinds];
    byText.set(key, { ...row, kinds, ...(isType && { meaning: oneOf(kinds) }) });
  }
  return [...byText.values()].map((row) => (row.field.endsWith(".type") ? { ...row, kinds: [] } : row));
}

function meaningOf(node: SchemaNode): string {
  const values = node.const === undefined ? node.enum : [node.const];
  return [node.description, values && oneOf(values)].filter(Boolean).join(" ");
}

const code = (text: unknown) => `\`${String(text)}\``;
const oneOf = (values: readonly unknown[]) =>
  values.length === 1 ? `${code(values[0])}.` : `One of ${values.map(code).join(", ")}.`;

/**
 * The schema for editors and other tools that know JSON Schema. What it cannot say (`refine`) is checked by the program
 * alone.
 */
export function jsonSchemaOf(schema: z.ZodType, title: string): object {
  return { title, ...z.toJSONSchema(schema, { io: "input", target: "draft-7", unrepresentable: "any" }) };
}

export function fieldsTable(docs: readonly FieldDoc[]): string {
  const cell = (text: string) => text.replaceAll("|", "\\|").replaceAll("<", "&lt;");
  const rows = docs.map(({ field, kinds, meaning, default: fallback }) => {
    const only = kinds.length === 0 ? "" : `(${kinds.join(", ")}) `;
    return `| ${code(field)} | ${cell(only + meaning)} | ${cell(fallback)} |`;
  });
  return ["| Field | Meaning | Default |", "|---|---|---|", ...rows].join("\n");
}
