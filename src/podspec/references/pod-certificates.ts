/**
 * Certificates of pods (kubelet: pkg/kubelet/podcertificate): for each source of a projected volume a key is made
 * here, a PodCertificateRequest asks its signer for the certificate, and both are the volume's files once that is
 * issued. They are kept in memory only: an agent that was restarted asks again, and machines keep the files that they
 * have until then.
 *
 * The requests of this node are listed and watched from the first pod on that wants one. A signer's refusal is final,
 * as in a kubelet; a certificate that was issued before stays in use.
 */
import { hoursToMilliseconds } from "date-fns/hoursToMilliseconds";
import { minutesToMilliseconds } from "date-fns/minutesToMilliseconds";
import { isNotFound } from "../../kube/errors.ts";
import type { Kube } from "../../kube/kube.ts";
import { resourcePath } from "../../kube/paths.ts";
import { aboutPod, uidOf } from "../../kube/pod.ts";
import { Reflector } from "../../kube/reflector.ts";
import { Store } from "../../kube/store.ts";
import type { KubeObject, Node, Pod } from "../../kube/wire.ts";
import { backoffMs } from "../../queue/backoff.ts";
import { SharedPlaces } from "../../queue/shared-places.ts";
import type { Logger } from "../../telemetry/logger.ts";
import { rfc3339, type Clock } from "../../util/clock.ts";
import { toError } from "../../util/errors.ts";
import { createKeyWithProof } from "../../util/key-proof.ts";
import { certificatesIn } from "../../util/pem.ts";
import type { Random } from "../../util/random.ts";
import type { CertificateBundle, CertificateWish, Lookup, PodEvent } from "../types.ts";

const RESOURCE = { group: "certificates.k8s.io", resource: "podcertificaterequests" } as const;
/** How long a request that nobody sees any more is waited for (kubelet: `assumeDeletedThreshold`). */
const ABANDON_MS = minutesToMilliseconds(10);
/** After this long without a new certificate its pod is told (kubelet: `refreshOverdueDuration`). */
const OVERDUE_MS = minutesToMilliseconds(10);
const MAX_JITTER_MS = minutesToMilliseconds(5);
/** How often what is due is looked at. A clock that jumps, or stood still, is noticed by then. */
const LOOK_MS = minutesToMilliseconds(1);
const RETRY = { initialMs: 2_000, maxMs: minutesToMilliseconds(5), jitter: "up" } as const;
/** Keys that are made at once for one namespace that is alone: the largest take a core for seconds. */
const PLACES = 1;
/** The life of a certificate whose signer names no end. */
const DEFAULT_LIFE_MS = hoursToMilliseconds(24);

interface Condition {
  readonly type: string;
  readonly reason?: string;
  readonly message?: string;
}

interface PodCertificateRequest extends KubeObject {
  readonly spec?: { readonly nodeName?: string };
  readonly status?: {
    readonly conditions?: readonly Condition[];
    readonly certificateChain?: string;
    readonly beginRefreshAt?: string;
    readonly notAfter?: string;
  };
}

interface PodCertificatesOptions {
  kube: Kube;
  nodeName: string;
  /** This node as the API server has it; undefined until it is registered. */
  node: () => Node | undefined;
  clock: Clock;
  random: Random;
  logger: Logger;
  /** A certificate of this pod was issued, replaced or refused. */
  onChange: (podUid: string) => void;
  event: (pod: Pod, event: PodEvent) => void;
}

/** A certificate in use. Times are wall-clock milliseconds: its signer's. */
interface Issued extends CertificateBundle {
  refreshAt: number;
  /** When it is said to be overdue. */
  overdueAt: number;
  notAfter: number;
}

/** A request under way. */
interface Pending {
  name: string;
  privateKey: string;
  /** Monotonic. */
  abandonAt: number;
}

/** What is known of one source's certificate. */
interface Source {
  wish: CertificateWish;
  issued: Issued | undefined;
  pending: Pending | undefined;
  /** Why there is no certificate, or no newer one. */
  problem: string;
  /** The signer has refused: it is not asked again. */
  isRefused: boolean;
  /** A key is being made, or a request sent. */
  isAsking: boolean;
  failures: number;
  cancelRetry: () => void;
  /** Grows with each certificate, and with what is said of it. */
  serial: number;
  /** Reasons of events that the pod was sent of this certificate. */
  told: Set<string>;
}

