/** openapi.yaml as a page to read: the rules, each call, each object. */
import { parse } from "yaml";
import { table } from "./markdown.ts";

interface Schema {
  $ref?: string;
  type?: string | string[];
  description?: string;
  properties?: Record<string, Schema>;
  required?: string[];
  items?: Schema;
  enum?: unknown[];
  additionalProperties?: Schema | boolean;
  oneOf?: Schema[];
  anyOf?: Schema[];
  allOf?: Schema[];
  minimum?: number;
  maximum?: number;
  maxItems?: number;
  maxLength?: number;
}

interface Parameter {
  $ref?: string;
  name: string;
  in: string;
  required?: boolean;
  description?: string;
  schema?: Schema;
}

interface Operation {
  summary: string;
  description?: string;
  tags?: string[];
  "x-capability"?: string;
  parameters?: Parameter[];
  requestBody?: { content: Record<string, { schema: Schema }> };
  responses: Record<string, { $ref?: string; description?: string }>;
}

interface OpenApi {
  info: { title: string; version: string; description: string };
  paths: Record<string, Record<string, Operation> & { parameters?: Parameter[] }>;
  components: {
    schemas: Record<string, Schema>;
    parameters: Record<string, Parameter>;
    responses: Record<string, { description?: string }>;
  };
}

const METHODS = ["get", "put", "post", "patch", "delete"];

export function machineApi(yaml: string): string {
  const document = parse(yaml) as OpenApi;
  const { info, paths, components } = document;
  const calls = Object.entries(paths).flatMap(([path, item]) =>
    METHODS.filter((method) => item[method] !== undefined).map((method) =>
      callPart({ document, path, method, operation: item[method]!, shared: item.parameters ?? [] }),
    ),
  );
  const objects = Object.entries(components.schemas).map(([name, schema]) => objectPart(name, schema));
  return [
    `# ${info.title} ${info.version}`,
    "Written from [openapi.yaml](src/provider/contract/openapi.yaml), which binds.",
    info.description,
    "## Calls",
    ...calls,
    "## Objects",
    ...objects,
  ].join("\n\n");
}

interface Call {
  document: OpenApi;
  path: string;
  method: string;
  operation: Operation;
  shared: readonly Parameter[];
}

function callPart({ document, path, method, operation, shared }: Call): string {
  const { summary, description = "", tags = [], parameters = [], requestBody, responses } = operation;
  const { components } = document;
  const taken = [...shared, ...parameters]
    .map((parameter) => (parameter.$ref === undefined ? parameter : components.parameters[last(parameter.$ref)]!))
    .map(({ name, in: place, required = false, description: text = "", schema = {} }) => [
      `\`${name}\``,
      `${place}${required ? ", required" : ""}`,
      typeOf(schema),
      text,
    ]);
  const bodies = Object.values(requestBody?.content ?? {}).map(({ schema }) => typeOf(schema));
  const replies = Object.entries(responses).map(([status, { $ref, description: text }]) => [
    status,
    text ?? components.responses[last($ref ?? "")]?.description ?? "",
  ]);
  const capability = operation["x-capability"];
  return [
    `### ${method.toUpperCase()} ${path}`,
    `**${summary}.** ${capability === undefined ? `Part: ${tags.join(", ")}.` : `Needs: ${capability}.`}`,
    description,
    taken.length > 0 ? table(["Parameter", "In", "Type", "Meaning"], taken) : "",
    bodies.length > 0 ? `Body: ${bodies.join(" or ")}.` : "",
    table(["Reply", "Meaning"], replies),
  ]
    .filter((part) => part !== "")
    .join("\n\n");
}

function objectPart(name: string, schema: Schema): string {
  const { description = "", properties, required = [] } = schema;
  const rows = Object.entries(properties ?? {}).map(([field, part]) => [
    `\`${field}\`${required.includes(field) ? "" : "?"}`,
    typeOf(part),
    part.description ?? "",
  ]);
  const fields = rows.length > 0 ? table(["Field", "Type", "Meaning"], rows) : `Type: ${typeOf(schema)}.`;
  return [`### ${name}`, description, fields].filter((part) => part !== "").join("\n\n");
}

function typeOf(schema: Schema): string {
  const { $ref, type, items, enum: values, additionalProperties, oneOf, anyOf, allOf } = schema;
  if ($ref !== undefined) return `[${last($ref)}](#${last($ref).toLowerCase()})`;
  if (values !== undefined) return values.map((value) => `\`${String(value)}\``).join(", ");
  const choice = oneOf ?? anyOf ?? allOf;
  if (choice !== undefined) return choice.map(typeOf).join(allOf === undefined ? " or " : " and ");
  if (items !== undefined) return `list of ${typeOf(items)}`;
  if (typeof additionalProperties === "object") return `map of ${typeOf(additionalProperties)}`;
  return [type ?? "any"].flat().join(" or ") + bounds(schema);
}

function bounds({ minimum, maximum, maxLength }: Schema): string {
  const said = [
    ...(minimum === undefined ? [] : [`from ${minimum}`]),
    ...(maximum === undefined ? [] : [`to ${maximum}`]),
    ...(maxLength === undefined ? [] : [`at most ${maxLength} characters`]),
  ];
  return said.length === 0 ? "" : `, ${said.join(" ")}`;
}

const last = (reference: string) => reference.split("/").at(-1)!;
