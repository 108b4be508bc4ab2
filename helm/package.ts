/**
 * Packs what `npm run build` has made as the npm package: `npm run package -- [OPTIONS of npm pack]`.
 *
 * The code of nearly all packages that vmlet is made of is in `dist` already (bundle.ts), so the package asks for the
 * few that are loaded by their names, and for nothing else. Its declarations are those that belong to what package.json
 * exports; what they take from packages that are not asked for lies in `dist/packages/types`.
 */
import { execFileSync } from "node:child_process";
import { cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { isBuiltin } from "node:module";
import { tmpdir } from "node:os";
import { dirname, join, relative, resolve } from "node:path";

const repository = join(import.meta.dirname, "..");
const TYPES = "dist/packages/types";
/** Whose declarations have no reader but these: `export { Gauge as default } from "prom-client"`. */
const PARTS = "src/util/untyped-modules.d.ts";

/** What is loaded by its name: native code, files for browsers, what messages of gRPC are made with; Node's types. */
const ASKED_FOR = [
  "@bufbuild/protobuf",
  "@connectrpc/connect",
  "@connectrpc/connect-node",
  "@lydell/node-pty",
  "@types/node",
  "@xterm/addon-fit",
  "@xterm/xterm",
];

interface Manifest {
  homepage: string;
  version: string;
  exports: Record<string, { types: string }>;
  dependencies: Record<string, string>;
  devDependencies: Record<string, string>;
  [field: string]: unknown;
}

const read = (file: string) => readFileSync(file, "utf8");

/** Fills `folder` with the package's files, of which the build's own have been made. */
export function stage(folder: string): void {
  const listed = execFileSync("npm", ["pack", "--dry-run", "--json", "--ignore-scripts"], {
    cwd: repository,
    encoding: "utf8",
    stdio: ["ignore", "pipe", "inherit"],
    maxBuffer: 2 ** 26,
  });
  const [{ files }] = JSON.parse(listed) as [{ files: { path: string }[] }];
  const manifest = JSON.parse(read(join(repository, "package.json"))) as Manifest;
  const declared = new Declarations(folder);
  for (const { types } of Object.values(manifest.exports)) declared.take(join(repository, types));
  const packed = files.map(({ path }) => path);
  for (const path of packed) {
    if (path.startsWith("dist/") && path.endsWith(".d.ts")) continue;
    cpSync(join(repository, path), join(folder, path), { recursive: true });
    if (!/\.md$|^examples\/[^/]*\.ts$/.test(path)) continue;
    const text = read(join(repository, path));
    writeFileSync(
      join(folder, path),
      path.endsWith(".md") ? withLinks(text, path, packed, manifest) : byName(text, manifest),
    );
  }
  declared.write();
  writeFileSync(join(folder, "package.json"), `${JSON.stringify(withoutPacked(manifest), undefined, 2)}\n`);
}

/** Links to what is not in the package lead to the repository, as it was at this version. */
function withLinks(text: string, path: string, packed: readonly string[], { homepage, version }: Manifest): string {
  return text.replaceAll(/\]\((?!\w+:|#)([^)#\s]+)/g, (all, link: string) => {
    const target = join(dirname(path), link).replace(/\/$/, "");
    const isPacked = packed.some((each) => each === target || each.startsWith(`${target}/`));
    return isPacked ? all : `](${homepage.replace(/#.*/, "")}/blob/v${version}/${target}`;
  });
}

/** An example imports from the sources what a copy of it, elsewhere, has from the package. */
function byName(text: string, { exports }: Manifest): string {
  return Object.entries(exports).reduce((all, [name, { types }]) => {
    const source = types.replace("./dist/", "../").replace(/\.d\.ts$/, ".ts");
    return all.replace(`"${source}"`, `"${name.replace(".", "vmlet")}"`);
  }, text);
}

/** What an installation needs of package.json. */
function withoutPacked(manifest: Manifest): Record<string, unknown> {
  const { scripts: _, overrides: __, devDependencies, dependencies, ...rest } = manifest;
  const all = { ...devDependencies, ...dependencies };
  return { ...rest, dependencies: Object.fromEntries(ASKED_FOR.map((name) => [name, all[name]])) };
}

/** `import type { A } from "x"`, `export * from "x"`, and `import("x").A` within a type. */
const STATEMENT = /^((?:import|export)\s(?:[^"';]*\sfrom\s*)?)["']([^"']+)["']/gm;
const DECLARED = /^export (?:declare )?(?:abstract )?(?:class|interface|type|const|enum|function) ([\w$]+)/gm;
const NAMES = /^(import (?:type )?)\{([^}]*)\} from ["'](\.[^"']+)["'];?/gm;
const IN_PLACE = /\b(import\()["']([^"']+)["'](\)\.)([\w$]+)/g;

/** Declarations, and all that they refer to. */
class Declarations {
  readonly #folder: string;
  /** By their places in the package. */
  readonly #texts = new Map<string, string>();
  /** Of each module that is no file of ours: what is exported from where. */
  readonly #modules = new Map<string, Set<string>>();

  constructor(folder: string) {
    this.#folder = folder;
  }

  /** @param file of the build, or of a package */
  take(file: string): void {
    const place = placeOf(file);
    if (this.#texts.has(place)) return;
    this.#texts.set(place, "");
    const renamed = (begin: string, module: string, names: readonly string[]) =>
      `${begin}"${this.#refer(file, module, names) ?? module}"`;
    const text = fromDeclarers(file)
      .replaceAll(STATEMENT, (_all, begin: string, module: string) => renamed(begin, module, namesIn(begin)))
      .replaceAll(IN_PLACE, (_all, begin: string, module: string, end: string, name: string) =>
        [renamed(begin, module, [name]), end, name].join(""),
      );
    this.#texts.set(place, text);
  }

  write(): void {
    for (const [module, lines] of this.#modules) this.#texts.set(entryOf(module), [...lines, ""].join("\n"));
    for (const [place, text] of this.#texts) {
      const file = join(this.#folder, place);
      mkdirSync(dirname(file), { recursive: true });
      writeFileSync(file, text);
    }
  }

  /** Takes what `file` refers to, and says by which name it finds that, where that is another one. */
  #refer(file: string, module: string, names: readonly string[]): string | undefined {
    if (module.startsWith(".")) {
      const target = join(dirname(file), module.replace(/(?:\.[jt]s)?$/, ".d.ts"));
      this.take(existsSync(target) ? target : join(dirname(file), module, "index.d.ts"));
      return undefined;
    }
    if (isBuiltin(module) || ASKED_FOR.some((name) => module === name || module.startsWith(`${name}/`)))
      return undefined;
    for (const line of this.#exports(module, names)) this.#exportsOf(module).add(line);
    return asImported(relative(dirname(placeOf(file)), entryOf(module)));
  }

  #exportsOf(module: string): Set<string> {
    const lines = this.#modules.get(module) ?? new Set();
    this.#modules.set(module, lines);
    return lines;
  }

  /** The lines that export these names of a module: from the files that declare them, else from all of it. */
  #exports(module: string, names: readonly string[]): string[] {
    const part = partOf(module);
    const from = (file: string) => asImported(relative(dirname(entryOf(module)), placeOf(file)));
    if (part !== undefined) {
      const [name, whole] = part;
      const file = declarationsOf(whole);
      this.take(file);
      return [`export { ${name} as default } from "${from(file)}";`];
    }
    const index = declarationsOf(module);
    return names.map((name) => {
      const file = declarerOf(index, name);
      this.take(file ?? index);
      return file === undefined ? `export * from "${from(index)}";` : `export { ${name} } from "${from(file)}";`;
    });
  }
}

/** A declaration's text; what a package's has of an index of all, it has of those files that declare it. */
function fromDeclarers(file: string): string {
  if (!file.includes("/node_modules/")) return read(file);
  return read(file).replaceAll(NAMES, (_all, begin: string, names: string, module: string) => {
    const target = resolve(dirname(file), module.replace(/\.js$/, ".d.ts"));
    const lines = names.split(",").map((each) => {
      const [name = ""] = namesIn(`{${each}}`);
      const declarer = asImported(relative(dirname(file), declarerOf(target, name) ?? target));
      return `${begin}{ ${each.trim()} } from "${declarer}";`;
    });
    return lines.join("\n");
  });
}

/** Where a declaration lies in the package. */
function placeOf(file: string): string {
  const path = relative(repository, file);
  const [, ofPackage] = /(?:^|\/)node_modules\/(.*)$/.exec(path) ?? [];
  return ofPackage === undefined ? path : join(TYPES, ofPackage);
}

/** Of a module that is no file of ours, where its names are exported from. */
const entryOf = (module: string) => join(TYPES, `${module.replace(/\.js$/, "")}.d.ts`);

function asImported(path: string): string {
  const name = path.replace(/\.d\.ts$/, ".js");
  return name.startsWith(".") ? name : `./${name}`;
}

/** @param clause `import type { A, B as C } from`, without what it is from */
function namesIn(clause: string): string[] {
  const inside = clause.slice(clause.indexOf("{") + 1, clause.indexOf("}"));
  return inside.split(",").flatMap((each) => /^\s*(?:type\s+)?([\w$]+)/.exec(each)?.[1] ?? []);
}

/** What a module has of its package's whole, as we declare it. */
function partOf(module: string): [name: string, whole: string] | undefined {
  const begin = `declare module "${module}" {\n  export { `;
  const [, after] = read(join(repository, PARTS)).split(begin);
  const [, name, whole] = /^(\w+) as default \} from "([^"]+)"/.exec(after ?? "") ?? [];
  return name === undefined || whole === undefined ? undefined : [name, whole];
}

