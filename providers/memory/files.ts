/**
 * Files that the programs of one machine have written: those below a mount are the volume's, others the container's.
 * Those of a volume that outlives the machine are kept by who keeps that.
 */
import type { ContainerSpec, EnvFileRef, MachinePatch, MachineSpec } from "../../src/provider/kit/index.ts";
import { ReadOnlyFile } from "./program.ts";

type FileEntry = NonNullable<MachinePatch["files"]>[number]["files"][number];

/** Texts by path. */
export type Texts = Map<string, string>;

interface Place {
  texts: Texts;
  key: string;
  isReadOnly: boolean;
}

export class MachineFiles {
  readonly #texts: Texts = new Map();
  /** By the machine's name for it. */
  readonly #persistent: ReadonlyMap<string, { texts: Texts; isReadOnly: boolean }>;
  /** Of the machine itself, by the machine's name for the volume. */
  readonly #paths: ReadonlyMap<string, string>;

  /** @param textsOf a volume, by its id */
  constructor({ volumes = [] }: Pick<MachineSpec, "volumes">, textsOf: (volume: string) => Texts) {
    this.#persistent = new Map(
      volumes.flatMap((each) =>
        each.type === "persistent"
          ? [[each.name, { texts: textsOf(each.volume), isReadOnly: each.read_only === true }] as const]
          : [],
      ),
    );
    this.#paths = new Map(
      volumes.flatMap((each) => (each.type === "host_path" ? [[each.name, each.path] as const] : [])),
    );
  }

  /** Undefined when there is no such file. */
  read(container: ContainerSpec, path: string): string | undefined {
    const { texts, key } = this.#placeOf(container, path);
    return texts.get(key);
  }

  /** Of a volume that ends with the machine. */
  readVolume({ volume, path }: EnvFileRef): string | undefined {
    return this.#texts.get(`volume ${volume} /${path}`);
  }

  /** @throws ReadOnlyFile */
  write(container: ContainerSpec, path: string, text: string): void {
    const { texts, key, isReadOnly } = this.#placeOf(container, path);
    if (isReadOnly) throw new ReadOnlyFile(path);
    texts.set(key, text);
  }

  /** What is given with a volume takes the place of all that it had. */
  replace(volume: string, files: readonly FileEntry[]): void {
    const prefix = `volume ${volume} /`;
    for (const key of this.#texts.keys()) if (key.startsWith(prefix)) this.#texts.delete(key);
    for (const { path, content_b64 } of files)
      this.#texts.set(prefix + path, Buffer.from(content_b64, "base64").toString());
  }

  remove(container: ContainerSpec, path: string): void {
    const { texts, key } = this.#placeOf(container, path);
    texts.delete(key);
  }

  #placeOf({ name, mounts = [] }: ContainerSpec, path: string): Place {
    const mount = mounts.find((candidate) => path.startsWith(`${candidate.path}/`));
    if (mount === undefined) return { texts: this.#texts, key: `container ${name} ${path}`, isReadOnly: false };
    const below = path.slice(mount.path.length);
    const kept = this.#persistent.get(mount.volume);
    if (kept === undefined) {
      const own = this.#paths.get(mount.volume);
      const key = own === undefined ? `volume ${mount.volume} ${below}` : `path ${own}${below}`;
      return { texts: this.#texts, key, isReadOnly: false };
    }
    const prefix = mount.sub_path === undefined || mount.sub_path === "" ? "" : `/${mount.sub_path}`;
    return { texts: kept.texts, key: prefix + below, isReadOnly: kept.isReadOnly || mount.read_only === true };
  }
}
