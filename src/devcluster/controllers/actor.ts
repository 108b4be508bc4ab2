/** Who a controller is to the API: it reads and writes under its own name, and tells of what it did in events. */
import { rfc3339, type Clock } from "../../util/clock.ts";
import { mustFindKind, kindOf } from "../kinds/kinds.ts";
import { objectKey, storageName, type Kind } from "../kinds/kind.ts";
import type { DeleteOptions, ObjectApi, WriteContext } from "../kinds/object-api.ts";
import { writeScale } from "../kinds/scale.ts";
import { ApiStatusError } from "../objects/errors.ts";
import type { Json, StoredObject } from "../objects/object.ts";

/**
 * As client-go's event correlator: how many different messages of one reason an object may have before they become one,
 * and for how long.
 */
const SIMILAR_EVENTS = 10;
const SIMILAR_WINDOW_MS = 600_000;
/** Events that are remembered, to count them instead of making new ones. */
const REMEMBERED = 4096;

const eventKind = mustFindKind("", "v1", "events");

export class Actor {
  readonly objects: ObjectApi;
  readonly #clock: Clock;
  readonly #component: string;
  readonly #context: WriteContext;
  /** The name of the event that counts an occurrence. */
  readonly #counted = new Map<string, { namespace: string; name: string }>();
  /** Messages of one reason about one object. */
  readonly #similar = new Map<string, { since: number; messages: Set<string> }>();

  /** @param options.component such as `replicaset-controller`: its service account, and the source of its events */
  constructor(options: { objects: ObjectApi; clock: Clock; component: string }) {
    this.objects = options.objects;
    this.#clock = options.clock;
    this.#component = options.component;
    this.#context = {
      user: { username: `system:serviceaccount:kube-system:${options.component}`, groups: ["system:masters"] },
      dryRun: false,
      fieldValidation: "Ignore",
      warnings: [],
    };
  }

  get(kind: Kind, namespace: string | undefined, name: string): StoredObject | undefined {
    return this.objects.storage.get(storageName(kind), objectKey(namespace, name));
  }

  /** The object as it is now; undefined when it is gone, or another has taken its name. */
  fresh(object: StoredObject): StoredObject | undefined {
    const { namespace, name, uid } = object.metadata;
    const found = this.get(kindOf(object)!, namespace, name);
    return found?.metadata.uid === uid ? found : undefined;
  }

  create(kind: Kind, namespace: string | undefined, body: Json): StoredObject {
    return this.objects.create(kind, namespace, body, this.#context);
  }

  /** @throws ApiStatusError 409 when it has changed since it was read */
  update(object: StoredObject, subresource?: string): StoredObject {
    const { namespace, name } = object.metadata;
    const target = { kind: kindOf(object)!, namespace, name, subresource };
    return this.objects.replace(target, object, this.#context).object;
  }

  /** Writes the status, where it differs. */
  updateStatus(object: StoredObject, status: Json): StoredObject {
    return this.update({ ...object, status }, "status");
  }

  /** Sets the number of replicas by the subresource `scale`. @throws ApiStatusError when the API refuses */
  scale(object: StoredObject, replicas: number): void {
    const { namespace, name } = object.metadata;
    const change = { type: "merge", body: { spec: { replicas } } } as const;
    writeScale(this.objects, kindOf(object)!, { namespace: namespace!, name }, change, this.#context);
  }

  /** Deletes exactly this object. What is gone already is no failure. */
  delete(object: StoredObject, options: DeleteOptions = {}): void {
    const { namespace, name, uid } = object.metadata;
    const kind = kindOf(object)!;
    try {
      this.objects.delete(kind, namespace, name, { ...options, preconditions: { uid } }, this.#context);
    } catch (thrown) {
      if (thrown instanceof ApiStatusError && (thrown.body.code === 404 || thrown.body.code === 409)) return;
      throw thrown;
    }
  }

  /** An event about an object, counted and gathered as client-go does it. A namespace that ends takes none. */
  event(about: StoredObject, type: "Normal" | "Warning", reason: string, message: string): void {
    const { uid, name } = about.metadata;
    const namespace = about.metadata.namespace ?? "default";
    const now = this.#clock.now();
    const group = `${uid} ${type} ${reason}`;
    const text = this.#gather(group, message, now);
    const key = `${group} ${text === message ? message : "*"}`;
    const counted = this.#counted.get(key);
    const before = counted && this.get(eventKind, counted.namespace, counted.name);
    const at = rfc3339(now);
    try {
      if (before) {
        const next = { ...before, message: text, count: ((before["count"] as number) ?? 1) + 1, lastTimestamp: at };
        this.update(next);
        return;
      }
      const serial = BigInt(now) * 1_000_000n + BigInt(this.objects.storage.revision % 1_000_000);
      const event = {
        // client-go's form: the object's name and a time, so that names never meet.
        metadata: { name: `${name}.${serial.toString(16)}`, namespace },
        involvedObject: {
          apiVersion: about.apiVersion,
          kind: about.kind,
          ...(about.metadata.namespace && { namespace }),
          name,
          uid,
          resourceVersion: about.metadata.resourceVersion,
        },
        type,
        reason,
        message: text,
        firstTimestamp: at,
        lastTimestamp: at,
        count: 1,
        source: { component: this.#component },
        reportingComponent: this.#component,
      };
      const created = this.create(eventKind, namespace, event);
      if (this.#counted.size >= REMEMBERED) this.#counted.clear();
      this.#counted.set(key, { namespace, name: created.metadata.name });
    } catch (thrown) {
      // Events are a service to people; none is worth failing for.
      if (!(thrown instanceof ApiStatusError)) throw thrown;
    }
  }

  #gather(group: string, message: string, now: number): string {
    let similar = this.#similar.get(group);
    if (!similar || now - similar.since > SIMILAR_WINDOW_MS) {
      if (this.#similar.size >= REMEMBERED) this.#similar.clear();
      similar = { since: now, messages: new Set() };
      this.#similar.set(group, similar);
    }
    similar.messages.add(message);
    if (similar.messages.size < SIMILAR_EVENTS) return message;
    // The oldest are forgotten, so that a long-lived object does not keep all it has ever said.
    if (similar.messages.size > SIMILAR_EVENTS) similar.messages.delete(similar.messages.values().next().value!);
    return `(combined from similar events): ${message}`;
  }
}

/** A reference by which an owner manages what it makes. */
export const controllerReference = (owner: StoredObject): Json => ({
  apiVersion: owner.apiVersion,
  kind: owner.kind,
  name: owner.metadata.name,
  uid: owner.metadata.uid,
  controller: true,
  blockOwnerDeletion: true,
});
