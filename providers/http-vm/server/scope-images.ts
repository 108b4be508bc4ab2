/**
 * What a client of the Machine API reaches of the images that the host keeps ready: those of its clusters. They take
 * the host's disk, so nobody changes the list who was not given the verb by name.
 */
import {
  type ImageProvider,
  LABEL_CLUSTER,
  type PrewarmedImage,
  type ProviderError,
} from "../../../src/provider/kit/index.ts";
import { ofClusters, ownOrAbsent } from "./scope-clusters.ts";

interface ImageScope {
  /** Values of the cluster's label; undefined: all. */
  clusters: ReadonlySet<string> | undefined;
  mayRead: boolean;
  mayWrite: boolean;
  /** The error for what the client may not. */
  refusal: (what: string) => ProviderError;
}

export function scopedImages(images: ImageProvider, scope: ImageScope): ImageProvider {
  const { clusters, mayRead, mayWrite, refusal } = scope;
  const requireRead = () => {
    if (!mayRead) throw refusal("read");
  };
  const requireWrite = () => {
    if (!mayWrite) throw refusal("say which images are kept ready: it lacks the verb images");
  };
  const isOwn = ofClusters(clusters);
  const own = async (id: string, signal: AbortSignal): Promise<PrewarmedImage> => {
    const image = await images.get(id, { signal });
    if (isOwn(image.labels)) return image;
    throw refusal("reach this image: its labels name another's cluster");
  };
  return {
    async create(id, spec, options) {
      requireWrite();
      if (!isOwn(spec.labels)) throw refusal(`keep an image whose label ${LABEL_CLUSTER} is not its cluster's`);
      await ownOrAbsent(own(id, options.signal));
      return await images.create(id, spec, options);
    },
    async get(id, { signal }) {
      requireRead();
      return await own(id, signal);
    },
    async list(options) {
      requireRead();
      return (await images.list(options)).filter(({ labels }) => isOwn(labels));
    },
    async delete(id, options) {
      requireWrite();
      await ownOrAbsent(own(id, options.signal));
      await images.delete(id, options);
    },
  };
}
