/**
 * The cluster's Services, for the variables that pods get of them, and for the addresses that lead to others. One watch
 * serves every node of a process: the Node authorizer lets any node read them all, while pods, configMaps and secrets
 * are only for the node that they belong to.
 */
import type { Kube } from "../../kube/kube.ts";
import { resourcePath } from "../../kube/paths.ts";
import { Reflector } from "../../kube/reflector.ts";
import { Store } from "../../kube/store.ts";
import type { Service } from "../../kube/wire.ts";
import type { Logger } from "../../telemetry/logger.ts";
import type { Clock } from "../../util/clock.ts";
import type { Random } from "../../util/random.ts";

const FIRST_LIST_WAIT_MS = 5_000;

export class ServiceCache {
  readonly #options: { kube: Kube; clock: Clock; random: Random; logger: Logger };
  readonly store: Store<Service>;
  #isRunning = false;

  /** @param options.kube may act as any of the nodes */
  constructor(options: { kube: Kube; clock: Clock; random: Random; logger: Logger }) {
    this.#options = options;
    this.store = new Store<Service>({
      logger: options.logger,
      indexers: { namespace: (service) => [service.metadata?.namespace ?? ""] },
    });
  }

  /** Watches until `signal` aborts. */
  async run(signal: AbortSignal): Promise<void> {
    this.#isRunning = true;
    await new Reflector<Service>({
      ...this.#options,
      path: resourcePath({ resource: "services" }),
      store: this.store,
    }).run(signal);
  }

  /** The Services of these namespaces; undefined while they have not been listed once. */
  of(namespaces: ReadonlySet<string>): Service[] | undefined {
    if (!this.store.synced) return undefined;
    return [...namespaces].flatMap((namespace) => this.store.byIndex("namespace", namespace));
  }

  /** Resolves when the Services have been listed once. @throws the signal's reason on abort */
  listed(signal: AbortSignal): Promise<void> {
    return this.store.hasSynced(signal);
  }

  /** At start, the first list is worth waiting for a little: without it every pod would have to come back. */
  async firstList(signal: AbortSignal): Promise<void> {
    if (this.store.synced || !this.#isRunning) return;
    const over = new AbortController();
    const both = AbortSignal.any([signal, over.signal]);
    await Promise.race([this.store.hasSynced(both), this.#options.clock.sleep(FIRST_LIST_WAIT_MS, both)]).finally(() =>
      over.abort(),
    );
  }
}
