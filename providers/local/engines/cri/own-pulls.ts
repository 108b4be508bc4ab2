/**
 * Pulls of a containerd of our own. What a name means, and whether it is taken, is asked and judged here, as for every
 * other engine (images/registry.ts); layers are fetched here (one-pull.ts), and containerd has them from this backend
 * (granted-registry.ts) and unpacks them.
 *
 * containerd has each layer once, and gives it to every image that names it. Knowing a digest gives no right to what it
 * names: of what it has already, a repository that has not sent it before is asked for all of it once more.
 */
import { mkdir, mkdtemp } from "node:fs/promises";
import { join } from "node:path";
import { type Clock, type RegistryAuth, SharedPlaces } from "../../../../src/provider/kit/index.ts";
import { ContainerError } from "../../engine.ts";
import { readFileIfExists, writeFileAtomic } from "../../host/files.ts";
import { removeTree } from "../../host/remove-tree.ts";
import type { WantedImage } from "../../images/download.ts";
import { ImageDisk, MIN_FREE_BYTES } from "../../images/disk.ts";
import { UnpackBudget } from "../../images/layer-meter.ts";
import { type Descriptor, distinct } from "../../images/manifest.ts";
import { type ImageReference, repository } from "../../images/reference.ts";
import { pullError, type Registry, type ResolvedImage } from "../../images/registry.ts";
import { SharedPulls } from "../../images/shared-pulls.ts";
import type { CriClient } from "./client.ts";
import { GrantedRegistry } from "./granted-registry.ts";
import { OnePull } from "./one-pull.ts";
import { allowedRegistries, type PullLimits, withDefaults } from "../../images/pull-limits.ts";

interface OwnPullsOptions extends PullLimits {
  client: CriClient;
  clock: Clock;
  /** What repositories have sent is kept in it. */
  dir: string;
  /** The folder whose file system the runtime keeps images on. */
  imageDir: () => Promise<string>;
  /** Tells the runtime where the only registry is. */
  announce: (url: string) => Promise<void>;
  /** Frees so many bytes where it can. */
  makeRoom: (bytes: number) => Promise<unknown>;
  /** Whether the runtime has an image whole, by its id. */
  has: (id: string) => Promise<boolean>;
}

/** Registries asked at a time, for one tenant, what a name means. */
const QUESTIONS = 8;
const ANSWER_MS = 60_000;
/** Repositories whose layers are known to be theirs; of the one that was asked longest ago they are asked for again. */
const REPOSITORIES_KEPT = 2000;
const LAYERS_KEPT = 1000;

/** By repository: the digest of each layer that it has sent, and of what that unpacks to. */
type Sent = Record<string, Record<string, string>>;

export class OwnPulls {
  readonly #options: OwnPullsOptions;
  readonly #registry: Registry;
  readonly #granted = new GrantedRegistry();
  readonly #questions = new SharedPlaces(QUESTIONS);
  readonly #pulls: SharedPulls<void>;
  readonly #limits: ReturnType<typeof withDefaults>;
  #sent: Promise<Sent> | undefined;
  #saved: Promise<void> = Promise.resolve();
  #cleared: Promise<void> | undefined;

  constructor(options: OwnPullsOptions) {
    this.#options = options;
    this.#limits = withDefaults(options);
    this.#registry = allowedRegistries(options);
    this.#pulls = new SharedPulls((wanted, signal) => this.#fetch(wanted, signal), this.#limits.parallelPulls);
  }

  async close(): Promise<void> {
    await this.#granted.close();
  }

