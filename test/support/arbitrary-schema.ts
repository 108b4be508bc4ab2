/** Values that a JSON Schema admits, as fast-check arbitraries: of the parts of JSON Schema that openapi.yaml uses. */
import fc from "fast-check";

export interface SchemaNode {
  $ref?: string;
  type?: string;
  const?: unknown;
  enum?: unknown[];
  oneOf?: SchemaNode[];
  properties?: Record<string, SchemaNode>;
  required?: string[];
  additionalProperties?: SchemaNode | boolean;
  maxProperties?: number;
  items?: SchemaNode;
  minItems?: number;
  maxItems?: number;
  pattern?: string;
  format?: string;
  minLength?: number;
  maxLength?: number;
  minimum?: number;
  maximum?: number;
}

/** Words that mean something to somebody: to JavaScript, to shells, to terminals. */
const WORDS = [
  "constructor",
  "prototype",
  "__proto__",
  "tostring",
  "a",
  "..",
  "",
  "\u0000",
  "\u001b[31m",
  "\u202e",
  "é".repeat(300),
];

export function arbitraryOf(schema: SchemaNode, resolve: (ref: string) => SchemaNode): fc.Arbitrary<unknown> {
  const of = (node: SchemaNode): fc.Arbitrary<unknown> => arbitraryOf(node, resolve);
  if (schema.$ref !== undefined) {
    const { $ref, ...rest } = schema;
    return of({ ...resolve($ref), ...rest });
  }
  if (schema.const !== undefined) return fc.constant(schema.const);
  if (schema.enum !== undefined) return fc.constantFrom(...schema.enum);
  if (schema.oneOf !== undefined) return fc.oneof(...schema.oneOf.map(of));
  switch (schema.type) {
    case "object":
      return objectOf(schema, of);
    case "array":
      return fc.array(of(schema.items ?? {}), {
        minLength: schema.minItems ?? 0,
        maxLength: Math.max(schema.minItems ?? 0, Math.min(schema.maxItems ?? 3, 3)),
      });
    case "string":
      return stringOf(schema);
    case "integer":
      return integerOf(schema);
    case "number":
      return fc.double({ min: schema.minimum ?? -1e9, max: schema.maximum ?? 1e9, noNaN: true });
    case "boolean":
      return fc.boolean();
    case undefined:
    default:
      return fc.constant(null);
  }
}

function objectOf(schema: SchemaNode, of: (node: SchemaNode) => fc.Arbitrary<unknown>): fc.Arbitrary<unknown> {
  if (schema.properties === undefined) {
    const value = typeof schema.additionalProperties === "object" ? of(schema.additionalProperties) : fc.constant(1);
    return fc.dictionary(fc.oneof(fc.constantFrom(...WORDS), fc.string()), value, { maxKeys: 4 });
  }
  const members = Object.fromEntries(Object.entries(schema.properties).map(([name, node]) => [name, of(node)]));
  return fc.record(members, { requiredKeys: schema.required ?? [] });
}

/** Texts for patterns that admit no word. */
const PLAIN = ["x", "/x", "unconfined", "v.example/gpu=0"];

function stringOf({ pattern, format, minLength = 0, maxLength = 1e9 }: SchemaNode): fc.Arbitrary<string> {
  if (format === "base64") return fc.base64String({ maxLength: 64 });
  const expression = pattern === undefined ? undefined : new RegExp(pattern);
  const isAdmitted = (text: string) =>
    text.length >= minLength && text.length <= maxLength && (expression === undefined || expression.test(text));
  // A pattern may admit next to none of what follows: nothing here may search for a text without end.
  const plain = PLAIN.find(isAdmitted) ?? "x";
  const longest = fc.constantFrom(...[253, 256, 4096].map((length) => "x".repeat(length)).filter(isAdmitted), plain);
  const words = fc.constantFrom(...WORDS.filter(isAdmitted), plain);
  const others = fc.string({ unit: fc.constantFrom("a", "é", "\u{1f600}", '"', "\\", "/", "-", "."), maxLength: 40 });
  const admitted = (text: string) => (isAdmitted(text) ? text : plain);
  return fc.oneof({ weight: 4, arbitrary: words }, { weight: 1, arbitrary: longest }, others.map(admitted));
}

function integerOf({ minimum = Number.MIN_SAFE_INTEGER, maximum = Number.MAX_SAFE_INTEGER }: SchemaNode) {
  return fc.oneof(
    fc.integer({ min: Math.max(minimum, -1000), max: Math.min(maximum, 100_000) }),
    fc.constantFrom(minimum, maximum),
  );
}
