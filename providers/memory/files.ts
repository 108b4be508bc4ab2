/**
 * Files that the programs of one machine have written: those below a mount are the volume's, others the container's.
 */
import type { ContainerSpec, MachinePatch } from "../../src/provider/kit/index.ts";

type FileEntry = NonNullable<MachinePatch["files"]>[number]["files"][number];

export class MachineFiles {
  readonly #texts = new Map<string, string>();

  /** Undefined when there is no such file. */
  read(container: ContainerSpec, path: string): string | undefined {
    return this.#texts.get(keyOf(container, path));
  }

  write(container: ContainerSpec, path: string, text: string): void {
    this.#texts.set(keyOf(container, path), text);
  }

  /** What is given with a volume takes the place of all that it had. */
  replace(volume: string, files: readonly FileEntry[]): void {
    const prefix = `volume ${volume} /`;
    for (const key of this.#texts.keys()) if (key.startsWith(prefix)) this.#texts.delete(key);
    for (const { path, content_b64 } of files)
      this.#texts.set(prefix + path, Buffer.from(content_b64, "base64").toString());
  }

  remove(container: ContainerSpec, path: string): void {
    this.#texts.delete(keyOf(container, path));
  }
}

function keyOf({ name, mounts = [] }: ContainerSpec, path: string): string {
  const mount = mounts.find((candidate) => path.startsWith(`${candidate.path}/`));
  return mount === undefined ? `container ${name} ${path}` : `volume ${mount.volume} ${path.slice(mount.path.length)}`;
}
