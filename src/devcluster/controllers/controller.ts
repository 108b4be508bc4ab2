/** What all controllers are given, and the shape they have. */
import type { Logger } from "../../telemetry/logger.ts";
import type { Clock } from "../../util/clock.ts";
import { storageName, type Kind } from "../kinds/kind.ts";
import type { ObjectApi } from "../kinds/object-api.ts";
import { selects } from "../kinds/pod-template.ts";
import type { StoredObject } from "../objects/object.ts";
import type { Change, Storage } from "../objects/storage.ts";
import { Actor } from "./actor.ts";
import { keyOf, controllerOf, type ObjectIndex } from "./object-index.ts";
import { controllerKey } from "./pods.ts";
import { WorkQueue } from "./work-queue.ts";

export interface ControllerOptions {
  objects: ObjectApi;
  index: ObjectIndex;
  clock: Clock;
  logger: Logger;
}

export interface Controller {
  start(): void;
  stop(): void;
}

/**
 * A level-triggered controller: what it watches names the objects to look at, and `sync` makes each as it should be.
 * Reads and writes are synchronous, so a `sync` never acts on an old state.
 */
export abstract class KeyedController implements Controller {
  protected readonly storage: Storage;
  protected readonly index: ObjectIndex;
  protected readonly clock: Clock;
  protected readonly actor: Actor;
  protected readonly queue: WorkQueue;
  readonly #stops: (() => void)[] = [];

  /** @param component the controller's service account and the source of its events */
  constructor(options: ControllerOptions, component: string) {
    this.storage = options.objects.storage;
    this.index = options.index;
    this.clock = options.clock;
    this.actor = new Actor({ objects: options.objects, clock: options.clock, component });
    this.queue = new WorkQueue({
      clock: options.clock,
      logger: options.logger,
      name: component,
      sync: (key) => this.sync(key),
    });
  }

  abstract start(): void;
  /** Makes the object of this key as it should be; it may be gone. */
  protected abstract sync(key: string): void;

  stop(): void {
    this.queue.stop();
    for (const stop of this.#stops) stop();
  }

  protected watch(resource: string, onChange: (change: Change) => void): void {
    this.#stops.push(this.storage.watch(resource, this.storage.revision, onChange));
  }

  /** Looks at every object of this kind, now and whenever it changes. */
  protected watchOwn(kind: Kind): void {
    const resource = storageName(kind);
    this.watch(resource, ({ object }) => this.queue.add(keyOf(object)));
    for (const object of this.storage.list(resource)) this.queue.add(keyOf(object));
  }

  /** Looks at the owner of each dependent that changes, and at those that would adopt an orphan. */
  protected watchDependents(resource: string, kind: Kind): void {
    this.watch(resource, ({ object, previous }) => {
      for (const version of previous ? [previous, object] : [object]) {
        const key = controllerKey(version, kind);
        if (key !== undefined) this.queue.add(key);
        else if (!controllerOf(version)) this.#addAdopters(kind, version);
      }
    });
  }

  #addAdopters(kind: Kind, orphan: StoredObject): void {
    for (const owner of this.index.inNamespace(storageName(kind), orphan.metadata.namespace!))
      if (selects(owner.spec.selector, orphan.metadata.labels)) this.queue.add(keyOf(owner));
  }
}
