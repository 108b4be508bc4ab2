/** Images that a backend keeps ready, as every provider and the Machine API describe them. */
import type { Schemas } from "./contract/document.ts";
import { ProviderError } from "./errors.ts";
import type { CallOptions } from "./provider.ts";

export type PrewarmSpec = Schemas["PrewarmSpec"];
export type PrewarmedImage = Schemas["PrewarmedImage"];

/**
 * Capability `images.prewarm`. What every provider must keep (the conformance kit checks it):
 *
 * - `ready` is said only of an image that is here whole: a machine that may pull nothing runs with it.
 * - An image that is listed is not removed to free disk.
 * - That an image is here gives nobody a right to it.
 */
export interface ImageProvider {
  /**
   * Idempotent; resolves before the image is here. Repeated, it tries at once what is `waiting`.
   * @throws ProviderError invalid, conflict, quota, unauthorized, unavailable
   */
  create(id: string, spec: PrewarmSpec, options: CallOptions): Promise<PrewarmedImage>;
  /** @throws ProviderError not_found, unavailable */
  get(id: string, options: CallOptions): Promise<PrewarmedImage>;
  /** All that carry every one of `labels`, in the order of their ids. */
  list(options: CallOptions & { labels: Record<string, string> }): Promise<PrewarmedImage[]>;
  /** Idempotent. @throws ProviderError conflict for one that the backend's configuration lists, unavailable */
  delete(id: string, options: CallOptions): Promise<void>;
}

/** Says that no such image is kept. */
export function noSuchImage(id: string): ProviderError {
  return new ProviderError("not_found", `no image ${id} is kept`);
}

/** @throws ProviderError conflict where the id is another image's already */
export function assertSameImage(id: string, known: PrewarmedImage, { image, labels }: PrewarmSpec): void {
  const isSame =
    known.image === image &&
    Object.keys(known.labels).length === Object.keys(labels).length &&
    Object.entries(labels).every(([key, value]) => Object.hasOwn(known.labels, key) && known.labels[key] === value);
  if (!isSame)
    throw new ProviderError("conflict", `image ${id} is ${known.image}, or has other labels: choose another id`);
}