interface PodSources {
  pod: Pod;
  sources: Map<string, Source>;
  gone: AbortController;
}

const NOT_ISSUED = "credential bundle is not issued yet";

export class PodCertificates {
  readonly #options: PodCertificatesOptions;
  readonly #store: Store<PodCertificateRequest>;
  readonly #pods = new Map<string, PodSources>();
  /** By the names of requests under way, with their namespaces. */
  readonly #pending = new Map<string, { pod: PodSources; source: Source }>();
  readonly #places = new SharedPlaces(PLACES);
  readonly #closed = new AbortController();
  #isStarted = false;
  #cancelLook: (() => void) | undefined;

  constructor(options: PodCertificatesOptions) {
    this.#options = options;
    this.#store = new Store<PodCertificateRequest>({ logger: options.logger });
    this.#store.onChange(({ type, object }) => {
      const found = this.#pending.get(requestKey(object));
      if (found === undefined) return;
      if (type === "delete") this.#abandon(found.pod, found.source, "was deleted");
      else this.#advance(found.pod, found.source, object);
    });
  }

  /** Watches, asks and renews nothing any more. */
  close(): void {
    this.#closed.abort();
    for (const uid of this.#pods.keys()) this.release(uid);
  }

  /** What there is for the wishes now, by their keys. What there is not yet is asked for, and told of when it comes. */
  get(pod: Pod, wishes: readonly CertificateWish[]): Map<string, Lookup<CertificateBundle>> {
    const uid = uidOf(pod);
    if (wishes.length === 0) return new Map();
    if (this.#closed.signal.aborted)
      return new Map(wishes.map(({ key }) => [key, { kind: "unknown", message: "the agent is shutting down" }]));
    let held = this.#pods.get(uid);
    if (held === undefined) this.#pods.set(uid, (held = { pod, sources: new Map(), gone: new AbortController() }));
    this.#start();
    const found = new Map<string, Lookup<CertificateBundle>>();
    for (const wish of wishes) {
      let source = held.sources.get(wish.key);
      if (source === undefined) {
        held.sources.set(wish.key, (source = newSource(wish)));
        void this.#ask(held, source);
      }
      const { issued, problem } = source;
      found.set(
        wish.key,
        issued === undefined ? { kind: "unknown", message: problem } : { kind: "found", object: issued },
      );
    }
    return found;
  }

  /** Changes with each certificate of the pod; undefined while one of those wished for was never asked for. */
  version(podUid: string, wishes: readonly CertificateWish[]): string | undefined {
    const sources = this.#pods.get(podUid)?.sources;
    const serials = wishes.map(({ key }) => sources?.get(key)?.serial);
    return serials.includes(undefined) ? undefined : serials.join(",");
  }

  /** Forgets the keys of a pod that is gone. */
  release(podUid: string): void {
    const held = this.#pods.get(podUid);
    if (held === undefined) return;
    held.gone.abort();
    for (const source of held.sources.values()) {
      source.cancelRetry();
      this.#settle(held, source);
    }
    this.#pods.delete(podUid);
    if (this.#pods.size > 0) return;
    this.#cancelLook?.();
    this.#cancelLook = undefined;
  }

  /** Follows the requests of this node, and looks at what is due while there is anything. */
  #start(): void {
    this.#cancelLook ??= this.#options.clock.after(LOOK_MS, () => this.#look());
    if (this.#isStarted) return;
    this.#isStarted = true;
    const { kube, nodeName, clock, random, logger } = this.#options;
    const reflector = new Reflector<PodCertificateRequest>({
      kube,
      path: resourcePath(RESOURCE),
      query: { fieldSelector: `spec.nodeName=${nodeName}` },
      store: this.#store,
      clock,
      random,
      logger,
      accept: ({ spec }) => spec?.nodeName === nodeName,
      onError: (error) => this.#unread(error),
    });
    void reflector.run(this.#closed.signal);
  }

  /** Until they can be read, that is what their pods wait for. */
  #unread(error: Error): void {
    if (this.#store.synced) return;
    for (const { pod, source } of this.#pending.values())
      this.#say(pod, source, `while reading PodCertificateRequests: ${error.message}`);
  }

  /** Makes a key and asks for its certificate. What fails is tried again later and later. */
  async #ask(held: PodSources, source: Source): Promise<void> {
    if (source.isAsking || source.pending !== undefined || source.isRefused || held.gone.signal.aborted) return;
    source.isAsking = true;
    const { clock, logger } = this.#options;
    const namespace = held.pod.metadata?.namespace ?? "";
    try {
      const { privateKey, name } = await this.#places.run(
        namespace,
        () => this.#request(held.pod, source.wish, held.gone.signal),
        held.gone.signal,
      );
      held.gone.signal.throwIfAborted();
      source.pending = { name, privateKey, abandonAt: clock.monotonic() + ABANDON_MS };
      source.problem = NOT_ISSUED;
      this.#pending.set(`${namespace}/${name}`, { pod: held, source });
      // It may have been issued before this process heard of its name.
      const seen = this.#store.getByName(namespace, name);
      if (seen !== undefined) this.#advance(held, source, seen);
    } catch (thrown) {
      if (held.gone.signal.aborted) return;
      const error = toError(thrown);
      logger.warn(
        { ...aboutPod(held.pod), signer: source.wish.signerName, err: error },
        "Pod certificate was not asked for",
      );
      this.#say(
        held,
        source,
        isNotFound(error) ? `${error.message} (pod certificates need Kubernetes 1.37 or newer)` : error.message,
      );
      this.#askLater(held, source);
    } finally {
      source.isAsking = false;
    }
  }

  #askLater(held: PodSources, source: Source): void {
    const { clock, random } = this.#options;
    source.cancelRetry();
    const delayMs = backoffMs({ ...RETRY, random }, source.failures++);
    source.cancelRetry = clock.after(delayMs, () => void this.#ask(held, source));
  }

  async #request(pod: Pod, wish: CertificateWish, signal: AbortSignal): Promise<{ privateKey: string; name: string }> {
    const { kube, nodeName, node } = this.#options;
    const { name: podName = "", namespace = "", uid: podUid = "" } = pod.metadata ?? {};
    const serviceAccountName = pod.spec?.serviceAccountName ?? "default";
    const path = resourcePath({ resource: "serviceaccounts", namespace, name: serviceAccountName });
    const account = await kube.request<KubeObject>({ method: "GET", path, signal });
    const { privateKey, proof } = await createKeyWithProof(wish.keyType);
    signal.throwIfAborted();
    const request = await kube.request<KubeObject>({
      method: "POST",
      path: resourcePath({ ...RESOURCE, namespace }),
      body: {
        apiVersion: "certificates.k8s.io/v1",
        kind: "PodCertificateRequest",
        metadata: {
          generateName: "req-",
          namespace,
          ownerReferences: [{ apiVersion: "v1", kind: "Pod", name: podName, uid: podUid }],
        },
        spec: {
          signerName: wish.signerName,
          podName,
          podUID: podUid,
          serviceAccountName,
          serviceAccountUID: account.metadata?.uid ?? "",
          nodeName,
          nodeUID: node()?.metadata?.uid ?? "",
          stubPKCS10Request: proof.toString("base64"),
          ...(wish.maxExpirationSeconds !== undefined && { maxExpirationSeconds: wish.maxExpirationSeconds }),
          ...(wish.userAnnotations && { unverifiedUserAnnotations: wish.userAnnotations }),
        },
      },
      signal,
    });
    const name = request.metadata?.name;
    if (!name) throw new Error("the API server's reply to a PodCertificateRequest has no name");
    return { privateKey, name };
  }

  /** Takes what has become of a request. */
  #advance(held: PodSources, source: Source, request: PodCertificateRequest): void {
    const ended = request.status?.conditions?.find(({ type }) => ["Issued", "Denied", "Failed"].includes(type));
    if (ended === undefined) return;
    const { privateKey } = this.#settle(held, source)!;
    if (ended.type === "Issued") return this.#take(held, source, privateKey, request);
    const verb = ended.type === "Denied" ? "was denied" : "failed";
    const why = `reason=${JSON.stringify(ended.reason ?? "")}, message=${JSON.stringify(ended.message ?? "")}`;
    source.isRefused = true;
    this.#tell(held, source, ended.type, `PodCertificateRequest ${requestKey(request)} ${verb}, ${why}`);
    this.#say(
      held,
      source,
      `PodCertificateRequest was permanently ${ended.type === "Denied" ? "denied" : "failed"}: ${why}`,
    );
  }

  #take(held: PodSources, source: Source, privateKey: string, request: PodCertificateRequest): void {
    const { clock, random } = this.#options;
    const { certificateChain = "", beginRefreshAt = "", notAfter = "" } = request.status ?? {};
    const chain = certificatesIn(certificateChain).join("");
    if (chain === "") {
      this.#say(held, source, `PodCertificateRequest ${requestKey(request)} was issued without a certificate`);
      return this.#askLater(held, source);
    }
    const end = timeOf(notAfter) ?? clock.now() + DEFAULT_LIFE_MS;
    const refresh = timeOf(beginRefreshAt) ?? clock.now() + (end - clock.now()) * 0.8;
    source.issued = {
      privateKey,
      chain,
      refreshAt: refresh + random() * MAX_JITTER_MS,
      overdueAt: refresh + MAX_JITTER_MS + OVERDUE_MS,
      notAfter: end,
    };
    source.told.clear();
    source.failures = 0;
    source.problem = "";
    source.serial++;
    this.#options.onChange(uidOf(held.pod));
  }

  /** A request that is gone without an answer is made again. */
  #abandon(held: PodSources, source: Source, why: string): void {
    const { name } = this.#settle(held, source)!;
    this.#say(held, source, `PodCertificateRequest ${held.pod.metadata?.namespace}/${name} ${why}`);
    this.#askLater(held, source);
  }

  /** No request is under way any more. Returns the one that was. */
  #settle(held: PodSources, source: Source): Pending | undefined {
    const { pending } = source;
    if (pending !== undefined) this.#pending.delete(`${held.pod.metadata?.namespace ?? ""}/${pending.name}`);
    source.pending = undefined;
    return pending;
  }

  /** Once a minute: what has to be renewed, what was forgotten, and what its pod has to hear. */
  #look(): void {
    const { clock } = this.#options;
    this.#cancelLook = clock.after(LOOK_MS, () => this.#look());
    for (const held of this.#pods.values()) {
      for (const source of held.sources.values()) {
        const { pending, issued } = source;
        if (pending !== undefined && this.#store.synced && clock.monotonic() >= pending.abandonAt) {
          const seen = this.#store.getByName(held.pod.metadata?.namespace ?? "", pending.name);
          if (seen === undefined) this.#abandon(held, source, "appears to have been deleted");
        }
        if (issued === undefined) continue;
        const now = clock.now();
        if (now >= issued.refreshAt && source.failures === 0) void this.#ask(held, source);
        if (now >= issued.overdueAt)
          this.#tell(held, source, "CertificateOverdueForRefresh", "PodCertificate refresh overdue");
        if (now >= issued.notAfter)
          this.#tell(
            held,
            source,
            "CertificateExpired",
            `PodCertificate expired at ${rfc3339(issued.notAfter)}: ${source.problem || NOT_ISSUED}`,
          );
      }
    }
  }

  /** Of why there is none: the pod is looked at again, unless it has one and goes on with it. */
  #say(held: PodSources, source: Source, problem: string): void {
    if (source.problem === problem) return;
    source.problem = problem;
    if (source.issued !== undefined) return;
    source.serial++;
    this.#options.onChange(uidOf(held.pod));
  }

  /** An event about a certificate, once. */
  #tell(held: PodSources, source: Source, reason: string, message: string): void {
    if (source.told.has(reason)) return;
    source.told.add(reason);
    this.#options.event(held.pod, { type: "Warning", reason, message });
  }
}

function newSource(wish: CertificateWish): Source {
  return {
    wish,
    issued: undefined,
    pending: undefined,
    problem: NOT_ISSUED,
    isRefused: false,
    isAsking: false,
    failures: 0,
    cancelRetry: () => {},
    serial: 0,
    told: new Set(),
  };
}

const requestKey = ({ metadata }: KubeObject): string => `${metadata?.namespace ?? ""}/${metadata?.name ?? ""}`;

function timeOf(rfc3339: string): number | undefined {
  const time = Date.parse(rfc3339);
  return Number.isNaN(time) ? undefined : time;
}