  /**
   * Has the runtime have the image whole.
   * @returns what the name means now
   * @throws ContainerError
   */
  async pull(
    image: string,
    reference: ImageReference,
    { auth, tenant, signal: cancelled }: { auth: readonly RegistryAuth[]; tenant: string; signal: AbortSignal },
  ): Promise<ResolvedImage> {
    const { clock } = this.#options;
    const { pullTimeoutMs } = this.#limits;
    const late = new AbortController();
    const lateBy = (ms: number, reason: ContainerError["reason"], text: string) =>
      clock.after(ms, () => late.abort(new ContainerError(reason, text)));
    const signal = AbortSignal.any([cancelled, late.signal]);
    const noEnd = lateBy(
      pullTimeoutMs,
      "ErrImagePull",
      `${image}: the pull took longer than ${pullTimeoutMs / 1000} s`,
    );
    try {
      const resolved = await this.#questions.run(
        tenant,
        async () => {
          const why = `no answer within ${ANSWER_MS / 1000} s`;
          const text = `image pull failed for ${image} because the registry is unavailable: ${why}`;
          const noAnswer = lateBy(ANSWER_MS, "RegistryUnavailable", text);
          try {
            return await this.#registry.resolve(image, reference, auth, signal);
          } finally {
            noAnswer();
          }
        },
        signal,
      );
      await this.#pulls.pull({ image, reference, resolved }, { tenant, signal });
      return resolved;
    } finally {
      noEnd();
    }
  }

  async #fetch(wanted: WantedImage, signal: AbortSignal): Promise<void> {
    const { client: cri, clock, imageDir, announce } = this.#options;
    const { image, reference, resolved } = wanted;
    const sent = (await this.#load())[repository(reference)] ?? {};
    const missing = distinct(resolved.layers).filter(({ digest }) => sent[digest] === undefined);
    if (missing.length === 0 && (await this.#options.has(resolved.config.digest))) return;
    await this.#assertRoom(image, resolved, missing);
    const dir = await this.#workDir();
    try {
      await this.#registry.asking(reference, resolved.credential, async (client) => {
        const budget = new UnpackBudget(this.#limits.unpacked);
        const one = new OnePull({ clock, wanted, client, granted: this.#granted, budget, dir });
        const disk = new ImageDisk({ dir: await imageDir(), clock });
        await announce(await this.#granted.url());
        await disk.guard(image, one.excess, signal, async (guarded) => {
          await this.#remember(reference, await one.run(cri, missing, guarded));
        });
      });
    } catch (thrown) {
      throw pullError(image, thrown, signal);
    } finally {
      await removeTree(dir);
    }
  }

  /** A folder of a pull's own. At the first, what a killed backend has left of others' is removed. */
  async #workDir(): Promise<string> {
    const folder = join(this.#options.dir, "pulls");
    this.#cleared ??= removeTree(folder);
    await this.#cleared;
    await mkdir(folder, { recursive: true, mode: 0o700 });
    return await mkdtemp(join(folder, "pull-"));
  }

  /** By what the registry announces, before anything is fetched. */
  async #assertRoom(image: string, { layers }: ResolvedImage, missing: readonly Descriptor[]): Promise<void> {
    const { clock, imageDir, makeRoom } = this.#options;
    const sum = (of: readonly Descriptor[]) => of.reduce((bytes, { size }) => bytes + size, 0);
    const refuse = (why: string) => new ContainerError("ErrImagePull", `${image}: ${why}`);
    const { maxImageBytes } = this.#limits;
    if (sum(layers) > maxImageBytes)
      throw refuse(`its layers have ${sum(layers)} bytes, more than the ${maxImageBytes} that this host accepts`);
    // As they are sent, and once more in the runtime's store.
    const roomBytes = 2 * sum(missing) + MIN_FREE_BYTES;
    await makeRoom(roomBytes);
    const { freeBytes } = await new ImageDisk({ dir: await imageDir(), clock }).use();
    if (freeBytes < roomBytes)
      throw refuse(
        `no space left on this host's image disk: ${sum(missing)} bytes are to be fetched, ${freeBytes} are free, and ${MIN_FREE_BYTES} of them are kept free`,
      );
  }

  get #file(): string {
    return join(this.#options.dir, "sent.json");
  }

  /** What cannot be read is asked for again. */
  #load(): Promise<Sent> {
    const read = async () => JSON.parse((await readFileIfExists(this.#file)) ?? "{}") as Sent;
    return (this.#sent ??= read().catch(() => ({})));
  }

  async #remember(reference: ImageReference, learned: Record<string, string>): Promise<void> {
    const all = await this.#load();
    const name = repository(reference);
    const layers = Object.entries({ ...all[name], ...learned }).slice(-LAYERS_KEPT);
    const { [name]: _before, ...others } = all;
    const kept = Object.entries(others).slice(1 - REPOSITORIES_KEPT);
    const now = Object.fromEntries([...kept, [name, Object.fromEntries(layers)]]);
    this.#sent = Promise.resolve(now);
    const save = () => writeFileAtomic(this.#file, JSON.stringify(now), 0o600);
    this.#saved = this.#saved.then(save, save);
    await this.#saved;
  }
}
