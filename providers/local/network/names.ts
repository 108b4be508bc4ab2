/** What a bridge's links, namespaces, rules and lock are called, so that they are found and removed again. */
import { createHash } from "node:crypto";

const HASH_LENGTH = 10;

export class NetworkNames {
  readonly bridge: string;
  /** Of nftables. */
  readonly table: string;
  readonly lockFile: string;
  readonly #linkPrefix: string;

  constructor(bridge: string) {
    this.bridge = bridge;
    this.table = `vmlet_${bridge}`;
    this.lockFile = `/run/vmlet-${bridge}.lock`;
    this.#linkPrefix = `vm${createHash("sha256").update(bridge).digest("hex").slice(0, 3)}`;
  }

  /** The machine's interface on the bridge. */
  link(machineId: string): string {
    return `${this.#linkPrefix}${this.#hash(machineId)}`;
  }

  /** Another one of these machines, whose interface would have the same name: each would remove the other's. */
  namesake(machineId: string, others: Iterable<string>): string | undefined {
    const name = this.link(machineId);
    for (const other of others) if (other !== machineId && this.link(other) === name) return other;
    return undefined;
  }

  netns(machineId: string): string {
    return `${this.bridge}-${this.#hash(machineId)}`;
  }

  /** Whether a link has a name of ours that is none of `known`. */
  isStrayLink(link: string, known: ReadonlySet<string>): boolean {
    return link.startsWith(this.#linkPrefix) && !known.has(link);
  }

  /** The same for a network namespace. Another bridge's name may begin like ours. */
  isStrayNetns(netns: string, known: ReadonlySet<string>): boolean {
    const hash = netns.slice(-HASH_LENGTH);
    const isMine = netns === `${this.bridge}-${hash}` && /^[0-9a-f]+$/.test(hash) && hash.length === HASH_LENGTH;
    return isMine && !known.has(netns);
  }

  #hash(machineId: string): string {
    return createHash("sha256").update(`${this.bridge}\0${machineId}`).digest("hex").slice(0, HASH_LENGTH);
  }
}
