/**
 * What kinds and fields are for, in Kubernetes' own words, for `kubectl explain`. client-node's generated declarations
 * carry them as comments, in the version of the models that the schemas are made of, so nothing is kept twice. The
 * package comes without client-node, and has one file with what is read of it here.
 */
import { existsSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";

interface Descriptions {
  /** undefined where the declarations say nothing, or an installation left them out. */
  kind: string | undefined;
  fields: ReadonlyMap<string, string>;
}

/** As the package has all of them (helm/bundle.ts), in a file beside this module. */
type Packed = Readonly<Record<string, { kind?: string; fields: Record<string, string> }>>;
const PACKED = "descriptions.json";

const known = new Map<string, Descriptions>();
let texts: ((model: string) => Descriptions) | undefined;

/** The descriptions of a client-node model such as `V1Pod`, and of its fields by their JSON names. */
export function descriptionsOf(model: string): Descriptions {
  let found = known.get(model);
  if (!found) {
    texts ??= readPacked() ?? readDeclaration;
    found = texts(model);
    known.set(model, found);
  }
  return found;
}

function readPacked(): ((model: string) => Descriptions) | undefined {
  const file = join(import.meta.dirname, PACKED);
  if (!existsSync(file)) return undefined;
  const packed = JSON.parse(readFileSync(file, "utf8")) as Packed;
  return (model) => {
    const { kind, fields = {} } = (Object.hasOwn(packed, model) ? packed[model] : undefined) ?? {};
    return { kind, fields: new Map(Object.entries(fields)) };
  };
}

const declarations = () =>
  join(dirname(createRequire(import.meta.url).resolve("@kubernetes/client-node")), "gen/models");

function readDeclaration(model: string): Descriptions {
  const file = join(declarations(), `${model}.d.ts`);
  return parseDeclaration(existsSync(file) ? readFileSync(file, "utf8") : "");
}

/** Reads a generated declaration: each comment belongs to the class or the property in the line after it. */
function parseDeclaration(text: string): Descriptions {
  const fields = new Map<string, string>();
  let kind: string | undefined;
  let comment: string[] = [];
  for (const line of text.split("\n").map((each) => each.trim())) {
    if (line.startsWith("*") && !line.startsWith("*/")) {
      comment.push(line.slice(1).trim());
      continue;
    }
    if (line.startsWith("*/")) continue;
    const field = /^'([^']+)'\??:/.exec(line)?.[1];
    const description = unescape(comment.join("\n"));
    if (description !== "" && field !== undefined) fields.set(field, description);
    else if (description !== "" && line.startsWith("export declare class ")) kind = description;
    comment = [];
  }
  return { kind, fields };
}

/** The generator escapes quotes, and what would open or end a comment. */
const unescape = (text: string): string =>
  text
    .replaceAll("*_/", "*/")
    .replaceAll("/_*", "/*")
    .replaceAll(/\\(["'])/g, "$1");
