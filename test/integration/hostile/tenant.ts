/** The tenant who means harm, in a namespace of its own for each case. */
import { HttpError, type Json } from "../../e2e/harness/client.ts";
import { must, waitFor } from "../../e2e/harness/wait.ts";
import { podOn, type NodeName, type World } from "./world.ts";

/** What a container of either node runs until it is told to end. */
export const idle = ["sh", "-c", "sleep 1000"];

export class Tenant {
  readonly world: World;
  readonly namespace: string;

  constructor(world: World, namespace: string) {
    this.world = world;
    this.namespace = namespace;
  }

  #path(resource: string): string {
    return `/api/v1/namespaces/${this.namespace}/${resource}`;
  }

  /** A pod with one container `main`, which `container` is merged over. */
  pod(node: NodeName, name: string, options: { container?: Json; spec?: Json; metadata?: Json } = {}): Promise<Json> {
    const main = { name: "main", image: "busybox", command: idle, ...options.container };
    return this.world.client.create(this.#path("pods"), {
      metadata: { name, ...options.metadata },
      spec: podOn(node, { containers: [main], ...options.spec }),
    });
  }

  /** The same pod many times. */
  async pods(count: number, ...[node, name, options]: Parameters<Tenant["pod"]>): Promise<void> {
    await Promise.all(Array.from({ length: count }, (_, index) => this.pod(node, `${name}-${index}`, options)));
  }

  configMap(name: string, data: Json): Promise<Json> {
    return this.world.client.create(this.#path("configmaps"), { metadata: { name }, data });
  }

  secret(name: string, type: string, data: Record<string, string>): Promise<Json> {
    const encoded = Object.entries(data).map(([key, text]) => [key, Buffer.from(text).toString("base64")] as const);
    return this.world.client.create(this.#path("secrets"), {
      metadata: { name },
      type,
      data: Object.fromEntries(encoded),
    });
  }

  patch(resource: string, name: string, patch: Json, subresource = ""): Promise<Json> {
    return this.world.client.patch(`${this.#path(resource)}/${name}${subresource}`, patch);
  }

  /** Waits until the pod is as `condition` wants, and returns it. */
  until(name: string, what: string, condition: (pod: Json) => boolean): Promise<Json> {
    return waitFor({ what: `pod ${this.namespace}/${name} ${what}` }, async () => {
      const pod = await this.world.client.get(`${this.#path("pods")}/${name}`);
      must(condition(pod), summary(pod));
      return pod;
    });
  }

  untilRunning(name: string): Promise<Json> {
    return this.until(name, "to be Running", ({ status }) => status.phase === "Running");
  }

  /** Waits until the pod is refused as a kubelet would refuse it: by its own status, and by nothing else. */
  untilRefused(name: string, reason: RegExp): Promise<Json> {
    return this.until(name, `to be refused with ${String(reason)}`, ({ status }) => {
      return [status.reason, ...waitingReasons(status)].some((each) => each !== undefined && reason.test(each));
    });
  }

  /** Waits until a Warning about the pod says so. */
  async untilWarned(name: string, pattern: RegExp): Promise<void> {
    await waitFor({ what: `a warning about pod ${this.namespace}/${name} like ${String(pattern)}` }, async () => {
      const { items } = await this.world.client.get(this.#path("events"));
      const warnings = (items as Json[])
        .filter(({ type, involvedObject }) => type === "Warning" && involvedObject.name === name)
        .map(({ reason, message }) => `${reason}: ${message}`);
      must(
        warnings.some((text) => pattern.test(text)),
        warnings.map((text) => text.slice(0, 300)),
      );
    });
  }

  /** Deletes all pods at once, and waits until they are gone. */
  async leave(): Promise<void> {
    const { client } = this.world;
    await waitFor({ what: `the pods of ${this.namespace} to be gone`, timeoutMs: 60_000 }, async () => {
      const { items } = await client.get(this.#path("pods"));
      const left = items.filter(({ metadata }: Json) => (metadata.deletionGracePeriodSeconds ?? 2) > 1);
      for (const { metadata } of left) {
        await client
          .delete(`${this.#path("pods")}/${metadata.name}`, { gracePeriodSeconds: 1 })
          .catch((thrown: unknown) => {
            if (!(thrown instanceof HttpError && thrown.status === 404)) throw thrown;
          });
      }
      must(items.length === 0, [`${items.length} pods`, ...items.slice(0, 3).map(summary)]);
    });
  }
}

/** What a failed wait prints of a pod, which may have a thousand containers. */
function summary({ metadata, status }: Json): Json {
  const waiting = [...new Set(waitingReasons(status))];
  return {
    name: metadata.name,
    phase: status.phase,
    reason: status.reason,
    message: status.message?.slice(0, 300),
    waiting,
  };
}

export function waitingReasons(status: Json): string[] {
  return [...(status.initContainerStatuses ?? []), ...(status.containerStatuses ?? [])]
    .map((each: Json) => each.state?.waiting?.reason)
    .filter((reason) => reason !== undefined);
}
