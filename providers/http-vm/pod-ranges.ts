/** The ranges of machines' addresses of a backend of the Machine API, with the same rules of trust as for machines. */
import {
  type CallOptions,
  isSubset,
  type PodRanges,
  type PodRangesProvider,
  type PodRangesSpec,
} from "../../src/provider/kit/index.ts";
import { violation } from "../../src/provider/contract/document.ts";
import { type Call, labelQuery, POD_RANGES_PATH as path } from "./call.ts";
import type { MachineApiClient } from "./client.ts";
import type { Judge } from "./judge.ts";
import { plainText, requireValid } from "./validate.ts";

export class HttpVmPodRanges implements PodRangesProvider {
  readonly #client: MachineApiClient;
  readonly #judge: Judge;

  constructor(client: MachineApiClient, judge: Judge) {
    this.#client = client;
    this.#judge = judge;
  }

  async put(spec: PodRangesSpec, { signal }: CallOptions): Promise<PodRanges> {
    requireValid(violation("request", "PodRangesSpec", spec));
    const told = await this.#read({ method: "PUT", path, body: spec, signal });
    const isAnswer = isSubset(spec.labels, told.labels) && told.ranges.every((range) => spec.ranges.includes(range));
    if (isAnswer && told.ranges.length > 0 && told.state !== "none") return told;
    throw this.#judge.refuse("labels", "the reply is about other ranges of addresses than those that were told");
  }

  async get({ signal }: CallOptions): Promise<PodRanges> {
    return await this.#read({ method: "GET", path, signal });
  }

  async delete({ labels, signal }: CallOptions & { labels: Record<string, string> }): Promise<void> {
    await this.#client.accepted({ method: "DELETE", path, query: labelQuery(labels), signal });
  }

  /** What a backend says reaches the Node and a terminal. */
  async #read(call: Call): Promise<PodRanges> {
    const { message, ...told } = await this.#client.json(call, "PodRanges");
    const tame = (texts: readonly string[]) => texts.map((text) => plainText(text, 64));
    const tamed = { ...told, within: tame(told.within), ranges: tame(told.ranges) };
    return message === undefined ? tamed : { ...tamed, message: plainText(message, 1024) };
  }
}
