/** The node as the API server has it: its capacity changes, as that of a backend does. */
import type { Node } from "../../../src/kube/wire.ts";
import { NODE } from "./names.ts";

const FULL = { cpu: "4", memory: "8Gi", pods: "20" };

export class NodeCapacity {
  #node = nodeWith(FULL.cpu);
  /** It has lacked room once. */
  wasShort = false;

  get node(): Node {
    return this.#node;
  }

  /** How many pods that ask for a cpu fit. */
  setCpus(count: number): void {
    this.wasShort ||= count < 4;
    this.#node = nodeWith(String(count));
  }

  restore(): void {
    this.#node = nodeWith(FULL.cpu);
  }
}

function nodeWith(cpu: string): Node {
  return {
    apiVersion: "v1",
    kind: "Node",
    metadata: { name: NODE, uid: "node", labels: {} },
    spec: {},
    status: { allocatable: { ...FULL, cpu }, nodeInfo: { operatingSystem: "linux" } as never },
  };
}
