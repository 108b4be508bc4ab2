/** The folders of a machine's container instances, `containers/NAME/ATTEMPT-RANDOM/`: shim files, log, termination. */
import { randomBytes } from "node:crypto";
import { mkdirSync, readdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import type { ContainerRef, MachineHome } from "../engine.ts";
import type { ContainerRecord } from "./record.ts";

export class InstanceFolders {
  readonly #dir: string;

  /** @param dir of the machine, absolute */
  constructor(dir: string) {
    this.#dir = join(dir, "containers");
  }

  /** A fresh folder for an instance that is about to be prepared. */
  make(name: string, attempt: number): ContainerRef & { folder: string } {
    const folder = `${attempt}-${randomBytes(6).toString("hex")}`;
    const dir = this.#path(name, folder);
    mkdirSync(dir, { recursive: true, mode: 0o700 });
    return { name, attempt, id: instanceId(name, folder), folder, dir };
  }

  /** The newest instance, of a container that has one. */
  newest(name: string, own: Readonly<ContainerRecord>): ContainerRef {
    return { name, attempt: own.attempt, id: own.id!, dir: this.#path(name, own.folder!) };
  }

  /** The folder of an instance, or undefined when there never was one or it is forgotten. */
  find(name: string, own: Readonly<ContainerRecord>, attempt: number): string | undefined {
    if (attempt < 0) return undefined;
    const folder = attempt === own.attempt ? own.folder : own.previousFolder;
    return folder === undefined ? undefined : this.#path(name, folder);
  }

  /**
   * The newest instance and the one before it are kept: `logs --previous`; and those of which an engine may still have
   * something, for nothing else tells that they are to be cleared.
   */
  forgetOld(name: string, own: Readonly<ContainerRecord>, isCleared: (ref: ContainerRef) => boolean): void {
    for (const ref of this.unrecorded(name, own)) if (isCleared(ref)) removeQuietly(ref.dir);
  }

  /** The newest instance and the one before it, as far as there are any. */
  recorded(name: string, { attempt, folder, previousFolder }: Readonly<ContainerRecord>): ContainerRef[] {
    const folders = [previousFolder, folder].filter((each) => each !== undefined);
    return folders.map((each) => ({
      name,
      attempt: each === folder ? attempt : attempt - 1,
      id: instanceId(name, each),
      dir: this.#path(name, each),
    }));
  }

  /** Instances of which there is only a folder: forgotten ones, and those that were prepared and never begun. */
  unrecorded(name: string, { folder, previousFolder }: Readonly<ContainerRecord>): ContainerRef[] {
    return readFolders(join(this.#dir, name))
      .filter((entry) => entry !== folder && entry !== previousFolder)
      .map((entry) => ({
        name,
        attempt: Number.parseInt(entry, 10),
        id: instanceId(name, entry),
        dir: this.#path(name, entry),
      }));
  }

  #path(name: string, folder: string): string {
    return join(this.#dir, name, folder);
  }
}

/** What an instance's shim is told to run, with the environment. It goes when the instance is concluded. */
export function launchFile(home: Pick<MachineHome, "secretDir">, { id }: Pick<ContainerRef, "id">): string {
  return join(home.secretDir, `launch-${id}.json`);
}

/** What cannot be removed now goes with the next instance, or with the machine. */
export function removeQuietly(dir: string): void {
  try {
    rmSync(dir, { recursive: true, force: true });
  } catch {
    // See above.
  }
}

/** Unique in the backend, and legal as the id of an OCI container. `folder` is `ATTEMPT-RANDOM`. */
function instanceId(name: string, folder: string): string {
  return `${name.slice(0, 40)}-${folder}`;
}

function readFolders(dir: string): string[] {
  try {
    return readdirSync(dir);
  } catch {
    return [];
  }
}
