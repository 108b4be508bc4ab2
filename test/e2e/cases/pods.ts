/** Pods of the cases: shell commands, bound to the node under test, marked so that the process table tells whose they are. */
import { HttpError, type Client, type Json } from "../harness/client.ts";
import { must, waitFor } from "../harness/wait.ts";
import { containerVariable, uidVariable } from "./history.ts";
import { workload } from "./workload.ts";

/** A shell that ends by itself at once when it is asked to, as a well-behaved program does. */
export const serve = "trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done";
/** A shell that cannot be asked to end. */
export const stubborn = "trap '' TERM; while :; do sleep 1; done";

export function shell(name: string, script: string, extra: Json = {}): Json {
  return {
    name,
    image: workload().image,
    command: ["/bin/sh", "-c", script],
    ...extra,
    env: [
      { name: uidVariable, valueFrom: { fieldRef: { fieldPath: "metadata.uid" } } },
      { name: containerVariable, value: name },
      ...(extra.env ?? []),
    ],
  };
}

/** The spec of a pod that only the node under test accepts. */
export function podSpec(nodeName: string, spec: Json): Json {
  return {
    nodeSelector: { "kubernetes.io/hostname": nodeName },
    tolerations: [{ operator: "Exists" }],
    ...spec,
  };
}

/** The pods of one namespace, and waiting for them. */
export class Pods {
  readonly #client: Client;
  readonly #nodeName: string;
  readonly namespace: string;
  readonly patience: number;

  /** @param patience how many times as long as usual its machines may take */
  constructor(client: Client, namespace: string, nodeName: string, patience = 1) {
    this.#client = client;
    this.patience = patience;
    this.#nodeName = nodeName;
    this.namespace = namespace;
  }

  get path(): string {
    return `/api/v1/namespaces/${this.namespace}/pods`;
  }

  create(name: string, spec: Json, metadata: Json = {}): Promise<Json> {
    return this.#client.create(this.path, { metadata: { name, ...metadata }, spec: podSpec(this.#nodeName, spec) });
  }

  get(name: string): Promise<Json> {
    return this.#client.get(`${this.path}/${name}`);
  }

  async list(labelSelector = ""): Promise<Json[]> {
    return (await this.#client.get(`${this.path}?labelSelector=${encodeURIComponent(labelSelector)}`)).items;
  }

  delete(name: string, gracePeriodSeconds?: number): Promise<Json> {
    return this.#client.delete(
      `${this.path}/${name}`,
      gracePeriodSeconds === undefined ? undefined : { gracePeriodSeconds },
    );
  }

  /** Waits until `condition` accepts the pod, and returns it. `condition` throws NotYet or returns false until then. */
  async until(name: string, what: string, condition: (pod: Json) => boolean, timeoutMs = 60_000): Promise<Json> {
    return waitFor(
      { what: `pod ${this.namespace}/${name} ${what}`, timeoutMs: timeoutMs * this.patience },
      async () => {
        const pod = await this.get(name);
        must(condition(pod), pod.status);
        return pod;
      },
    );
  }

  untilPhase(name: string, phase: string): Promise<Json> {
    return this.until(name, `to be ${phase}`, (pod) => pod.status.phase === phase);
  }

  untilReady(name: string): Promise<Json> {
    return this.until(name, "to be Ready", isReady);
  }

  /** Waits until no pod has this name, or the one that has it is another. */
  async untilGone(name: string, uid: string, timeoutMs = 60_000): Promise<void> {
    await waitFor(
      { what: `pod ${this.namespace}/${name} to be gone`, timeoutMs: timeoutMs * this.patience },
      async () => {
        const pod = await this.get(name).catch((thrown: unknown) => {
          if (thrown instanceof HttpError && thrown.status === 404) return undefined;
          throw thrown;
        });
        must(pod === undefined || pod.metadata.uid !== uid, pod?.status);
      },
    );
  }

  /** Deletes what is left, each pod as its own grace says but 1 s at most, and waits until the namespace is empty. */
  async deleteAll(): Promise<void> {
    await waitFor(
      { what: `the pods of ${this.namespace} to be deleted`, timeoutMs: 90_000 * this.patience },
      async () => {
        const left = await this.list();
        for (const pod of left.filter((each) => each.metadata.deletionTimestamp === undefined)) {
          await this.delete(pod.metadata.name, 1).catch((thrown: unknown) => {
            if (!(thrown instanceof HttpError && thrown.status === 404)) throw thrown;
          });
        }
        must(
          left.length === 0,
          left.map((pod) => ({ name: pod.metadata.name, status: pod.status })),
        );
      },
    );
  }
}

export function isReady(pod: Json): boolean {
  return (pod.status.conditions ?? []).some((each: Json) => each.type === "Ready" && each.status === "True");
}

export function containerStatus(pod: Json, name: string): Json {
  return [...(pod.status.initContainerStatuses ?? []), ...(pod.status.containerStatuses ?? [])].find(
    (each) => each.name === name,
  );
}
