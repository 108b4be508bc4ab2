/**
 * Static pods: each file of a folder is a pod of this node. Unlike a kubelet, the agent runs nothing but what the API
 * server has: it makes a mirror pod of each file, bound to its Node, and from there it is a pod as every other, whose
 * machine is made by the same protocol. Nothing of it is remembered: which pod is of which file, and of which content,
 * stands in the pods' annotations.
 */
import { isAlreadyExists, isConflict, isKubeApiError, saysNotFound } from "../kube/errors.ts";
import type { EventRecorder } from "../kube/events.ts";
import type { Kube } from "../kube/kube.ts";
import { podPath, resourcePath } from "../kube/paths.ts";
import { isDeleting, uidOf } from "../kube/pod.ts";
import type { Store } from "../kube/store.ts";
import type { Pod } from "../kube/wire.ts";
import type { Logger } from "../telemetry/logger.ts";
import { pause } from "../util/abort.ts";
import type { Clock } from "../util/clock.ts";
import { doubledMs } from "../util/doubled.ts";
import { toError } from "../util/errors.ts";
import { cutBytes } from "../util/text.ts";
import { mirrorOf, mirrorPod, type StaticPod } from "./static-pod-file.ts";
import type { FileLook, FolderLook } from "./static-pod-folder.ts";

/**
 * A file that is the same for so long is taken.
 * @internal
 */
export const LOOK_MS = 2_000;
/** Without a folder there is something to do at the start at most. */
const REST_MS = 60_000;
/** The watch brings a pod that was made; until then it is not made again. */
const ARRIVES_MS = 10_000;
const RETRY_MS = { first: 10_000, max: 300_000 };
/** So many failures that may pass are not told of. */
const PASSING_TRIES = 2;
const REMIND_MS = 300_000;
const MAX_MESSAGE_BYTES = 1024;

interface StaticPodsOptions {
  /** Undefined: this node has no static pods, and those that it had go. */
  folder: { look(): Promise<FolderLook> } | undefined;
  nodeName: string;
  kube: Kube;
  /** The node's pods. */
  pods: Pick<Store<Pod>, "hasSynced" | "list" | "getByName">;
  /** Of the Node; undefined while it is not registered. */
  nodeUid: () => string | undefined;
  /** Its pods go with it, and none may come. */
  isLeaving: () => boolean;
  events: EventRecorder;
  clock: Clock;
  logger: Logger;
}

type Listed = ReadonlyMap<string, FileLook>;

/** What did not go well with a file's pod. */
interface Setback {
  hash: string;
  count: number;
  at: number;
  /** Monotonic time of the next try. */
  until: number;
  /** Of the pod that failed. */
  uid?: string | undefined;
}

export class StaticPods {
  readonly #options: StaticPodsOptions;
  /** By `namespace/name`: until when a pod that was made need not have been seen. */
  readonly #made = new Map<string, number>();
  readonly #setbacks = new Map<string, Setback>();
  /** By UID: of pods that could not be removed, how often, and when that is tried again. */
  readonly #unremoved = new Map<string, { count: number; until: number }>();
  /** What was told last, by file. */
  readonly #told = new Map<string, { fault: string; at: number }>();

  constructor(options: StaticPodsOptions) {
    this.#options = options;
  }

