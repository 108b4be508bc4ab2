import { KubeApiError } from "../../../src/kube/errors.ts";
import type { Kube, KubeRequest, WatchEvent } from "../../../src/kube/kube.ts";

interface Stored {
  metadata: { namespace: string; name: string; uid: string; resourceVersion: string };
  [field: string]: unknown;
}

/** Configmaps, secrets and services in memory, with GET, list and watch by name; answers what the test tells it to. */
export class FakeKube implements Kube {
  readonly requests: { method: string; path: string; query?: KubeRequest["query"]; body?: unknown }[] = [];
  /** Called first: throw to fail a request, return something to answer it. */
  intercept: (request: Omit<KubeRequest, "signal">) => unknown = () => undefined;
  readonly #objects = new Map<string, Stored>();
  readonly #watchers = new Set<{
    prefix: string;
    name: string | undefined;
    push: (event: WatchEvent<unknown>) => void;
  }>();
  #version = 100;

  /** Creates or replaces an object, and tells those who watch. `path` is that of the object. */
  put(path: string, fields: { metadata?: object; [field: string]: unknown } = {}): void {
    const namespace = /\/namespaces\/([^/]+)\//.exec(path)?.[1] ?? "";
    const name = path.split("/").at(-1)!;
    const before = this.#objects.get(path);
    const uid = before?.metadata.uid ?? `uid-${++this.#version}`;
    const resourceVersion = String(++this.#version);
    const object = { ...fields, metadata: { ...fields.metadata, namespace, name, uid, resourceVersion } };
    this.#objects.set(path, object);
    this.#tell({ type: before ? "MODIFIED" : "ADDED", object }, path);
  }

  remove(path: string): void {
    const object = this.#objects.get(path);
    if (!object) return;
    this.#objects.delete(path);
    this.#tell(
      {
        type: "DELETED",
        object: { ...object, metadata: { ...object.metadata, resourceVersion: String(++this.#version) } },
      },
      path,
    );
  }

  count(method: string, path: string): number {
    return this.requests.filter((request) => request.method === method && request.path === path).length;
  }

  get watches(): number {
    return this.#watchers.size;
  }

  async request<T>(request: KubeRequest): Promise<T> {
    const { signal, ...rest } = request;
    this.requests.push(rest);
    const answer = await this.intercept(rest);
    signal.throwIfAborted();
    if (answer !== undefined) return answer as T;
    const found = this.#objects.get(request.path);
    if (found) return found as T;
    const name = selectedName(request.query);
    if (name === undefined && !request.path.endsWith("services")) throw notFound(request.path);
    const items = [...this.#objects].filter(([path]) => isUnder(path, request.path, name)).map(([, object]) => object);
    return { kind: "List", apiVersion: "v1", metadata: { resourceVersion: String(this.#version) }, items } as T;
  }

  async *watch<T>(request: Parameters<Kube["watch"]>[0]): AsyncIterable<WatchEvent<T>> {
    this.requests.push({ method: "WATCH", path: request.path, query: request.query });
    await this.intercept({ method: "GET", path: request.path, query: { ...request.query, watch: true } });
    const queue: WatchEvent<unknown>[] = [];
    let wake = () => {};
    const watcher = {
      prefix: request.path,
      name: selectedName(request.query),
      push: (event: WatchEvent<unknown>) => {
        queue.push(event);
        wake();
      },
    };
    this.#watchers.add(watcher);
    request.signal.addEventListener("abort", () => wake(), { once: true });
    try {
      while (!request.signal.aborted) {
        const event = queue.shift();
        if (event) yield event as WatchEvent<T>;
        else
          await new Promise<void>((resolve) => {
            wake = resolve;
          });
      }
      throw request.signal.reason;
    } finally {
      this.#watchers.delete(watcher);
    }
  }

  #tell(event: WatchEvent<unknown>, path: string): void {
    for (const watcher of this.#watchers) if (isUnder(path, watcher.prefix, watcher.name)) watcher.push(event);
  }
}

/** Whether a request is for the object of this name, by its path or by a list of that name alone. */
export function isAbout({ path, query }: Pick<KubeRequest, "path" | "query">, name: string): boolean {
  return path.endsWith(`/${name}`) || selectedName(query) === name;
}

function selectedName(query: KubeRequest["query"]): string | undefined {
  return /^metadata\.name=(.*)$/.exec(String(query?.["fieldSelector"] ?? ""))?.[1];
}

function isUnder(path: string, collection: string, name: string | undefined): boolean {
  const isService = collection === "/api/v1/services" && path.includes("/services/");
  return isService || (path.startsWith(`${collection}/`) && (name === undefined || path === `${collection}/${name}`));
}

export function notFound(path: string): KubeApiError {
  const [name = "", kind = ""] = path.split("/").toReversed();
  return new KubeApiError(`GET ${path}: not found`, { status: 404, reason: "NotFound", details: { kind, name } });
}

export function failure(status: number, reason: string): KubeApiError {
  return new KubeApiError(`the server said ${status}`, { status, reason });
}
