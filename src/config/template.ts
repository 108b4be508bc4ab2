/** A configuration file to begin with: what has to be said, and all else as comments with its default. */
import { stringify } from "yaml";
import { z } from "zod";

interface SchemaNode {
  const?: unknown;
  default?: unknown;
  description?: string;
  enum?: unknown[];
  properties?: Record<string, SchemaNode>;
  items?: SchemaNode;
  anyOf?: SchemaNode[];
  oneOf?: SchemaNode[];
}

type Values = Readonly<Record<string, unknown>>;

const WIDTH = 110;

/**
 * @param values what the file says; where it has one of several kinds of object, that kind's fields are shown
 * @returns YAML in which removing the `#` before a field sets it to its default
 */
export function templateOf(schema: z.ZodType, values: Values): string {
  const node = z.toJSONSchema(schema, { io: "input", unrepresentable: "any" }) as SchemaNode;
  return `${fieldLines(node, values, "", "").join("\n")}\n`;
}

/** @param mark `#` in a mapping that is a comment */
function fieldLines(node: SchemaNode, values: Values | undefined, pad: string, mark: string): string[] {
  return Object.entries(node.properties ?? {}).flatMap(([name, child]) => {
    const value = values?.[name];
    const own = value === undefined ? "#" : mark;
    const head = `${pad}${own}${name}:`;
    const about = aboutLines(child, pad);
    if (Array.isArray(value)) return [...about, head, ...value.flatMap((item) => itemLines(child.items!, item, pad))];
    const mapping = mappingOf(child, value);
    if (mapping?.properties !== undefined)
      return [...about, head, ...fieldLines(mapping, value as Values | undefined, `${pad}  `, own)];
    const shown = value ?? child.default;
    return [
      ...about,
      shown === undefined ? head : `${head} ${stringify(shown, { collectionStyle: "flow", lineWidth: 0 }).trim()}`,
    ];
  });
}

function itemLines(node: SchemaNode, item: unknown, pad: string): string[] {
  const lines = fieldLines(node, item as Values, `${pad}    `, "");
  // The dash belongs to the first field that is no comment.
  const first = lines.findIndex((line) => !line.trimStart().startsWith("#"));
  return lines.map((line, index) => (index === first ? `${pad}  - ${line.trimStart()}` : line));
}

/** The kind of object that the value is of; without a value, the mapping if it is one. */
function mappingOf(node: SchemaNode, value: unknown): SchemaNode | undefined {
  const kinds = node.oneOf ?? node.anyOf;
  if (kinds === undefined) return node.properties === undefined ? undefined : node;
  if (typeof value !== "object" || value === null) return undefined;
  const { type } = value as { type?: unknown };
  return kinds.find(({ properties = {} }) =>
    type === undefined ? Object.keys(value).every((key) => key in properties) : properties["type"]?.const === type,
  );
}

function aboutLines({ description = "", enum: values }: SchemaNode, pad: string): string[] {
  const text = [description, ...(values === undefined ? [] : [`One of ${values.join(", ")}.`])].join(" ").trim();
  const lines: string[] = [];
  for (const word of text.split(" ")) {
    const last = lines.at(-1);
    if (last === undefined || pad.length + last.length + word.length > WIDTH) lines.push(word);
    else lines[lines.length - 1] = `${last} ${word}`;
  }
  return text === "" ? [] : lines.map((line) => `${pad}# ${line}`);
}
