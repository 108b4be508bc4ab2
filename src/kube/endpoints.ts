/**
 * The cluster's EndpointSlices. One watch serves every node of a process, and only where a backend needs them: no node
 * may read them by itself, so it is the process' own right.
 */
import { untilAborted } from "../util/abort.ts";
import type { Clock } from "../util/clock.ts";
import type { Random } from "../util/random.ts";
import type { Logger } from "../telemetry/logger.ts";
import type { Kube } from "./kube.ts";
import { resourcePath } from "./paths.ts";
import { Reflector } from "./reflector.ts";
import { Store } from "./store.ts";
import type { EndpointSlice } from "./wire.ts";

const LABEL_SERVICE = "kubernetes.io/service-name";

export class EndpointCache {
  readonly #options: { kube: Kube; clock: Clock; random: Random; logger: Logger };
  readonly #needed = Promise.withResolvers<void>();
  readonly store: Store<EndpointSlice>;
  #fault: Error | undefined;

  constructor(options: { kube: Kube; clock: Clock; random: Random; logger: Logger }) {
    this.#options = options;
    this.store = new Store({
      logger: options.logger,
      indexers: { service: (slice) => [serviceOf(slice) ?? []].flat() },
    });
  }

  /** What has kept them from being read, the last time that something did. */
  get fault(): Error | undefined {
    return this.#fault;
  }

  /** There is somebody who wants them. */
  need(): void {
    this.#needed.resolve();
  }

  /** Watches, as soon as they are needed, until `signal` aborts. */
  async run(signal: AbortSignal): Promise<void> {
    await untilAborted(signal, this.#needed.promise);
    if (signal.aborted) return;
    const path = resourcePath({ group: "discovery.k8s.io", resource: "endpointslices" });
    // One that belongs to no Service leads nowhere.
    const query = { labelSelector: LABEL_SERVICE };
    const onError = (error: Error) => (this.#fault = error);
    await new Reflector<EndpointSlice>({ ...this.#options, path, query, store: this.store, onError }).run(signal);
  }

  /** @param service `namespace/name` */
  of(service: string): EndpointSlice[] {
    return this.store.byIndex("service", service);
  }
}

/** `namespace/name` of its Service. */
export function serviceOf({ metadata }: EndpointSlice): string | undefined {
  const name = metadata?.labels?.[LABEL_SERVICE];
  return name === undefined ? undefined : `${metadata?.namespace ?? ""}/${name}`;
}
