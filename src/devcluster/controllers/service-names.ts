/**
 * Names of Services, as lines of a hosts file for each namespace: where there is no network for a DNS server, programs
 * find them there. As the cluster's DNS has it, a Service without an address of its own is all of its endpoints.
 */
import { mustFindKind } from "../kinds/kinds.ts";
import { storageName } from "../kinds/kind.ts";
import type { Json, StoredObject } from "../objects/object.ts";
import { KeyedController, type ControllerOptions } from "./controller.ts";

/** Namespace -> its lines, `ADDRESS NAME...`. */
export type PublishNames = (hosts: ReadonlyMap<string, readonly string[]>) => void;

const DOMAIN = "cluster.local";
const WATCHED = ["namespaces", "services", "endpoints"].map((plural) => storageName(mustFindKind("", "v1", plural)));
/** One for all: a Service is known by a longer name in every other namespace. */
const EVERYTHING = "";

export class ServiceNames extends KeyedController {
  readonly #publish: PublishNames;

  constructor(options: ControllerOptions & { publish: PublishNames }) {
    super(options, "service-names");
    this.#publish = options.publish;
  }

  start(): void {
    for (const resource of WATCHED) this.watch(resource, () => this.queue.add(EVERYTHING));
    this.queue.add(EVERYTHING);
  }

  protected sync(): void {
    const named = this.storage.list("/services").flatMap((service) => this.#namesOf(service));
    const hosts = this.storage.list("/namespaces").map(({ metadata: { name: namespace } }) => {
      const lines = named.map(({ address, name, namespace: own }) => {
        const long = [`${name}.${own}`, `${name}.${own}.svc`, `${name}.${own}.svc.${DOMAIN}`];
        return [address, ...(own === namespace ? [name] : []), ...long].join(" ");
      });
      return { namespace, lines };
    });
    this.#publish(new Map(hosts.map(({ namespace, lines }) => [namespace, lines])));
  }

  #namesOf({ metadata, spec }: StoredObject): { address: string; name: string; namespace: string }[] {
    const { name, namespace } = metadata as { name: string; namespace: string };
    if (spec.type === "ExternalName") return [];
    if (spec.clusterIP && spec.clusterIP !== "None") return [{ address: spec.clusterIP as string, name, namespace }];
    const subsets: Json[] = this.storage.get("/endpoints", `${namespace}/${name}`)?.["subsets"] ?? [];
    return subsets.flatMap(({ addresses }) =>
      ((addresses ?? []) as Json[]).flatMap(({ ip, hostname }) => [
        { address: ip as string, name, namespace },
        ...(hostname ? [{ address: ip as string, name: `${hostname}.${name}`, namespace }] : []),
      ]),
    );
  }
}
