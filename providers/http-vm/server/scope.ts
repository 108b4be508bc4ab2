/**
 * What a client of the Machine API reaches: its own clusters' and nodes' machines, by the verbs that it was given. Each
 * call of a route goes through here, so that no route can forget to ask.
 *
 * Whose a machine is, its labels say. What is not the client's is answered `unauthorized`, never `not_found`: if the
 * scope is a mistake, and the machine is the client's after all, it must not take a machine that runs for one that is
 * gone.
 */
import {
  type CallOptions,
  type DeleteOptions,
  clusterPrefix,
  type ImageProvider,
  isProviderError,
  LABEL_CLUSTER,
  LABEL_NODE,
  type LogLine,
  type LogOptions,
  type Machine,
  type MachineEvent,
  type MachineList,
  type MachineSpec,
  nodeIdOf,
  type PodRangesProvider,
  type Services,
  type ServicesProvider,
  type ServicesSpec,
  type Provider,
  ProviderError,
  type ProviderInfo,
  requiredCapabilities,
  type Requirement,
  type UnknownMachineEvent,
  volumeClaims,
  type VolumeProvider,
} from "../../../src/provider/kit/index.ts";
import { scopedImages } from "./scope-images.ts";
import { scopedPodRanges } from "./scope-pod-ranges.ts";
import { scopedVolumes } from "./scope-volumes.ts";

export const VERBS = ["read", "logs", "write", "exec", "port_forward", "volumes", "images", "host"] as const;
/**
 * read: machines, events, stats, capacity. logs: what containers wrote. write: create, change, stop and delete
 * machines. exec: run commands and attach. port_forward: connect to ports. volumes: create, let grow, reserve, release
 * and delete volumes. images: say which the host keeps ready. host: make machines that need what the backend reserves
 * for some namespaces; which one a machine is of is the client's word.
 */
export type Verb = (typeof VERBS)[number];

export interface Scope {
  /** Ids of clusters, as an agent's `clusterId`. Absent: all. */
  clusters?: readonly string[] | undefined;
  /** Names of nodes. Absent: all. */
  nodes?: readonly string[] | undefined;
  /** Absent: all but `host` and `images`, and but `volumes` where there are `nodes`: a volume is no node's. */
  verbs?: readonly Verb[] | undefined;
}

type Labels = Record<string, string>;

/** @param client named in refusals */
export function scopedProvider(provider: Provider, client: string, scope: Scope): Provider {
  const mayAll = VERBS.every((verb) => scope.verbs?.includes(verb));
  if (scope.clusters === undefined && scope.nodes === undefined && mayAll) return provider;
  return new ScopedProvider(provider, client, scope);
}

class ScopedProvider implements Provider {
  readonly name: string;
  readonly updatePod?: NonNullable<Provider["updatePod"]>;
  readonly watchPods?: NonNullable<Provider["watchPods"]>;
  readonly getCapacity?: NonNullable<Provider["getCapacity"]>;
  readonly getStats?: NonNullable<Provider["getStats"]>;
  readonly exec?: NonNullable<Provider["exec"]>;
  readonly attach?: NonNullable<Provider["attach"]>;
  readonly portForward?: NonNullable<Provider["portForward"]>;
  readonly volumes?: VolumeProvider;
  readonly images?: ImageProvider;
  readonly podRanges?: PodRangesProvider;
  readonly services?: ServicesProvider;
  readonly #provider: Provider;
  readonly #client: string;
  readonly #verbs: readonly Verb[];
  /** By label: the values that a machine may have. */
  readonly #allowed: readonly (readonly [label: string, values: ReadonlySet<string>])[];

