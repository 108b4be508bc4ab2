/** The ConfigMaps that one process reads and watches. */
import type { KubeRequest, WatchEvent } from "../../../src/kube/kube.ts";
import type { ConfigMap } from "../../../src/kube/wire.ts";
import type { Fault } from "../network.ts";
import type { Agent } from "./agent.ts";
import { Stream } from "./stream.ts";

export class AgentConfigs {
  readonly #agent: Agent;
  readonly #fault: (kind: Fault) => Error;
  #watched: { namespace: string; stream: Stream<WatchEvent<ConfigMap>> }[] = [];

  constructor(agent: Agent, fault: (kind: Fault) => Error) {
    this.#agent = agent;
    this.#fault = fault;
  }

  read({ path }: KubeRequest): Promise<unknown> {
    const { world, network } = this.#agent;
    const namespace = namespaceIn(path);
    const exec = () =>
      path.endsWith("/configmaps") ? world.configMaps.list(namespace) : world.configMaps.get(namespace);
    const fault = this.#fault;
    return network.send({ agent: this.#agent, name: "ref.GET", uid: undefined, changes: false, exec, fault });
  }

  watch(path: string, version: number, signal: AbortSignal | undefined): Stream<WatchEvent<ConfigMap>> {
    const { log } = this.#agent.world.configMaps;
    const first = log.findIndex((entry) => entry.version > version);
    const stream = new Stream<WatchEvent<ConfigMap>>(first === -1 ? log.length : first, signal!);
    this.#watched = [
      ...this.#watched.filter(({ stream: { isOpen } }) => isOpen),
      { namespace: namespaceIn(path), stream },
    ];
    return stream;
  }

  /** The next few events of each watch. */
  deliver(count: number): void {
    const { log } = this.#agent.world.configMaps;
    for (const { namespace, stream } of this.#watched) {
      for (let left = count; left > 0 && stream.position < log.length; left--, stream.position++) {
        const { type, object } = log[stream.position]!;
        if (object.metadata!.namespace === namespace) stream.push({ type, object });
      }
    }
  }
}

const namespaceIn = (path: string): string => /namespaces\/([^/]+)/.exec(path)![1]!;
