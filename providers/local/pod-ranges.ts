/** The range of machines' addresses as clients have it, where it is a Node's. */
import { type PodRangesProvider, ProviderError, toError } from "../../src/provider/kit/index.ts";
import type { Engine } from "./engine.ts";

/** Undefined where the host's owner says what addresses there are. @param assertOpen throws when the backend stops */
export function podRangesOf({ nodeRange }: Engine, assertOpen: () => void): PodRangesProvider | undefined {
  if (nodeRange === undefined) return undefined;
  const { api } = nodeRange;
  const call = async <T>(work: () => Promise<T>): Promise<T> => {
    assertOpen();
    try {
      return await work();
    } catch (thrown) {
      if (thrown instanceof ProviderError) throw thrown;
      const why = `the range of the machines' addresses cannot be set: ${toError(thrown).message}`;
      throw new ProviderError("unavailable", why, { cause: thrown });
    }
  };
  return {
    put: (spec, options) => call(() => api.put(spec, options)),
    get: (options) => call(() => api.get(options)),
    delete: (options) => call(() => api.delete(options)),
  };
}
