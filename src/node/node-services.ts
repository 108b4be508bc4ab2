/**
 * The cluster's Services for the machines of one node, for a backend that takes them (capability `services`): what has
 * changed is told at most once a second, and that nothing has once a minute, so that a backend which has lost them
 * learns them. Nothing is kept here.
 */
import { EndpointCache, serviceOf } from "../kube/endpoints.ts";
import type { Store } from "../kube/store.ts";
import type { Node, Service } from "../kube/wire.ts";
import { ownerLabels } from "../provider/owner.ts";
import type { Provider } from "../provider/provider.ts";
import { type ServicePort, ServiceTable } from "../provider/services.ts";
import { ToldServices } from "../provider/told-services.ts";
import { Backoff } from "../queue/backoff.ts";
import type { Logger } from "../telemetry/logger.ts";
import { pause } from "../util/abort.ts";
import type { Clock } from "../util/clock.ts";
import { toError } from "../util/errors.ts";
import { Pulse } from "../util/pulse.ts";
import type { Random } from "../util/random.ts";
import { servicePorts } from "./service-ports.ts";

interface NodeServicesOptions {
  provider: Pick<Provider, "services">;
  clusterId: string;
  nodeName: string;
  services: Store<Service>;
  endpoints: EndpointCache;
  /** Undefined while it is not registered. */
  node: () => Node | undefined;
  clock: Clock;
  random: Random;
  logger: Logger;
  /** Sends an event of the Node. */
  warn: (reason: string, message: string) => void;
}

/** kube-proxy: minSyncPeriod. */
const AT_MOST_EVERY_MS = 1_000;
const EVERY_MS = 60_000;
const RETRY_MS = { initialMs: 1_000, maxMs: 30_000 };
const LABEL_ZONE = "topology.kubernetes.io/zone";

export class NodeServices {
  readonly #options: NodeServicesOptions;
  readonly #table = new ServiceTable();
  /** By `namespace/name`. */
  readonly #ports = new Map<string, readonly ServicePort[]>();
  /** Services of which something has changed since they were looked at. */
  readonly #changed = new Set<string>();
  readonly #wake = new Pulse();
  readonly #backoff: Backoff;
  /** Tells this process's revisions from another's. */
  readonly #series: string;
  #revisions = 0;
  #zone = "";

  constructor(options: NodeServicesOptions) {
    const { clock, random } = options;
    this.#options = options;
    this.#backoff = new Backoff({ ...RETRY_MS, jitter: "up", clock, random });
    this.#series = `${clock.now().toString(36)}${Math.trunc(random() * 36 ** 6).toString(36)}`;
  }

  /** Tells the backend until the signal aborts. For one that takes Services. */
  async run(signal: AbortSignal): Promise<void> {
    const { provider, services, endpoints, clock } = this.#options;
    endpoints.need();
    const forget = [
      services.onChange(({ object }) => this.#note(keyOf(object))),
      endpoints.store.onChange(({ object, previous }) => {
        for (const slice of [object, previous]) this.#note(slice && serviceOf(slice));
      }),
    ];
    try {
      // A table that lacks what is not listed yet would refuse calls that went well.
      await Promise.all([services.hasSynced(signal), endpoints.store.hasSynced(signal)]);
      for (const service of services.list()) this.#note(keyOf(service));
      const told = new ToldServices(provider.services!);
      while (!signal.aborted) {
        const waitMs = await this.#tell(told, signal);
        await pause(clock, AT_MOST_EVERY_MS, signal);
        if (this.#changed.size === 0) await this.#wake.waitAtMost(clock, waitMs, signal);
      }
    } catch (thrown) {
      if (!signal.aborted) throw thrown;
    } finally {
      for (const each of forget) each();
    }
  }

  #note(service: string | undefined): void {
    if (service === undefined) return;
    this.#changed.add(service);
    this.#wake.fire();
  }

  /** @returns how long that is enough for */
  async #tell(told: ToldServices, signal: AbortSignal): Promise<number> {
    const { clusterId, nodeName, logger, warn } = this.#options;
    this.#look();
    try {
      await told.bring(this.#table, ownerLabels(clusterId, nodeName), signal);
      this.#backoff.reset();
      return EVERY_MS;
    } catch (thrown) {
      if (signal.aborted) return 0;
      const message = `machines do not reach the cluster's Services by their addresses as they are now: ${toError(thrown).message}`;
      logger.warn({ err: thrown }, "The backend cannot be told of the cluster's Services");
      warn("ServicesNotTold", message);
      return this.#backoff.next();
    }
  }

  /** Takes in what has changed. */
  #look(): void {
    const { services, endpoints, node, nodeName } = this.#options;
    const zone = node()?.metadata?.labels?.[LABEL_ZONE] ?? "";
    const isElsewhere = zone !== this.#zone;
    this.#zone = zone;
    for (const key of isElsewhere ? [...this.#ports.keys(), ...this.#changed] : this.#changed) {
      const [namespace = "", name = ""] = key.split("/");
      const service = services.getByName(namespace, name);
      const ports = service === undefined ? [] : servicePorts(service, endpoints.of(key), { nodeName, zone });
      if (ports.length === 0) this.#ports.delete(key);
      else this.#ports.set(key, ports);
    }
    this.#changed.clear();
    this.#table.replace([...this.#ports.values()].flat(), `${this.#series}-${this.#revisions++}`);
  }
}

const keyOf = ({ metadata }: Service): string => `${metadata?.namespace ?? ""}/${metadata?.name ?? ""}`;
