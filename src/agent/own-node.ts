/** The Node of this agent as the API server has it. */
import type { Store } from "../kube/store.ts";
import type { Node } from "../kube/wire.ts";
import { othersResources } from "../node/node-status.ts";
import { parseResourceList, type ResourceList } from "../resources/pod-resources.ts";

interface Parsed {
  node: Node | undefined;
  allocatable: ResourceList;
  others: ReadonlySet<string>;
}

export class OwnNode {
  readonly #name: string;
  #store: Store<Node> | undefined;
  #refresh: () => void = () => undefined;
  /** Parsed once for each copy of the Node: every pod asks for it several times. */
  /** A newer one than its store has. */
  #seen: { node: Node; before: Node | undefined } | undefined;
  #parsed: Parsed = { node: undefined, allocatable: new Map(), others: new Set() };

  constructor(name: string) {
    this.#name = name;
  }

  /** From now on, what its `store` holds is the Node; before that there is none. */
  follow(controller: { store: Store<Node>; refresh: () => void }): void {
    this.#store = controller.store;
    this.#refresh = () => controller.refresh();
  }

  /** Has the Node's status written at once: something that it tells has changed. */
  refresh(): void {
    this.#refresh();
  }

  /**
   * The API server has said this of it, which a watch may be late to bring.
   * @param before what was known when it was asked: what the watch has brought since may be newer
   */
  see(node: Node, before: Node | undefined): void {
    this.#seen = { node, before };
  }

  /** Undefined while it is not registered. */
  get current(): Node | undefined {
    return this.#store?.getByName("", this.#name);
  }

  get isReady(): boolean {
    const conditions = this.current?.status?.conditions ?? [];
    return conditions.some(({ type, status }) => type === "Ready" && status === "True");
  }

  get allocatable(): ResourceList {
    return this.#newest().allocatable;
  }

  /** Extended resources that are counted by the Node alone. */
  get othersResources(): ReadonlySet<string> {
    return this.#newest().others;
  }

  #newest(): Parsed {
    const { current } = this;
    // What comes by the watch after it, is newer.
    if (this.#seen !== undefined && this.#seen.before !== current) this.#seen = undefined;
    const node = this.#seen?.node ?? current;
    if (this.#parsed.node !== node)
      this.#parsed = {
        node,
        allocatable: parseResourceList(node?.status?.allocatable),
        others: node === undefined ? new Set() : othersResources(node),
      };
    return this.#parsed;
  }
}
