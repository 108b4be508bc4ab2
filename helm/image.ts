/**
 * Makes vmlet's images without a container engine: `npm run image -- FOLDER [--platforms amd64,arm64] [--images NAME]`.
 * FOLDER, which is absent, empty or an older layout, becomes an OCI layout;
 * `skopeo copy --all oci:FOLDER:vmlet docker://REGISTRY/vmlet:VERSION` pushes one of it.
 *
 * The Dockerfile says what is in them: its stages are read from it, the tree is that of assemble.ts, and the base is
 * made of Debian's packages where the Dockerfile is given one by digest. Reproducible: the same checkout, lock file and
 * state of Debian's archive give the same digests, on any machine and for any $SOURCE_DATE_EPOCH (default 0).
 */
import { mkdir, mkdtemp, readFile, rename, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { parseArgs } from "node:util";
import { assemble } from "./assemble.ts";
import { debianTree, type Architecture } from "./debian.ts";
import { dockerStage, runConfigOf, treeOf } from "./dockerfile.ts";
import { OciLayout, type Descriptor, type Layer } from "./oci-layout.ts";

export const ARCHITECTURES: readonly Architecture[] = ["amd64", "arm64"];
const CPU: Record<Architecture, string> = { amd64: "x64", arm64: "arm64" };
export const nativeArchitecture: Architecture = process.arch === "arm64" ? "arm64" : "amd64";

interface ImageKind {
  /** Of the Dockerfile. */
  stage: string;
  title: string;
  /** Of Debian, for what the Dockerfile takes as a base. */
  base: { packages: readonly string[]; kind: "alone" | "system" };
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
} satisfies Record<string, ImageKind>;
export type ImageName = keyof typeof IMAGES;
export const IMAGE_NAMES = Object.keys(IMAGES) as ImageName[];

export interface MakeImagesOptions {
  /** Becomes the layout; may hold an older one, and nothing else. */
  folder: string;
  architectures?: readonly Architecture[] | undefined;
  images?: readonly ImageName[] | undefined;
}

/** @returns the digests of their indexes */
export async function makeImages(options: MakeImagesOptions): Promise<Partial<Record<ImageName, string>>> {
  const { folder, architectures = ARCHITECTURES, images = IMAGE_NAMES } = options;
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
    const base = { ...kind.base, packages: [...kind.base.packages, ...tree.packages] };
    const layers = [await this.#base(kind.stage, base)];
    for (const copy of tree.copies) layers.push(await this.#copy(copy));
    return this.#layout.addImage({ architecture: this.#architecture, layers, config: runConfigOf(stage) });
  }

  async #base(name: string, base: ImageKind["base"]): Promise<Layer> {
    const folder = join(this.#work, `${name}-base`);
    await mkdir(folder, { recursive: true });
    await debianTree({ ...base, folder, architecture: this.#architecture });
    const layer = await this.#layout.addLayer(folder, `Debian's packages: ${base.packages.toSorted().join(" ")}`);
    await rm(folder, { recursive: true });
    return layer;
  }

  async #copy({ stage, source, target }: { stage: string; source: string; target: string }): Promise<Layer> {
    const key = `${stage}:${source}:${target}`;
    const made = this.#copied.get(key);
    if (made !== undefined) return made;
    const sources: Record<string, (folder: string) => Promise<string>> = {
      "build:/image/app": async (folder) => {
        await assemble(folder, CPU[this.#architecture]);
        return join(folder, "app");
      },
    };
    const make = sources[`${stage}:${source}`];
    if (make === undefined)
      throw new Error(`Dockerfile: COPY --from=${stage} ${source}: helm/image.ts cannot make that`);
    const content = await make(join(this.#work, "source"));
    const tree = join(this.#work, "tree");
    await mkdir(dirname(join(tree, target)), { recursive: true });
    await rename(content, join(tree, target));
    const layer = await this.#layout.addLayer(tree, `COPY ${source} ${target}`);
    await rm(tree, { recursive: true });
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
  if (folder === undefined) throw new Error("usage: npm run image -- FOLDER [--platforms amd64,arm64] [--images NAME]");
  const digests = await makeImages({ folder, architectures, images });
  for (const name of images) console.log(`oci:${folder}:${name} ${digests[name]}`);
}

function chosen<T extends string>(text: string | undefined, all: readonly T[], option: string): readonly T[] {
  if (text === undefined) return all;
  const unknown = text.split(",").find((each) => !(all as readonly string[]).includes(each));
  if (unknown !== undefined) throw new Error(`${option}: ${unknown} is none of ${all.join(", ")}`);
  return all.filter((each) => text.split(",").includes(each));
}
