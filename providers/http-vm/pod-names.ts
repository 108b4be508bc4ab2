/** Which pod a request is about, for people who read logs: the path has the machine's id alone. */
import { LABEL_NAMESPACE, LABEL_POD } from "../../src/provider/kit/index.ts";

/** Of more machines, those that were seen last are known. */
const MOST = 10_000;

export class PodNames {
  readonly #names = new Map<string, string>();

  /** @param labels of the machine */
  remember(id: string, labels: Readonly<Record<string, string>>): void {
    const pod = labels[LABEL_POD];
    if (pod === undefined || this.#names.has(id)) return;
    this.#names.set(id, `${labels[LABEL_NAMESPACE] ?? "default"}/${pod}`);
    const [first] = this.#names.keys();
    if (this.#names.size > MOST && first !== undefined) this.#names.delete(first);
  }

  /** `namespace/name` of the pod whose machine the path names, if it is known. */
  of(path: string): string | undefined {
    const id = machineOf(path);
    return id === undefined ? undefined : this.#names.get(id);
  }
}

/** The id in a request's path. */
export function machineOf(path: string): string | undefined {
  return /^\/v1\/machines\/([^/?]+)/.exec(path)?.[1];
}
