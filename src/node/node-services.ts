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
/** Later than this, it is told that they are not. */
const LISTED_WITHIN_MS = 30_000;
const RETRY_MS = { initialMs: 1_000, maxMs: 30_000 };
/** Of all Services together: each machine has them all, and a tenant may make as many as the cluster lets it. */
const MOST_PORTS = 20_000;
const MOST_ENDPOINTS = 200_000;
/** By ClientIP each endpoint is a chain and a set of its own in a machine's kernel, not an element of a map. */
const AFFINITY_COST = 20;
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
  /** In a row. */
  #failures = 0;
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
      await this.#listed(signal);
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

  /** A table that lacks what is not listed yet would refuse calls that went well. */
  async #listed(signal: AbortSignal): Promise<void> {
    const { services, endpoints, clock, warn } = this.#options;
    const listed = Promise.all([services.hasSynced(signal), endpoints.store.hasSynced(signal)]).then(() => true);
    for (;;) {
      const late = pause(clock, LISTED_WITHIN_MS, signal).then(() => false);
      if (await Promise.race([listed, late])) return;
      signal.throwIfAborted();
      warn(
        "ServicesNotTold",
        `machines do not reach the cluster's Services by their addresses yet: the agent has not got all Services and EndpointSlices${endpoints.fault === undefined ? "" : ` (${endpoints.fault.message})`}: it needs list and watch of endpointslices in discovery.k8s.io, or provider.services: false where the network leads to Services by itself`,
      );
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
      this.#failures = 0;
      return EVERY_MS;
    } catch (thrown) {
      if (signal.aborted) return 0;
      const message = `machines do not reach the cluster's Services by their addresses as they are now: ${toError(thrown).message}`;
      logger.warn({ err: thrown }, "The backend cannot be told of the cluster's Services");
      // One that begins is told its Node's range at the same time, and wants that first.
      if (this.#failures++ > 0) warn("ServicesNotTold", message);
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
    this.#table.replace(this.#withinLimits(), `${this.#series}-${this.#revisions++}`);
  }

  /** Of too many Services the newest are left out: who makes more of them takes nothing from others. */
  #withinLimits(): ServicePort[] {
    const all = [...this.#ports.values()].flat();
    const endpoints = all.reduce((sum, port) => sum + costOf(port), 0);
    if (all.length <= MOST_PORTS && endpoints <= MOST_ENDPOINTS) return all;
    const aged = [...this.#ports].map(([key, ports]) => ({ age: this.#age(key), ports }));
    const oldestFirst = aged.sort((one, other) => (one.age < other.age ? -1 : 1));
    const kept: ServicePort[] = [];
    let room = MOST_ENDPOINTS;
    for (const port of oldestFirst.flatMap(({ ports }) => ports)) {
      if (kept.length === MOST_PORTS || costOf(port) > room) break;
      kept.push(port);
      room -= costOf(port);
    }
    const { warn } = this.#options;
    warn(
      "ServicesNotTold",
      `of the ${all.length} ports of the cluster's Services, with ${endpoints} endpoints, machines reach the ${kept.length} oldest: more than ${MOST_PORTS}, or of ${MOST_ENDPOINTS} endpoints (each by ClientIP counts for ${AFFINITY_COST}), are too many for each machine to have`,
    );
    return kept;
  }

  /** When it was made, which is text that sorts; then its name. */
  #age(key: string): string {
    const [namespace = "", name = ""] = key.split("/");
    const made = this.#options.services.getByName(namespace, name)?.metadata?.creationTimestamp;
    return `${made ?? ""} ${key}`;
  }
}

const costOf = ({ endpoints, affinity_s: seconds }: ServicePort): number =>
  endpoints.length * (seconds === undefined ? 1 : AFFINITY_COST);

const keyOf = ({ metadata }: Service): string => `${metadata?.namespace ?? ""}/${metadata?.name ?? ""}`;