/** @throws Error where the package has none */
function declarationsOf(name: string): string {
  const folder = join(repository, "node_modules", name);
  const { types } = JSON.parse(read(join(folder, "package.json"))) as { types?: string };
  const file = [join(folder, types ?? "").replace(/\.d\.cts$/, ".d.ts"), join(folder, "index.d.ts")].find(
    (each) => each.endsWith(".d.ts") && existsSync(each),
  );
  if (file === undefined) throw new Error(`${name} has no declarations: what is exported must not refer to it`);
  return file;
}

/** The file that declares a name which `file` exports, itself or from others. */
function declarerOf(file: string, name: string): string | undefined {
  if (!existsSync(file)) return undefined;
  const text = read(file);
  if (text.matchAll(DECLARED).some(([, declared]) => declared === name)) return file;
  for (const [, names, module] of text.matchAll(/^export (?:type )?(\*|\{[^}]*\}) from ["'](\.[^"']+)["']/gm)) {
    const isThere = names === "*" || namesIn(names!).includes(name);
    const found = isThere ? declarerOf(resolve(dirname(file), module!.replace(/\.js$/, ".d.ts")), name) : undefined;
    if (found !== undefined) return found;
  }
  return undefined;
}

if (process.argv[1] === import.meta.filename) {
  const folder = mkdtempSync(join(tmpdir(), "vmlet-package-"));
  try {
    stage(folder);
    execFileSync("npm", ["pack", folder, "--ignore-scripts", ...process.argv.slice(2)], { stdio: "inherit" });
  } finally {
    rmSync(folder, { recursive: true });
  }
}
