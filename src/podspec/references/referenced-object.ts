/**
 * One configMap or secret, kept up to date by its name: listed and watched by that name alone, which the Node
 * authorizer allows for what the node's pods refer to. Where listing is not allowed but reading is, it is read every
 * minute.
 *
 * Only the API server's own word makes it absent: a list without it, or a 404 that says so. Every other failure is
 * "unknown", and takes nothing away that was known before. After refusals it is asked for less and less often: at first
 * soon, because the authorizer learns of a pod a moment after the node does, and in the end once a minute.
 */
import { isForbidden, saysNotFound } from "../../kube/errors.ts";
import type { Kube } from "../../kube/kube.ts";
import { InvalidNameError, resourcePath } from "../../kube/paths.ts";
import { Reflector } from "../../kube/reflector.ts";
import { Store } from "../../kube/store.ts";
import type { ConfigMap, Secret } from "../../kube/wire.ts";
import { Backoff } from "../../queue/backoff.ts";
import type { Logger } from "../../telemetry/logger.ts";
import { linkAbort, pause, unlessAborted } from "../../util/abort.ts";
import type { Clock } from "../../util/clock.ts";
import { toError } from "../../util/errors.ts";
import type { Random } from "../../util/random.ts";
import { POD_LIMITS } from "../budget.ts";
import type { Lookup } from "../types.ts";

type Referenced = ConfigMap | Secret;

/** Which object: `resource` is `configmaps` or `secrets`. */
interface ObjectName {
  resource: "configmaps" | "secrets";
  namespace: string;
  name: string;
}

interface ReferencedObjectOptions {
  kube: Kube;
  clock: Clock;
  random: Random;
  logger: Logger;
  /** Shared by all objects: where lists are refused. */
  lists: ListPermissions;
  /** Called when the object has changed, after the first answer. */
  onChange: () => void;
  /** Reading it was refused. */
  onDenied?: (() => void) | undefined;
}

/** Without permission to list and watch, an object is read again this often. */
const POLL_MS = 60_000;
const REFUSED_MS = { first: 100, max: 60_000 };
/**
 * So often in a row, within 0.7 s, a refusal may be for no other reason than that the authorizer does not know of the
 * pod yet.
 */
const EARLY_REFUSALS = 4;
/** A watch that held for so long was allowed. */
const SOUND_MS = 10_000;
const LISTS_AGAIN_MS = 10 * 60_000;

/**
 * Namespaces in which reading is allowed and listing is not, as with the least role that a service account can be
 * given: there, no list is asked for before each read. Looked at again after ten minutes.
 */
export class ListPermissions {
  readonly #clock: Clock;
  readonly #refusedUntil = new Map<string, number>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  mayAsk({ resource, namespace }: ObjectName): boolean {
    return this.#clock.monotonic() >= (this.#refusedUntil.get(`${namespace}/${resource}`) ?? -Infinity);
  }

  refused({ resource, namespace }: ObjectName): void {
    this.#refusedUntil.set(`${namespace}/${resource}`, this.#clock.monotonic() + LISTS_AGAIN_MS);
  }
}

export class ReferencedObject {
  readonly #what: ObjectName;
  readonly #options: ReferencedObjectOptions;
  readonly #stopped = new AbortController();
  readonly #answered = Promise.withResolvers<void>();
  #lookup: Lookup<Referenced> | undefined;
  #bytes = 0;
  #started = false;
  /** Refused reads since the last that was answered. */
  #refusals = 0;
  /** Refused lists of an object that could be read. */
  #refusedLists = 0;
  /** Monotonic time of the last read that was answered. */
  #readAt = -Infinity;

  constructor(what: ObjectName, options: ReferencedObjectOptions) {
    this.#what = what;
    this.#options = options;
  }

  /** What is known; undefined before the first answer. */
  get lookup(): Lookup<Referenced> | undefined {
    return this.#lookup;
  }

  /** Bytes of what it holds. */
  get bytes(): number {
    return this.#bytes;
  }

  /** True when `answer` was asked for. */
  get isFollowed(): boolean {
    return this.#started;
  }

