/** The images that a backend of the Machine API keeps ready, with the same rules of trust as for machines. */
import {
  type CallOptions,
  type ImageProvider,
  isSubset,
  type PrewarmedImage,
  type PrewarmSpec,
} from "../../src/provider/kit/index.ts";
import { violation } from "../../src/provider/contract/document.ts";
import { type Call, imagePath, labelQuery } from "./call.ts";
import type { MachineApiClient } from "./client.ts";
import type { Judge } from "./judge.ts";
import { plainText, requireValid, tameTexts } from "./validate.ts";

export class HttpVmImages implements ImageProvider {
  readonly #client: MachineApiClient;
  readonly #judge: Judge;

  constructor(client: MachineApiClient, judge: Judge) {
    this.#client = client;
    this.#judge = judge;
  }

  async create(id: string, spec: PrewarmSpec, { signal }: CallOptions): Promise<PrewarmedImage> {
    requireValid(violation("request", "PrewarmSpec", spec));
    return await this.#image(id, { method: "PUT", path: imagePath(id), body: spec, signal });
  }

  get(id: string, { signal }: CallOptions): Promise<PrewarmedImage> {
    return this.#image(id, { method: "GET", path: imagePath(id), signal });
  }

  async list({ labels, signal }: CallOptions & { labels: Record<string, string> }): Promise<PrewarmedImage[]> {
    const call: Call = { method: "GET", path: "/v1/images", query: labelQuery(labels), signal };
    const { items } = await this.#client.json(call, "PrewarmedImageList");
    if (new Set(items.map(({ id }) => id)).size < items.length)
      throw this.#judge.refuse("duplicate_id", "the list has an image twice");
    if (!items.every((image) => isSubset(labels, image.labels)))
      throw this.#judge.refuse("labels", "the list has an image without the labels that were asked for");
    return items.map(tame);
  }

  async delete(id: string, { signal }: CallOptions): Promise<void> {
    await this.#client.accepted({ method: "DELETE", path: imagePath(id), signal });
  }

  /** The image that a call is about, as its reply has it. */
  async #image(id: string, call: Call): Promise<PrewarmedImage> {
    const image = await this.#client.json(call, "PrewarmedImage");
    if (image.id === id) return tame(image);
    throw this.#judge.refuse("machine_id", `the reply is about image ${image.id}, not ${id}`);
  }
}

/** What a backend says reaches a terminal. */
function tame(image: PrewarmedImage): PrewarmedImage {
  const { image_id } = image;
  const named = { ...image, image: plainText(image.image, 1024) };
  const tamed = image_id === undefined ? named : { ...named, image_id: plainText(image_id, 1024) };
  tameTexts(tamed);
  return tamed;
}