  /** Until the signal aborts. For the one agent that acts as the node. */
  async run(signal: AbortSignal): Promise<void> {
    const { folder, pods, clock, logger } = this.#options;
    await pods.hasSynced(signal).catch(() => undefined);
    while (!signal.aborted) {
      await this.#look(signal).catch((thrown: unknown) => {
        if (!signal.aborted) logger.warn({ err: thrown }, "Static pods could not be looked at and will be again");
      });
      await pause(clock, folder === undefined ? REST_MS : LOOK_MS, signal);
    }
  }

  async #look(signal: AbortSignal): Promise<void> {
    const { folder, pods, isLeaving, clock } = this.#options;
    if (isLeaving()) return;
    const look: FolderLook = (await folder?.look()) ?? { kind: "listed", files: new Map() };
    if (look.kind === "unknown") {
      this.#tell("", look.fault);
      return;
    }
    this.#told.delete("");
    for (const known of [this.#told, this.#setbacks])
      for (const file of known.keys()) if (!look.files.has(file)) known.delete(file);
    const there = new Set(pods.list().map(uidOf));
    for (const uid of this.#unremoved.keys()) if (!there.has(uid)) this.#unremoved.delete(uid);
    const now = clock.monotonic();
    for (const [key, until] of this.#made) if (now >= until) this.#made.delete(key);
    const faults = new Map<string, string>();
    const wanted = wantedPods(look.files, faults);
    for (const pod of pods.list()) await this.#keepOrRemove(pod, look.files, wanted, signal);
    for (const [file, pod] of wanted) {
      const fault = await this.#create(file, pod, look.files, signal);
      if (fault !== undefined) faults.set(file, fault);
    }
    for (const [file, { kind }] of look.files) {
      const fault = faults.get(file);
      if (fault !== undefined) this.#tell(file, fault);
      // What is being tried again later is told of until it was done.
      else if (kind === "pod" && !this.#setbacks.has(file)) this.#told.delete(file);
    }
  }

  async #keepOrRemove(
    pod: Pod,
    files: Listed,
    wanted: ReadonlyMap<string, StaticPod>,
    signal: AbortSignal,
  ): Promise<void> {
    const { nodeName, kube, clock, logger } = this.#options;
    const mirror = mirrorOf(pod, nodeName);
    if (mirror === undefined || isDeleting(pod)) return;
    const look = files.get(mirror.file);
    if (look !== undefined && look.kind !== "pod") return;
    const why = look === undefined ? "its file is gone" : this.#whyRemove(pod, mirror, wanted.get(mirror.file));
    if (why === undefined) return;
    const { namespace = "", name = "" } = pod.metadata ?? {};
    const uid = uidOf(pod);
    const before = this.#unremoved.get(uid);
    if (before !== undefined && clock.monotonic() < before.until) return;
    logger.info({ namespace, pod: name, uid, file: mirror.file, why }, "A static pod is removed");
    try {
      const body = { preconditions: { uid } };
      await kube.request({ method: "DELETE", path: podPath(namespace, name), body, signal, metadataOnly: true });
    } catch (thrown) {
      // It is gone, or another one by now.
      if (saysNotFound(thrown, { resource: "pods", name }) || isConflict(thrown)) return;
      if (signal.aborted) return;
      const count = (before?.count ?? -1) + 1;
      const waitMs = doubledMs({ first: LOOK_MS, max: RETRY_MS.max }, count);
      this.#unremoved.set(uid, { count, until: clock.monotonic() + waitMs });
      logger.warn({ namespace, pod: name, err: thrown }, "A static pod could not be removed and will be tried again");
    }
  }

  /** @param wanted what its file says now; undefined when another file has the same pod, and counts */
  #whyRemove(
    pod: Pod,
    { file, hash }: { file: string; hash: string },
    wanted: StaticPod | undefined,
  ): string | undefined {
    const { namespace, name, generation = 0 } = pod.metadata ?? {};
    if (wanted === undefined) return "another file has the same pod";
    if (wanted.name !== name || wanted.namespace !== namespace) return "its file has another pod now";
    if (wanted.hash !== hash) return "its file has changed";
    const isChanged = generation > 1;
    const hasFailed = pod.status?.phase === "Failed" && pod.spec?.restartPolicy !== "Never";
    if (!isChanged && !hasFailed) return undefined;
    // No controller of the cluster's makes another one; and what changed this one may change each that comes.
    if (this.#setbacks.get(file)?.uid !== uidOf(pod)) this.#failed(file, hash, uidOf(pod));
    // The file says what runs, not who may write pods: it does not run on until the next one may be made.
    if (isChanged) return "somebody changed its specification";
    return this.#mayTry(file, hash) ? "it has failed" : undefined;
  }

  /** @returns what keeps it from being made */
  async #create(file: string, pod: StaticPod, files: Listed, signal: AbortSignal): Promise<string | undefined> {
    const { kube, pods, nodeName, nodeUid, clock, logger } = this.#options;
    const { namespace, name, hash } = pod;
    const key = `${namespace}/${name}`;
    const existing = pods.getByName(namespace, name);
    if (existing !== undefined) {
      this.#made.delete(key);
      return isDeleting(existing) ? undefined : whyTaken(mirrorOf(existing, nodeName), file, key, files);
    }
    const uid = nodeUid();
    const isOnItsWay = clock.monotonic() < (this.#made.get(key) ?? -Infinity);
    if (uid === undefined || isOnItsWay || !this.#mayTry(file, hash)) return undefined;
    try {
      const body = mirrorPod(pod, { name: nodeName, uid });
      await kube.request({ method: "POST", path: resourcePath({ resource: "pods", namespace }), body, signal });
      this.#made.set(key, clock.monotonic() + ARRIVES_MS);
      this.#told.delete(file);
      logger.info({ namespace, pod: name, file }, "A static pod was made");
      return undefined;
    } catch (thrown) {
      if (signal.aborted) return undefined;
      this.#failed(file, hash);
      // An API server that is away for a moment refuses nothing.
      const isPassing = isKubeApiError(thrown) && thrown.retryable && !isAlreadyExists(thrown);
      if (isPassing && this.#setbacks.get(file)!.count < PASSING_TRIES) return undefined;
      const cure = "correct the file, or what refuses it, and it will be tried again";
      return `${key}: the API server has not taken its pod: ${toError(thrown).message}; ${cure}`;
    }
  }

  #mayTry(file: string, hash: string): boolean {
    const setback = this.#setbacks.get(file);
    if (setback?.hash !== hash) return true;
    return this.#options.clock.monotonic() >= setback.until;
  }

  #failed(file: string, hash: string, uid?: string): void {
    const now = this.#options.clock.monotonic();
    const before = this.#setbacks.get(file);
    const isMore = before?.hash === hash && now - before.at < 3 * RETRY_MS.max;
    const count = isMore ? before.count + 1 : 0;
    this.#setbacks.set(file, { hash, count, at: now, until: now + doubledMs(RETRY_MS, count), uid });
  }

  /** Of a file, or of the folder (""). */
  #tell(file: string, fault: string): void {
    const { events, nodeName, clock, logger } = this.#options;
    const before = this.#told.get(file);
    if (before?.fault === fault && clock.monotonic() - before.at < REMIND_MS) return;
    this.#told.set(file, { fault, at: clock.monotonic() });
    const message = cutBytes(
      file === "" ? `staticPodPath ${fault}` : `static pod ${file}: ${fault}`,
      MAX_MESSAGE_BYTES,
    );
    logger.warn({ file, fault }, "A static pod cannot be made of its file; what ran by it goes on");
    events.event(
      { apiVersion: "v1", kind: "Node", name: nodeName, uid: nodeName },
      "Warning",
      "StaticPodRefused",
      message,
    );
  }
}

/** By file: of two that have the same pod, the first by name counts. */
function wantedPods(files: Listed, faults: Map<string, string>): Map<string, StaticPod> {
  const wanted = new Map<string, StaticPod>();
  const first = new Map<string, string>();
  for (const [file, look] of files) {
    if (look.kind === "fault") faults.set(file, look.fault);
    if (look.kind !== "pod") continue;
    const key = `${look.pod.namespace}/${look.pod.name}`;
    const other = first.get(key);
    if (other === undefined) {
      first.set(key, file);
      wanted.set(file, look.pod);
    } else faults.set(file, `metadata.name: ${other} has the pod ${key} too; name one of them otherwise`);
  }
  return wanted;
}

/** @param mirror of the pod that has the name; undefined for one that this node has not made */
function whyTaken(mirror: { file: string } | undefined, file: string, key: string, files: Listed): string | undefined {
  if (mirror?.file === file) return undefined;
  if (mirror === undefined)
    return `metadata.name: there is a pod ${key} that is none of this folder's; delete it, or name this one otherwise`;
  // That of a file that is gone is being removed.
  return files.has(mirror.file)
    ? `metadata.name: ${key} is the pod of ${mirror.file}; name one of them otherwise`
    : undefined;
}
