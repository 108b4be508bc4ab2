/**
 * Pods' logs where a kubelet has them, for programs of this host that collect them:
 *
 *     ROOT/NAMESPACE_POD_UID/CONTAINER/ATTEMPT.log            the newest segment of a container's log
 *     ROOT/../containers/POD_NAMESPACE_CONTAINER-ID.log       a link to that
 *
 * The first are hard links: who is given /var/log alone reads them. Where the backend's state is on another file system
 * they are links by name. A log that is rotated is another file from then on, as a kubelet's.
 */
import { statSync } from "node:fs";
import { link, lstat, mkdir, readdir, readlink, rename, rm, symlink } from "node:fs/promises";
import { dirname, join } from "node:path";
import {
  LABEL_NAMESPACE,
  LABEL_POD,
  LABEL_UID,
  type MachineSpec,
  type Logger,
} from "../../../../src/provider/kit/index.ts";
import type { ContainerRef, HostProblem } from "../../engine.ts";
import { isMissing } from "../../host/files.ts";

/** In the folder of an instance: leads to where its log is shown. */
const SHOWN = ".log.shown";
const FRESH = ".fresh";
/** What may be a name of a folder; a client may label machines with anything. */
const NAME = /^[A-Za-z0-9](?:[-.A-Za-z0-9]{0,252})$/;

type Instance = Pick<ContainerRef, "name" | "attempt" | "dir">;

export class PodLogs {
  readonly #root: string;
  readonly #logger: Logger;

  constructor(root: string, logger: Logger) {
    this.#root = root;
    this.#logger = logger;
  }

  /** What there is to say when the logs are kept elsewhere than on the folder's file system. */
  static check(root: string, stateDir: string): HostProblem[] {
    if (deviceOf(root) === deviceOf(stateDir)) return [];
    return [
      {
        fatal: false,
        problem: `engine.host.podLogs ${root} is on another file system than stateDir ${stateDir}: pods' logs are links there that lead to stateDir`,
        cure: "have both on one file system, or mount stateDir too, at its own path, in what collects logs",
      },
    ];
  }

  /** Before the instance's log has its first segment. Nothing of it fails a container. */
  async begin({ labels }: MachineSpec, instance: Instance): Promise<void> {
    const folder = this.#folder(labels);
    if (folder === undefined || !NAME.test(instance.name)) return;
    await this.#quietly(async () => {
      const own = join(folder, instance.name);
      await mkdir(own, { recursive: true, mode: 0o755 });
      // As a kubelet: the last one that has ended stays.
      for (const name of await readdir(own)) {
        const attempt = /^(\d+)\.log$/.exec(name)?.[1];
        if (attempt !== undefined && Number(attempt) < instance.attempt - 1) await this.#removeShown(join(own, name));
      }
      await rm(join(instance.dir, SHOWN), { force: true });
      await symlink(join(own, `${instance.attempt}.log`), join(instance.dir, SHOWN));
    });
  }

  /** Once the runtime has told its id of the container. */
  async named({ labels }: MachineSpec, { name, dir }: Instance, containerId: string): Promise<void> {
    const shown = await shownAs(dir);
    if (shown === undefined) return;
    await this.#quietly(async () => {
      await mkdir(this.#links, { recursive: true, mode: 0o755 });
      const link = join(this.#links, `${labels[LABEL_POD]}_${labels[LABEL_NAMESPACE]}_${name}-${containerId}.log`);
      await rm(link, { force: true });
      await symlink(shown, link);
    });
  }

  /** When nothing of the machine is left. */
  async remove({ labels }: MachineSpec): Promise<void> {
    const folder = this.#folder(labels);
    if (folder === undefined) return;
    await this.#quietly(async () => {
      await this.#removeLinks((target) => target.startsWith(`${folder}/`));
      await rm(folder, { recursive: true, force: true });
    });
  }

  get #links(): string {
    return join(dirname(this.#root), "containers");
  }

  #folder(labels: MachineSpec["labels"]): string | undefined {
    const parts = [LABEL_NAMESPACE, LABEL_POD, LABEL_UID].map((label) => labels[label] ?? "");
    return parts.every((part) => NAME.test(part)) ? join(this.#root, parts.join("_")) : undefined;
  }

  async #removeShown(path: string): Promise<void> {
    await this.#removeLinks((target) => target === path);
    await rm(path, { force: true });
  }

  async #removeLinks(isTheirs: (target: string) => boolean): Promise<void> {
    for (const name of await readdir(this.#links).catch(() => [])) {
      const path = join(this.#links, name);
      const target = await readlink(path).catch(() => "");
      if (isTheirs(target)) await rm(path, { force: true });
    }
  }

  async #quietly(work: () => Promise<void>): Promise<void> {
    await work().catch((thrown: unknown) =>
      this.#logger.warn({ err: thrown }, "Pods' logs cannot be shown in engine.host.podLogs"),
    );
  }
}

/** Shows the instance's newest segment where its log is shown, if it is. @param dir of the instance */
export async function showLog(dir: string, segment: string): Promise<void> {
  const shown = await shownAs(dir);
  if (shown === undefined) return;
  const fresh = join(dirname(shown), FRESH);
  await rm(fresh, { force: true });
  await link(segment, fresh).catch(async (thrown: NodeJS.ErrnoException) => {
    if (thrown.code !== "EXDEV") throw thrown;
    await symlink(segment, fresh);
  });
  // Of two names of one file, rename takes neither away.
  const [now, wanted] = await Promise.all([lstat(shown).catch(() => undefined), lstat(fresh)]);
  if (now?.ino === wanted.ino && now.dev === wanted.dev) await rm(fresh, { force: true });
  else await rename(fresh, shown);
}

async function shownAs(dir: string): Promise<string | undefined> {
  try {
    return await readlink(join(dir, SHOWN));
  } catch (thrown) {
    if (isMissing(thrown)) return undefined;
    throw thrown;
  }
}

/** Of the nearest folder that is there. */
function deviceOf(path: string): number {
  const found = statSync(path, { throwIfNoEntry: false });
  return found === undefined ? deviceOf(dirname(path)) : found.dev;
}
