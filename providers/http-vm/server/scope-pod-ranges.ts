/** What a client of the Machine API reaches of the ranges of machines' addresses: it tells those of its own node. */
import type { PodRangesProvider, ProviderError } from "../../../src/provider/kit/index.ts";

interface PodRangesScope {
  mayRead: boolean;
  mayWrite: boolean;
  /** Whether labels are those of a node of the client's. */
  isOwn: (labels: Record<string, string>) => boolean;
  /** The error for what the client may not. */
  refusal: (what: string) => ProviderError;
}

export function scopedPodRanges(ranges: PodRangesProvider, scope: PodRangesScope): PodRangesProvider {
  const { mayRead, mayWrite, isOwn, refusal } = scope;
  const requireOwn = (labels: Record<string, string>) => {
    if (!mayWrite) throw refusal("say which addresses machines get: it lacks the verb write");
    if (!isOwn(labels)) throw refusal("say which addresses the machines of a node get that is not its own");
  };
  return {
    async put(spec, options) {
      requireOwn(spec.labels);
      return await ranges.put(spec, options);
    },
    async get(options) {
      if (!mayRead) throw refusal("read");
      const told = await ranges.get(options);
      // Whose they are is nobody's business who has no part in them.
      return isOwn(told.labels) ? told : { ...told, labels: {} };
    },
    async delete(options) {
      requireOwn(options.labels);
      await ranges.delete(options);
    },
  };
}
