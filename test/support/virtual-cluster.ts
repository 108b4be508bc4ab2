/** devcluster's objects without HTTP: an API server in this process, whose time a test moves and whose answers it can lose. */
import { NamespaceLifecycle } from "../../src/devcluster/controllers/namespaces.ts";
import { storageName, type Kind } from "../../src/devcluster/kinds/kind.ts";
import { findKind } from "../../src/devcluster/kinds/kinds.ts";
import { ObjectApi, type PatchType, type WriteContext } from "../../src/devcluster/kinds/object-api.ts";
import { ApiStatusError } from "../../src/devcluster/objects/errors.ts";
import type { Json, StoredObject } from "../../src/devcluster/objects/object.ts";
import { Storage } from "../../src/devcluster/objects/storage.ts";
import { startWatch } from "../../src/devcluster/objects/watch.ts";
import { KubeApiError } from "../../src/kube/errors.ts";
import type { Kube, KubeRequest, WatchEvent, WatchRequest } from "../../src/kube/kube.ts";
import type { Clock } from "../../src/util/clock.ts";

/** What happens between one client and the server. */
export interface Line {
  /** Runs what the client has sent, once, never, or late; by default once and at once. */
  carry?: <T>(request: KubeRequest, send: () => T) => Promise<T>;
  /** Events that have piled up since the last were read, as the client is to see them. */
  deliver?: (events: WatchEvent<unknown>[]) => WatchEvent<unknown>[];
}

const PATCH_TYPES: Record<string, PatchType> = {
  "application/merge-patch+json": "merge",
  "application/strategic-merge-patch+json": "strategic",
};

const context = (): WriteContext => ({
  user: { username: "admin", groups: ["system:masters"] },
  dryRun: false,
  fieldValidation: "Ignore",
  warnings: [],
});

export class VirtualCluster {
  readonly storage = new Storage();
  readonly #objects: ObjectApi;
  readonly #breakWatches = new Set<(fault: KubeApiError) => void>();
  #isDown = false;

  constructor(clock: Clock) {
    this.#objects = new ObjectApi({ storage: this.storage, clock, random: () => 0.5 });
    new NamespaceLifecycle({ objects: this.#objects, caBundle: "" }).start();
  }

  /** Nobody reaches it, and watches break, until `comeBack`. */
  goDown(): void {
    this.#isDown = true;
    for (const end of this.#breakWatches) end(unreachable());
  }
  comeBack(): void {
    this.#isDown = false;
  }

  /** A request as an administrator on the server itself: it is answered even while nobody reaches it. @throws KubeApiError */
  ask(method: KubeRequest["method"], path: string, body?: unknown): Json {
    return this.#answer({ method, path, body, contentType: "application/merge-patch+json" });
  }

  /** Objects of a collection, all namespaces. */
  list(resource: string, group = ""): StoredObject[] {
    return this.storage.list(storageName({ group, resource }));
  }

  /** @param line of this client alone */
  client(line: Line = {}): Kube {
    const { carry = (_request, send) => Promise.resolve().then(send), deliver = (events) => events } = line;
    return {
      request: async <T>(request: KubeRequest) => {
        request.signal.throwIfAborted();
        request.guard?.();
        return carry<T>(request, () => {
          if (this.#isDown) throw unreachable();
          const reply = this.#answer(request) as Json;
          const { metadata } = reply ?? {};
          return (request.metadataOnly ? { kind: "PartialObjectMetadata", metadata } : reply) as T;
        });
      },
      watch: <T>(request: WatchRequest) => this.#watch<T>(request, deliver),
    };
  }

  #answer({ method, path, query = {}, body, contentType = "" }: Omit<KubeRequest, "signal">): unknown {
    try {
      if (path === "/version") return { gitVersion: "v1.36.2" };
      const { kind, namespace, name, subresource } = parse(path);
      const target = { kind, namespace, name: name ?? "", subresource };
      switch (method) {
        case "GET":
          if (name !== undefined) return this.#objects.get(kind, namespace, name);
          return listReply(kind, this.#objects.list(kind, namespace, query));
        case "POST":
          return this.#objects.create(kind, namespace, body, context());
        case "PUT":
          return this.#objects.replace(target, body, context()).object;
        case "PATCH":
          return this.#objects.patch(target, PATCH_TYPES[contentType]!, body, context()).object;
        case "DELETE":
          return this.#objects.delete(kind, namespace, target.name, body ?? {}, context()).object;
      }
    } catch (thrown) {
      if (!(thrown instanceof ApiStatusError)) throw thrown;
      const { code, reason = "", message = "", details } = thrown.body;
      throw new KubeApiError(`${method} ${path}: ${message}`, { status: code, reason, details });
    }
  }

  async *#watch<T>(
    { path, query = {}, signal, onOpen }: WatchRequest,
    deliver: NonNullable<Line["deliver"]>,
  ): AsyncGenerator<WatchEvent<T>> {
    signal.throwIfAborted();
    if (this.#isDown) throw unreachable();
    const { kind, namespace } = parse(path);
    const filter = this.#objects.filter(kind, namespace, query);
    let piled: WatchEvent<unknown>[] = [];
    let over: Error | undefined;
    let wake = (): void => undefined;
    const end = (error: Error) => {
      over = error;
      wake();
    };
    const onAbort = () => end(signal.reason as Error);
    signal.addEventListener("abort", onAbort, { once: true });
    this.#breakWatches.add(end);
    const stop = startWatch(
      this.storage,
      storageName(kind),
      filter,
      { initial: false, after: Number(query["resourceVersion"]) },
      (type, object) => {
        piled.push({ type, object });
        wake();
      },
    );
    onOpen?.();
    try {
      for (;;) {
        if (over !== undefined) throw over;
        const events = deliver(piled);
        piled = [];
        for (const event of events) yield event as WatchEvent<T>;
        if (piled.length === 0 && over === undefined) await new Promise<void>((resolve) => (wake = resolve));
      }
    } finally {
      stop();
      signal.removeEventListener("abort", onAbort);
      this.#breakWatches.delete(end);
    }
  }
}

const unreachable = () => new KubeApiError("connection refused", { status: 0, reason: "ConnectionRefused" });

const listReply = (kind: Kind, list: { items: StoredObject[]; resourceVersion: string; continue?: string }) => ({
  kind: `${kind.kind}List`,
  metadata: { resourceVersion: list.resourceVersion, ...(list.continue && { continue: list.continue }) },
  items: list.items,
});

function parse(path: string) {
  const [, root, ...rest] = path.split("/");
  const group = root === "api" ? "" : rest.shift()!;
  const version = rest.shift()!;
  const namespace = rest[0] === "namespaces" && rest.length > 2 ? rest.splice(0, 2)[1] : undefined;
  const [resource = "", name, subresource] = rest;
  const kind = findKind(group, version, resource);
  if (kind === undefined) throw new Error(`devcluster does not serve ${path}`);
  return { kind, namespace, name, subresource };
}
