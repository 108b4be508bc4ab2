/** Images that are kept ready, as long as this process lives: here at once, or never. */
import {
  assertSameImage,
  type CallOptions,
  type Clock,
  type ImageProvider,
  isSubset,
  noSuchImage,
  type PrewarmedImage,
} from "../../src/provider/kit/index.ts";
import type { ImagePolicy } from "./container.ts";
import type { Operation } from "./faults.ts";

/** Runs a call of the provider as its faults want it. */
type Calls = <T>(operation: Operation, id: string, signal: AbortSignal, effect: () => T) => Promise<T>;

export function memoryImages(options: { clock: Clock; policy: ImagePolicy; call: Calls }): ImageProvider {
  const { clock, policy, call } = options;
  const images = new Map<string, PrewarmedImage>();
  const on = <T>(operation: Operation, id: string, { signal }: CallOptions, effect: () => T) =>
    call(operation, id, signal, effect);
  const find = (id: string): PrewarmedImage => {
    const image = images.get(id);
    if (image === undefined) throw noSuchImage(id);
    return image;
  };
  return {
    create: (id, spec, options) =>
      on("createImage", id, options, () => {
        const { image, labels } = spec;
        const known = images.get(id);
        if (known !== undefined) {
          assertSameImage(id, known, spec);
          return known;
        }
        const refusal = policy(image);
        const created: PrewarmedImage = {
          ...{ id, image, labels, created_at: new Date(clock.now()).toISOString() },
          ...(refusal === undefined ? { state: "ready", image_id: image } : { state: "waiting", ...refusal }),
        };
        images.set(id, created);
        return created;
      }),
    get: (id, options) => on("getImage", id, options, () => find(id)),
    list: (options) =>
      on("listImages", "", options, () => {
        const wanted = [...images.values()].filter((image) => isSubset(options.labels, image.labels));
        return wanted.toSorted((a, b) => (a.id < b.id ? -1 : 1));
      }),
    delete: (id, options) => on("deleteImage", id, options, () => void images.delete(id)),
  };
}
