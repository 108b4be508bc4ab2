/**
 * Packs what the compiler left in a folder (`dist`) into few modules: `node helm/bundle.ts dist`. Each module that is
 * loaded costs an agent time and memory for good, and of most packages it needs a part only.
 *
 * Programs and what package.json exports stay where they are; what they share goes into chunks. A module that asks
 * where it lies (`import.meta`) is told where it would lie by itself. Chunks of packages lie in a folder of their own,
 * so that a stack still tells whose code it was. What was packed is removed: nothing is there twice, and no class in
 * two versions.
 */
import { readdirSync, readFileSync } from "node:fs";
import { rm, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { dirname, join, relative, resolve } from "node:path";
import { rolldown, type Plugin } from "rolldown";
import { descriptionsOf } from "../src/devcluster/kubectl/descriptions.ts";

/** Programs, which are started by their file's name, and what package.json exports. */
const ENTRIES = [
  "src/cli/main.js",
  "src/cli/kubectl-vmlet.js",
  "src/cli/kubectl_complete-vmlet.js",
  "src/cli/child-program.js",
  "src/index.js",
  "src/provider/kit/index.js",
  "providers/http-vm/index.js",
  "providers/cloud/index.js",
  "providers/local/network/relay-program.js",
  "providers/local/engines/process/stand-in-web.js",
];
/** A program of its own: each pod that gets a new VM waits until it has been loaded. */
const GUEST = "src/cli/guest-main.js";
/** Also read as files: the shim is copied module by module. */
const READ_AS_FILES = /^providers\/local\/shim\//;
const NATIVE = /^@lydell\/node-pty/;
/** Native code, what is only asked where it lies, and what messages of gRPC are made with. */
const EXTERNAL = [NATIVE, /^@xterm\//, /^@bufbuild\//, /^@connectrpc\//];
/** Its whole, of which `vmlet dev` takes the models of Kubernetes' kinds, and nobody the rest. */
const CLIENT_NODE = "@kubernetes/client-node";
const MODELS = /\/node_modules\/@kubernetes\/client-node\/dist\/gen\/models\//;
const DESCRIPTIONS = "src/devcluster/kubectl/descriptions";
/** Its modules only declare: what is not asked for may be left out, which is nearly all of it. */
const DECLARES = /\/node_modules\/@kubernetes\/client-node\//;

/**
 * An `import` of these reads each of their exports at once, and some of those load a great deal when they are read: of
 * `node:http`, a WebSocket and with it a second undici. Asked for as an object, they load what is used.
 */
const HEAVY_WHOLE = /^node:(?:http|crypto|fs|process|util|worker_threads)$/;

/**
 * @param dist what `tsc -p tsconfig.build.json` wrote
 * @param options.without modules and folders in it that are left as they are, and may be removed afterwards
 * @returns the folders of packages of which something was packed
 * @throws Error for whatever the bundler warns of
 */
export async function bundle(dist: string, options: { without?: readonly string[] } = {}): Promise<Set<string>> {
  const root = resolve(dist);
  const { without = [] } = options;
  // Before what it is made of goes. Apart, for what it shares with others would bring more along than it needs.
  const ofGuest = await packGuest(join(root, GUEST), { root, output: join(root, GUEST) });
  const isLeftOut = (path: string) => without.some((each) => path === each || path.startsWith(`${each}/`));

  const packing = await rolldown({
    cwd: root,
    input: Object.fromEntries(ENTRIES.map((path) => [path.replace(/\.js$/, ""), join(root, path)])),
    platform: "node",
    preserveEntrySignatures: "allow-extension",
    external: (id) => EXTERNAL.some((each) => each.test(id)) || isLeftOut(relative(root, id)),
    treeshake: { moduleSideEffects: (id) => !DECLARES.test(id) },
    plugins: [modelsAlone, builtinsAsObjects, ownPlaces(root), oneByteTexts],
    logLevel: "warn",
    // How slow a busy machine is says nothing of the bundle.
    checks: { bundlerTimings: false },
    onLog: refuse,
  });
  const { output } = await packing.write({
    dir: root,
    format: "esm",
    // Each is held in memory as long as the program runs.
    comments: false,
    entryFileNames: "[name].js",
    chunkFileNames: ({ moduleIds }) => `${placeOf(moduleIds.map((id) => relative(root, id)))}-[hash].js`,
    codeSplitting: {
      groups: [
        {
          debugName: "packages",
          // All models by themselves: an agent needs a few parts of client-node, and would load them along.
          name: (id) => (MODELS.test(id) ? "kubernetes-models" : (packageOf(id) ?? null)),
          includeDependenciesRecursively: false,
          entriesAware: true,
        },
      ],
    },
  });
  await packing.close();

  const chunks = output.filter((each) => each.type === "chunk");
  const written = new Set(chunks.map(({ fileName }) => fileName));
  for (const { moduleIds } of chunks)
    for (const path of moduleIds.map((id) => relative(root, id))) {
      if (path.startsWith("..") || path.startsWith("\0") || written.has(path) || READ_AS_FILES.test(path)) continue;
      await rm(join(root, path), { force: true });
    }
  if (!isLeftOut(DESCRIPTIONS)) await writeFile(join(root, `${DESCRIPTIONS}.json`), descriptions());
  return new Set([...packagesOf(chunks), ...ofGuest]);
}

/**
 * Packs the program of guests into one file, with all that it loads but native code: a process loads one large file in
 * a fraction of the time that a thousand take.
 *
 * @param main its main module, compiled or not
 * @param options.root the folder that modules tell where they lie in
 * @returns the folders of packages of which something was packed
 * @throws Error for whatever the bundler warns of
 */
export async function packGuest(main: string, options: { root: string; output: string }): Promise<Set<string>> {
  const { root, output } = options;
  const packing = await rolldown({
    cwd: root,
    input: main,
    platform: "node",
    external: NATIVE,
    plugins: [builtinsAsObjects, ownPlaces(root, relative(root, main)), oneByteTexts],
    logLevel: "warn",
    checks: { bundlerTimings: false },
    onLog: refuse,
  });
  const written = await packing.write({ file: output, format: "esm", comments: false, codeSplitting: false });
  await packing.close();
  return packagesOf(written.output.filter((each) => each.type === "chunk"));
}

function packagesOf(chunks: readonly { moduleIds: readonly string[] }[]): Set<string> {
  return new Set(chunks.flatMap(({ moduleIds }) => moduleIds.flatMap((id) => PACKAGE.exec(id)?.[0] ?? [])));
}

/** What `kubectl explain` says of each model, read from declarations that are not packed. */
function descriptions(): string {
  const folder = join(dirname(createRequire(import.meta.url).resolve(CLIENT_NODE)), "gen/models");
  const models = readdirSync(folder).flatMap((file) => /^(\w+)\.d\.ts$/.exec(file)?.[1] ?? []);
  const all = models.toSorted().map((model) => {
    const { kind, fields } = descriptionsOf(model);
    return [model, { kind, fields: Object.fromEntries(fields) }] as const;
  });
  return JSON.stringify(Object.fromEntries(all));
}

/**
 * The terms of what was packed, for it comes without its packages' own files: each one's name, version and licence, and
 * the texts that are shipped with it.
 *
 * @param packages their folders
 */
function terms(packages: Iterable<string>): string {
  const each = [...packages].map((folder) => {
    const { name, version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8")) as Manifest;
    const files = readdirSync(folder).filter((file) =>
      /^(?:licen[cs]e|copying|unlicense|notice)(?:$|[.-])/i.test(file),
    );
    const texts = files.toSorted().map((file) => readFileSync(join(folder, file), "utf8").trim());
    return [`${name} ${version}: ${license}`, ...texts].join("\n\n");
  });
  const line = `\n\n${"-".repeat(80)}\n\n`;
  return `Parts of these packages are in this folder and in the programs beside it.${line}${each.toSorted().join(line)}\n`;
}

interface Manifest {
  name: string;
  version: string;
  license: string;
}

function refuse(level: string, log: { message: string }): never {
  throw new Error(`${level}: ${log.message}`);
}

/** The folder of the package that a module is of. */
const PACKAGE = /^.*\/node_modules\/(?:@[^/]+\/)?[^/]+/;

/** Stands for the way from a chunk to the folder, until it is known where the chunk lies. */
const UP = "__UP_TO_THE_FOLDER__";

/**
 * Tells modules that ask where they lie (`import.meta`) where they would lie by themselves.
 *
 * @param only where the one file lies that all are packed into
 */
function ownPlaces(root: string, only?: string): Plugin {
  const at = (path: string) => `new URL(${JSON.stringify(`${UP}/${path}`)}, import.meta.url)`;
  const file = (path: string) => `process.getBuiltinModule("node:url").fileURLToPath(${at(path)})`;
  return {
    name: "own-places",
    transform(code, id) {
      const path = relative(root, id);
      if (path.startsWith("..") || !/import\.meta\b/.test(code)) return null;
      return code.replaceAll(/import\.meta\.(url|dirname|filename)\b/g, (_all, what: string) => {
        if (what === "url") return `${at(path)}.href`;
        return file(what === "dirname" ? dirname(path) : path);
      });
    },
    renderChunk(code, { fileName }) {
      return code.replaceAll(UP, relative(dirname(only ?? fileName), ".") || ".");
    },
  };
}

/** One character beyond Latin-1 makes V8 keep a module's whole text with two bytes for each. */
const oneByteTexts: Plugin = {
  name: "one-byte-texts",
  generateBundle(_options, files) {
    for (const file of Object.values(files))
      if (file.type === "chunk") file.code = file.code.replaceAll(/[^\0-\xff]/g, escaped);
  },
};
const escaped = (unit: string) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`;

const modelsAlone: Plugin = {
  name: "models-alone",
  resolveId(id) {
    return id === CLIENT_NODE ? this.resolve(`${CLIENT_NODE}/dist/gen/models/all.js`, import.meta.filename) : null;
  },
};

const builtinsAsObjects: Plugin = {
  name: "builtins-as-objects",
  resolveId(id) {
    return HEAVY_WHOLE.test(id) ? `\0builtin:${id}.cjs` : null;
  },
  load(id) {
    const [, name] = /^\0builtin:(.+)\.cjs$/.exec(id) ?? [];
    return name === undefined ? null : `module.exports = process.getBuiltinModule(${JSON.stringify(name)});`;
  },
};

/** The package of a module, as a file is named by it. */
function packageOf(id: string): string | undefined {
  const [scope = "", name = ""] = id.split("/node_modules/").slice(1).at(-1)?.split("/") ?? [];
  if (scope === "") return undefined;
  return scope.startsWith("@") ? `${scope}-${name}` : scope;
}

/** Where a chunk with these modules goes, and the beginning of its name. */
function placeOf(modules: readonly string[]): string {
  const [first] = modules;
  const name = first === undefined ? undefined : packageOf(`/${first}`);
  if (name !== undefined) return `packages/${name}`;
  return modules.length > 0 && modules.every((path) => path.startsWith("providers/"))
    ? "providers/chunks/[name]"
    : "src/chunks/[name]";
}

if (process.argv[1] === import.meta.filename) {
  const [, , folder, output] = process.argv;
  if (folder === "--guest" && output !== undefined) {
    const home = resolve(import.meta.dirname, "..");
    await packGuest(join(home, GUEST.replace(/js$/, "ts")), { root: home, output: resolve(output) });
  } else if (folder !== undefined) {
    const packed = await bundle(folder);
    await writeFile(join(folder, "packages/LICENSES.txt"), terms(packed));
  } else throw new Error("usage: node helm/bundle.ts FOLDER, or --guest OUTPUT to pack the guest of these sources");
}
