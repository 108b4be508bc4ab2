/**
 * (pure) YAML as a kubelet reads it (sigs.k8s.io/yaml, which is go-yaml's v2): by the rules of YAML 1.1, of which
 * `0400` is octal, `yes` a boolean and `<<` merges. By those of 1.2 a pod would be another one, and nobody told.
 */
import { LineCounter, type ParseOptions, type ScalarTag, type SchemaOptions, type Tags, isScalar } from "yaml";
import { parseDocument, visit, type Document, type YAMLMap } from "yaml";
import { toError } from "../util/errors.ts";

type YamlRead = { kind: "value"; value: unknown } | { kind: "fault"; fault: string };

/** go-yaml knows it, YAML 1.1 does not. */
const OCTAL: ScalarTag = {
  tag: "tag:yaml.org,2002:int",
  default: true,
  test: /^[-+]?0o[0-7_]+$/,
  resolve: (text) => (text.startsWith("-") ? -1 : 1) * Number.parseInt(text.replaceAll(/[-+_]|0o/g, ""), 8),
};
/** To go-yaml these are text: sexagesimal numbers, as `10:30` would be, and what JSON has no form of. */
const TEXT = ["binary", "omap", "pairs", "set", "timestamp"].map((name) => `tag:yaml.org,2002:${name}`);

const tagsOf = (tags: Tags): Tags => [
  OCTAL,
  ...tags.filter(
    (tag) => typeof tag === "string" || (!TEXT.includes(tag.tag) && !("format" in tag && tag.format === "TIME")),
  ),
];

const OPTIONS: ParseOptions & SchemaOptions & { logLevel: "error" } = {
  schema: "yaml-1.1",
  customTags: tagsOf,
  merge: true,
  // It compares each key with each: half a minute for 30,000 of them.
  uniqueKeys: false,
  // What they show of the file may have to stay in it.
  prettyErrors: false,
  logLevel: "error",
};

export function readYaml(text: string): YamlRead {
  const fault = (words: string): YamlRead => ({ kind: "fault", fault: words });
  const lines = new LineCounter();
  const at = (offset: number) => {
    const { line, col } = lines.linePos(offset);
    return `line ${line}, column ${col}`;
  };
  try {
    const document = parseDocument(text, { ...OPTIONS, lineCounter: lines });
    const [syntax] = document.errors;
    if (syntax?.code === "MULTIPLE_DOCS") return fault("holds several documents; give each pod a file of its own");
    if (syntax !== undefined) return fault(`${at(syntax.pos[0])}: is no YAML: ${withoutText(syntax)}; correct it`);
    const twice = keyOfTwo(document);
    if (twice !== undefined) return fault(`${at(twice)}: is no YAML: the mapping has this key twice; correct it`);
    return { kind: "value", value: document.toJS() };
  } catch (thrown) {
    // An alias of nothing, or too many of them.
    return fault(`is no YAML: ${withoutText(toError(thrown))}; correct it`);
  }
}

/** After a colon comes what the file has there, which may be a password that begins with `*` or `|`. */
const withoutText = ({ message }: Error): string => message.replace(/: .*$/s, "");

/** Where a key is that its mapping has already: of a kubelet's two, the last counts, and nobody is told. */
function keyOfTwo(document: Document): number | undefined {
  let found: number | undefined;
  visit(document, {
    Map(_, { items }: YAMLMap) {
      const keys = new Set<unknown>();
      for (const { key } of items) {
        if (!isScalar(key) || key.value === "<<" || typeof key.value === "symbol") continue;
        if (keys.has(key.value)) {
          found = key.range?.[0] ?? 0;
          return visit.BREAK;
        }
        keys.add(key.value);
      }
      return undefined;
    },
  });
  return found;
}