  /** Changes with what is known. */
  get version(): string {
    if (this.#lookup?.kind !== "found") return this.#lookup?.kind ?? "unread";
    const { uid = "", resourceVersion = "" } = this.#lookup.object.metadata ?? {};
    return `${uid}/${resourceVersion}`;
  }

  /** True while it is refused that would be allowed in a moment, if this is only because its pod is new. */
  get isEarly(): boolean {
    return this.#lookup?.kind === "unknown" && this.#refusals > 0 && this.#refusals < EARLY_REFUSALS;
  }

  /** Begins to follow the object, if that was not begun; resolves with the first answer. @throws the signal's reason */
  async answer(signal: AbortSignal): Promise<void> {
    if (!this.#started) {
      this.#started = true;
      void this.#follow();
    }
    await unlessAborted(this.#answered.promise, signal);
  }

  /** It is not needed any more: callers that still wait for an answer get none. */
  stop(): void {
    this.#stopped.abort();
    this.#answered.resolve();
  }

  async #follow(): Promise<void> {
    const { clock, random, lists } = this.#options;
    const { signal } = this.#stopped;
    const problem = nameProblem(this.#what);
    if (problem !== undefined) {
      this.#learn({ kind: "unknown", message: problem });
      return;
    }
    const backoff = new Backoff({
      initialMs: REFUSED_MS.first,
      maxMs: REFUSED_MS.max,
      jitter: "up",
      clock,
      random,
    });
    while (!signal.aborted) {
      const begunAt = clock.monotonic();
      const mayList = lists.mayAsk(this.#what);
      const isListed = mayList && (await this.#watch());
      if (signal.aborted || this.#isFinal()) return;
      if (clock.monotonic() - begunAt >= SOUND_MS) backoff.reset();
      if (this.#pollInMs() <= 0) await this.#read();
      if (signal.aborted || this.#isFinal()) return;
      const isReadable = this.#lookup?.kind !== "unknown";
      if (mayList && !isListed && isReadable && ++this.#refusedLists >= EARLY_REFUSALS) lists.refused(this.#what);
      const pollMs = this.#pollInMs() <= 0 ? Infinity : this.#pollInMs() * (1 + random() / 2);
      const retryMs = lists.mayAsk(this.#what) || pollMs === Infinity ? backoff.next() : Infinity;
      await pause(clock, Math.min(retryMs, pollMs), signal);
    }
  }

  /** Milliseconds until it is to be read again; not positive when that is due. */
  #pollInMs(): number {
    return this.#readAt + POLL_MS - this.#options.clock.monotonic();
  }

  /**
   * Lists and watches until that is refused, the object can no longer change, or it is not needed.
   *
   * @returns whether it was listed
   */
  async #watch(): Promise<boolean> {
    const { kube, clock, random } = this.#options;
    const { resource, namespace, name } = this.#what;
    const logger = quiet(this.#options.logger);
    const store = new Store<Referenced>({ logger });
    const over = new AbortController();
    using linked = linkAbort(this.#stopped.signal, over.signal);
    store.onChange((change) => {
      this.#learn(change.type === "delete" ? { kind: "absent" } : { kind: "found", object: change.object });
      if (this.#isFinal()) over.abort();
    });
    const reflector = new Reflector<Referenced>({
      kube,
      path: resourcePath({ resource, namespace }),
      query: { fieldSelector: `metadata.name=${name}` },
      store,
      clock,
      random,
      logger,
      accept: (object) => object.metadata?.name === name,
      onError: (error) => {
        if (isForbidden(error)) over.abort();
        else this.#learn({ kind: "unknown", message: error.message });
      },
    });
    store.hasSynced(linked.signal).then(
      () => {
        this.#readAt = clock.monotonic();
        this.#refusedLists = 0;
        if (store.size === 0) this.#learn({ kind: "absent" });
      },
      () => undefined,
    );
    await reflector.run(linked.signal);
    return store.synced;
  }

  /** Reads it by its name alone, where listing was refused. */
  async #read(): Promise<void> {
    const { kube, clock, logger, onDenied } = this.#options;
    const { resource, name } = this.#what;
    const { signal } = this.#stopped;
    try {
      const object = await kube.request<Referenced>({ method: "GET", path: resourcePath(this.#what), signal });
      this.#learn({ kind: "found", object });
    } catch (thrown) {
      if (signal.aborted) return;
      if (!saysNotFound(thrown, { resource, name })) {
        if (isForbidden(thrown)) {
          this.#refusals++;
          onDenied?.();
        }
        if (this.#lookup === undefined) logger.warn({ ...this.#what, err: thrown }, "A reference cannot be read");
        this.#learn({ kind: "unknown", message: toError(thrown).message });
        // From now on it is not only early.
        if (this.#refusals === EARLY_REFUSALS && this.#lookup?.kind === "unknown") this.#options.onChange();
        return;
      }
      this.#learn({ kind: "absent" });
    }
    this.#readAt = clock.monotonic();
  }

  #learn(lookup: Lookup<Referenced>): void {
    if (lookup.kind !== "unknown") this.#refusals = 0;
    // An object that was known once is not lost because a later read failed.
    else if (this.#lookup !== undefined && this.#lookup.kind !== "unknown") return;
    const [isFirst, before] = [this.#lookup === undefined, this.version];
    this.#lookup = lookup;
    this.#bytes = lookup.kind === "found" ? sizeOf(lookup.object) : 0;
    // Callers that wait for the first answer get it.
    if (isFirst) this.#answered.resolve();
    else if (before !== this.version) this.#options.onChange();
  }

  #isFinal(): boolean {
    return this.#lookup?.kind === "found" && this.#lookup.object.immutable === true;
  }
}

/** Why no object has this name; undefined when one may. */
function nameProblem(what: ObjectName): string | undefined {
  // The API server checks neither those of pull secrets nor those of secret volumes.
  if (what.name.length > POD_LIMITS.nameLength)
    return `invalid resource name: it has ${what.name.length} characters, a name has at most ${POD_LIMITS.nameLength}`;
  try {
    resourcePath(what);
    return undefined;
  } catch (thrown) {
    if (thrown instanceof InvalidNameError) return thrown.message;
    throw thrown;
  }
}

/** There are as many watches as objects, so the faults of each are logged at level debug alone. */
function quiet(logger: Logger): Logger {
  return {
    debug: (fields, message) => logger.debug(fields, message),
    info: (fields, message) => logger.debug(fields, message),
    warn: (fields, message) => logger.debug(fields, message),
    error: (fields, message) => logger.error(fields, message),
    child: (fields) => quiet(logger.child(fields)),
  };
}

/** Bytes of what an object holds, near enough: texts are mostly ASCII. */
function sizeOf(object: Referenced): number {
  const { data = {}, binaryData = {}, metadata: { annotations = {}, labels = {} } = {} } = object as ConfigMap;
  let bytes = 0;
  for (const part of [data, binaryData, annotations, labels])
    for (const [key, value] of Object.entries(part)) bytes += key.length + value.length;
  return bytes;
}
