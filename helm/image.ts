/**
 * Makes vmlet's images without a container engine:
 *
 *     npm run image -- FOLDER [--platforms amd64,arm64] [--images vmlet,vmlet-backend]
 *
 * FOLDER, which is absent, empty or an older layout, becomes an OCI layout;
 * `skopeo copy --all oci:FOLDER:vmlet docker://REGISTRY/vmlet:VERSION` pushes one of it.
 *
 * The Dockerfile says what is in them: its stages are read from it, the tree is that of assemble.ts, and the base is
 * made of Debian's packages where the Dockerfile is given one by digest; runtime.ts builds the backend's programs.
 * Reproducible: the same checkout, lock file and state of Debian's archive give the same digests, on any machine and
 * for any $SOURCE_DATE_EPOCH (default 0); of the backend's with the same compiler of C, Debian 12's.
 */
import { accessSync, constants } from "node:fs";
import { mkdir, mkdtemp, readFile, rename, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { delimiter, dirname, join } from "node:path";
import { parseArgs } from "node:util";
import { assemble } from "./assemble.ts";
import { debianTree, type Architecture } from "./debian.ts";
import { dockerStage, runConfigOf, treeOf, type StageTree } from "./dockerfile.ts";
import { OciLayout, type Descriptor, type Layer } from "./oci-layout.ts";
import { buildRuntime, compilerFor } from "./runtime.ts";

export const ARCHITECTURES: readonly Architecture[] = ["amd64", "arm64"];
const CPU: Record<Architecture, string> = { amd64: "x64", arm64: "arm64" };
export const nativeArchitecture: Architecture = process.arch === "arm64" ? "arm64" : "amd64";

interface ImageKind {
  /** Of the Dockerfile. */
  stage: string;
  title: string;
  /** Of Debian, for what the Dockerfile takes as a base. */
  base: { packages: readonly string[]; kind: "alone" | "system"; env?: string[] | undefined };
  /** Has programs of runtime.ts. */
  isCompiled?: boolean | undefined;
}

/** By the name that the chart has for them. `vmlet csi` and `vmlet webhook` are commands of the first. */
const IMAGES = {
  vmlet: {
    stage: "agent",
    title: "vmlet",
    // What distroless's cc has that Node or vmlet reads: no libssl, for Node brings its own.
    base: {
      packages: ["base-files", "ca-certificates", "libc6", "libgcc-s1", "libstdc++6", "netbase", "tzdata"],
      kind: "alone",
    },
  },
  "vmlet-backend": {
    stage: "backend",
    title: "vmlet's reference backend",
    // Debian's image says where its programs are.
    base: { packages: [], kind: "system", env: ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"] },
    isCompiled: true,
  },
} as const satisfies Record<string, ImageKind>;
type ImageName = keyof typeof IMAGES;
const IMAGE_NAMES = Object.keys(IMAGES) as ImageName[];

interface MakeImagesOptions {
  /** Becomes the layout; may hold an older one, and nothing else. */
  folder: string;
  architectures: readonly Architecture[];
  images: readonly ImageName[];
}

/** @returns the digests of their indexes. @throws Error that says what is missing, before anything is made */
async function makeImages(options: MakeImagesOptions): Promise<Partial<Record<ImageName, string>>> {
  const { folder, architectures, images } = options;
  const missing = missingTools(options);
  if (missing.length > 0) throw new Error(`no image can be made here: ${missing.join("; ")}`);
  const work = await mkdtemp(join(tmpdir(), "vmlet-image-"));
  const umask = process.umask(0o022);
  try {
    const layout = await OciLayout.create(folder, Number(process.env["SOURCE_DATE_EPOCH"] ?? 0));
    const manifests = Object.fromEntries(images.map((name) => [name, [] as Descriptor[]]));
    for (const architecture of architectures) {
      const layers = new LayerMaker({ layout, work: join(work, architecture), architecture });
      for (const name of images) manifests[name]!.push(await layers.image(IMAGES[name]));
    }
    const digests: Partial<Record<ImageName, string>> = {};
    for (const name of images)
      digests[name] = await layout.addIndex(name, manifests[name]!, await annotations(IMAGES[name]));
    await layout.close();
    return digests;
  } finally {
    process.umask(umask);
    await rm(work, { recursive: true });
  }
}

/** For each tool that is not on the PATH, what to do. */
function missingTools({ architectures, images }: MakeImagesOptions): string[] {
  const tools: Record<string, string> = {
    mmdebstrap: "apt-get install mmdebstrap",
    "dpkg-deb": "apt-get install dpkg",
  };
  if (images.some((name) => "isCompiled" in IMAGES[name])) {
    const orElse = "or leave out the backend's image (--images vmlet)";
    Object.assign(tools, { go: `install Go 1.21 or newer, ${orElse}`, "pkg-config": "apt-get install pkg-config" });
    for (const architecture of architectures) {
      const { tool, package: name } = compilerFor(architecture);
      tools[tool] = `apt-get install ${name}, ${orElse}, or leave out ${architecture} (--platforms)`;
    }
  }
  const isThere = (tool: string) =>
    (process.env["PATH"] ?? "").split(delimiter).some((folder) => isExecutable(join(folder, tool)));
  return Object.entries(tools).flatMap(([tool, cure]) => (isThere(tool) ? [] : `${tool} is not on the PATH: ${cure}`));
}

function isExecutable(path: string): boolean {
  try {
    accessSync(path, constants.X_OK);
    return true;
  } catch {
    return false;
  }
}

async function annotations({ title }: ImageKind): Promise<Record<string, string>> {
  const text = await readFile(join(import.meta.dirname, "../package.json"), "utf8");
  const { version, license, homepage } = JSON.parse(text) as Record<string, string>;
  const said = { title, version, licenses: license, source: homepage?.replace(/#.*/, "") };
  return Object.fromEntries(
    Object.entries(said).map(([key, value = ""]) => [`org.opencontainers.image.${key}`, value]),
  );
}

/** Layers of one architecture; what images share is made once. */
class LayerMaker {
  readonly #layout: OciLayout;
  readonly #work: string;
  readonly #architecture: Architecture;
  readonly #copied = new Map<string, Layer>();

  constructor(context: { layout: OciLayout; work: string; architecture: Architecture }) {
    this.#layout = context.layout;
    this.#work = context.work;
    this.#architecture = context.architecture;
  }

  async image(kind: ImageKind): Promise<Descriptor> {
    const stage = await dockerStage(kind.stage);
    const tree = treeOf(stage);
    const { env = [], ...base } = kind.base;
    const packages = [...base.packages, ...tree.packages];
    const layers = [await this.#base(kind.stage, { ...base, packages })];
    for (const copy of tree.copies) layers.push(await this.#copy(copy));
    const config = runConfigOf(stage);
    if (env.length > 0) config.Env = [...env, ...(config.Env ?? [])];
    return this.#layout.addImage({ architecture: this.#architecture, layers, config });
  }

  async #base(name: string, base: ImageKind["base"]): Promise<Layer> {
    const folder = join(this.#work, `${name}-base`);
    await mkdir(folder, { recursive: true });
    await debianTree({ ...base, folder, architecture: this.#architecture });
    const layer = await this.#layout.addLayer(folder, `Debian's packages: ${base.packages.toSorted().join(" ")}`);
    await rm(folder, { recursive: true });
    return layer;
  }

  async #copy({ stage, source: path, target }: StageTree["copies"][number]): Promise<Layer> {
    const key = `${stage}:${path}:${target}`;
    const made = this.#copied.get(key);
    if (made !== undefined) return made;
    const sources: Record<string, (folder: string) => Promise<string>> = {
      "build:/image/app": async (folder) => {
        await assemble(folder, CPU[this.#architecture]);
        return join(folder, "app");
      },
      "runtime:/runtime/bin": (folder) => buildRuntime(folder, this.#architecture),
    };
    const make = sources[`${stage}:${path}`];
    if (make === undefined) throw new Error(`Dockerfile: COPY --from=${stage} ${path}: helm/image.ts cannot make that`);
    const source = join(this.#work, "source");
    await mkdir(source);
    const content = await make(source);
    const tree = join(this.#work, "tree");
    await mkdir(dirname(join(tree, target)), { recursive: true });
    await rename(content, join(tree, target));
    const layer = await this.#layout.addLayer(tree, `COPY ${path} ${target}`);
    for (const each of [source, tree]) await rm(each, { recursive: true });
    this.#copied.set(key, layer);
    return layer;
  }
}

if (process.argv[1] === import.meta.filename) {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: { platforms: { type: "string" }, images: { type: "string" } },
  });
  const [folder] = positionals;
  const architectures = chosen(values.platforms, ARCHITECTURES, "--platforms");
  const images = chosen(values.images, IMAGE_NAMES, "--images");
  if (folder === undefined)
    throw new Error("usage: npm run image -- FOLDER [--platforms amd64,arm64] [--images vmlet,vmlet-backend]");
  const digests = await makeImages({ folder, architectures, images });
  for (const name of images) console.log(`oci:${folder}:${name} ${digests[name]}`);
}

function chosen<T extends string>(text: string | undefined, all: readonly T[], option: string): readonly T[] {
  if (text === undefined) return all;
  const unknown = text.split(",").find((each) => !(all as readonly string[]).includes(each));
  if (unknown !== undefined) throw new Error(`${option}: ${unknown} is none of ${all.join(", ")}`);
  return all.filter((each) => text.split(",").includes(each));
}