  constructor(provider: Provider, client: string, { clusters, nodes, verbs }: Scope) {
    this.name = provider.name;
    this.#provider = provider;
    this.#client = client;
    const byName: readonly Verb[] = ["host", "images", ...(nodes === undefined ? [] : (["volumes"] as const))];
    this.#verbs = verbs ?? VERBS.filter((verb) => !byName.includes(verb));
    this.#allowed = [
      ...(clusters === undefined ? [] : [[LABEL_CLUSTER, new Set(clusters.map(clusterPrefix))] as const]),
      ...(nodes === undefined ? [] : [[LABEL_NODE, new Set(nodes)] as const]),
    ];
    // A capability that the provider lacks is lacking here too.
    if (provider.updatePod !== undefined)
      this.updatePod = async (id, patch, options) => {
        await this.#requireOwn("write", id, options);
        const added = { labels: {}, containers: [], restart_policy: "always" as const };
        const { ephemeral_containers = [] } = patch;
        await this.#requireHost(requiredCapabilities({ ...added, ephemeral_containers }), options);
        return await provider.updatePod!(id, patch, options);
      };
    if (provider.watchPods !== undefined) this.watchPods = (since, options) => this.#watch(since, options);
    if (provider.getCapacity !== undefined)
      this.getCapacity = async (options) => {
        this.#require("read");
        return await provider.getCapacity!(options);
      };
    if (provider.getStats !== undefined)
      this.getStats = async ({ signal, labels }) => {
        this.#require("read");
        const selected = { signal, labels: this.#select(labels) };
        const samples = await provider.getStats!(selected);
        // A sample has no labels.
        const own = new Set((await this.getPods(selected)).items.map(({ id }) => id));
        return samples.filter(({ id }) => own.has(id));
      };
    if (provider.exec !== undefined)
      this.exec = async (id, container, command, options) => {
        await this.#requireOwn("exec", id, options);
        return await provider.exec!(id, container, command, options);
      };
    if (provider.attach !== undefined)
      this.attach = async (id, container, options) => {
        await this.#requireOwn("exec", id, options);
        return await provider.attach!(id, container, options);
      };
    if (provider.portForward !== undefined)
      this.portForward = async (id, port, options) => {
        await this.#requireOwn("port_forward", id, options);
        return await provider.portForward!(id, port, options);
      };
    if (provider.volumes !== undefined)
      this.volumes = scopedVolumes(provider.volumes, {
        clusters: clusters && new Set(clusters.map(clusterPrefix)),
        nodes: nodes && new Set(nodes),
        mayRead: this.#verbs.includes("read"),
        mayWrite: this.#verbs.includes("volumes"),
        refusal: (what) => this.#refusal(what),
      });
    if (provider.images !== undefined)
      this.images = scopedImages(provider.images, {
        clusters: clusters && new Set(clusters.map(clusterPrefix)),
        mayRead: this.#verbs.includes("read"),
        mayWrite: this.#verbs.includes("images"),
        refusal: (what) => this.#refusal(what),
      });
    if (provider.podRanges !== undefined)
      this.podRanges = scopedPodRanges(provider.podRanges, {
        mayRead: this.#verbs.includes("read"),
        mayWrite: this.#verbs.includes("write"),
        isOwn: (labels) => this.#wrongLabel(labels) === undefined,
        refusal: (what) => this.#refusal(what),
      });
    const { services } = provider;
    if (services !== undefined) this.services = { put: (spec, options) => this.#putServices(services, spec, options) };
  }

  /** Of machines of its own alone. */
  async #putServices(services: ServicesProvider, spec: ServicesSpec, options: CallOptions): Promise<Services> {
    this.#require("write");
    if (this.#wrongLabel(spec.labels) === undefined) return await services.put(spec, options);
    throw this.#refusal("say where Services lead for machines of a node that is not its own");
  }

  getInfo(options: CallOptions): Promise<ProviderInfo> {
    return this.#provider.getInfo(options);
  }

  async createPod(id: string, spec: MachineSpec, options: CallOptions): Promise<Machine> {
    this.#require("write");
    const wrong = this.#wrongLabel(spec.labels);
    if (wrong !== undefined)
      throw this.#refusal(`make a machine whose label ${wrong} is ${JSON.stringify(spec.labels[wrong] ?? "absent")}`);
    await this.#requireOwnVolumes(spec, options);
    await this.#requireHost(requiredCapabilities(spec), options);
    return await this.#provider.createPod(id, spec, options);
  }

  async getPod(id: string, options: CallOptions): Promise<Machine> {
    this.#require("read");
    return await this.#own(id, options);
  }

  async getPods(options: CallOptions & { labels: Labels; includeDeleted?: boolean | undefined }): Promise<MachineList> {
    this.#require("read");
    const labels = this.#select(options.labels);
    const { items, unknown = [], revision } = await this.#provider.getPods({ ...options, labels });
    return {
      items: items.filter((machine) => this.#isOwn(machine)),
      // They have no labels, so only those count that the provider found by them.
      unknown: this.#isSelectedBy(labels) ? unknown : [],
      revision,
    };
  }

  async stopPod(id: string, options: CallOptions & { graceSeconds: number }): Promise<Machine | undefined> {
    await this.#requireOwn("write", id, options);
    return await this.#provider.stopPod(id, options);
  }

  async deletePod(id: string, options: DeleteOptions): Promise<void> {
    this.#require("write");
    try {
      await this.#own(id, options);
    } catch (thrown) {
      // A tombstone for what never was: it keeps a create away that is late.
      if (!(thrown instanceof ProviderError) || thrown.code !== "not_found") throw thrown;
    }
    await this.#provider.deletePod(id, options);
  }

  async *getLogs(id: string, container: string, options: LogOptions): AsyncIterable<LogLine> {
    await this.#requireOwn("logs", id, options);
    yield* this.#provider.getLogs(id, container, options);
  }

  /** The provider is not this client's to close. */
  close(): Promise<void> {
    return Promise.resolve();
  }

  async *#watch(
    since: number,
    options: CallOptions & { labels: Labels },
  ): AsyncIterable<MachineEvent | UnknownMachineEvent> {
    this.#require("read");
    const labels = this.#select(options.labels);
    const isSelected = this.#isSelectedBy(labels);
    for await (const event of this.#provider.watchPods!(since, { ...options, labels })) {
      if (event.machine === undefined ? isSelected : this.#isOwn(event.machine)) yield event;
    }
  }

  #require(verb: Verb): void {
    if (!this.#verbs.includes(verb)) throw this.#refusal(verb);
  }

  /** Nobody is believed about namespaces who was not given the verb. */
  async #requireHost(needs: readonly Requirement[], options: CallOptions): Promise<void> {
    if (needs.length === 0 || this.#verbs.includes("host")) return;
    const { reserved } = await this.#provider.getInfo(options);
    const need = needs.find(({ capability }) => reserved?.capabilities.includes(capability));
    if (need !== undefined)
      throw this.#refusal(`make a machine with ${need.capability} (${need.field}): it lacks the verb host`);
  }

  async #requireOwn(verb: Verb, id: string, options: CallOptions): Promise<void> {
    this.#require(verb);
    await this.#own(id, options);
  }

  /** @throws ProviderError not_found, unauthorized when the machine is another's */
  async #own(id: string, { signal }: CallOptions): Promise<Machine> {
    const machine = await this.#provider.getPod(id, { signal });
    if (!this.#isOwn(machine)) throw this.#refusal("reach this machine: its labels name another's cluster or node");
    return machine;
  }

  /**
   * A machine has only its own cluster's, and a node's machine only what is kept for that node: what another node's
   * machines have left lies there for the next of those. What is absent, the provider says.
   */
  async #requireOwnVolumes(spec: MachineSpec, { signal }: CallOptions): Promise<void> {
    const clusters = this.#allowed.find(([label]) => label === LABEL_CLUSTER)?.[1];
    for (const { claim } of this.#allowed.length === 0 ? [] : volumeClaims(spec)) {
      if (clusters === undefined)
        throw this.#refusal(`give a machine the volume ${claim.volume}: it is bound to nodes and to no cluster`);
      const own = this.#reservationOf(spec.labels);
      if (own !== undefined && claim.reservation !== own)
        throw this.#refusal(
          `give a machine the volume ${claim.volume} by ${claim.reservation === undefined ? "no reservation" : `the reservation ${claim.reservation}`}: its node's is ${own}`,
        );
      const volume = await this.#provider.volumes?.get(claim.volume, { signal }).catch((thrown: unknown) => {
        if (isProviderError(thrown, "not_found")) return undefined;
        throw thrown;
      });
      if (volume !== undefined && !clusters.has(volume.labels[LABEL_CLUSTER] ?? ""))
        throw this.#refusal(`give a machine the volume ${claim.volume}: its labels name another's cluster`);
    }
  }

  /** By which a machine with these labels may have volumes; undefined: the client is bound to no node. */
  #reservationOf(labels: Labels): string | undefined {
    if (!this.#allowed.some(([label]) => label === LABEL_NODE)) return undefined;
    return nodeIdOf(labels[LABEL_CLUSTER] ?? "", labels[LABEL_NODE] ?? "");
  }

  #isOwn({ state, labels }: Machine): boolean {
    // Of a machine that never was, a tombstone says no more than that.
    const isNobodys = state === "deleted" && labels[LABEL_CLUSTER] === undefined && labels[LABEL_NODE] === undefined;
    return isNobodys || this.#wrongLabel(labels) === undefined;
  }

  #wrongLabel(labels: Labels): string | undefined {
    return this.#allowed.find(([label, values]) => !Object.hasOwn(labels, label) || !values.has(labels[label]!))?.[0];
  }

  /**
   * What to ask the provider for. @throws ProviderError unauthorized for labels outside the scope: an empty list would
   * say that those machines are gone
   */
  #select(labels: Labels): Labels {
    const selected = { ...labels };
    for (const [label, values] of this.#allowed) {
      const asked = labels[label];
      if (asked !== undefined && !values.has(asked))
        throw this.#refusal(`list machines whose label ${label} is ${JSON.stringify(asked)}`);
      const [only, ...more] = values;
      if (asked === undefined && more.length === 0) selected[label] = only!;
    }
    return selected;
  }

  #isSelectedBy(labels: Labels): boolean {
    return this.#allowed.every(([label]) => labels[label] !== undefined);
  }

  #refusal(what: string): ProviderError {
    return new ProviderError("unauthorized", `the client ${this.#client} may not ${what}`);
  }
}
