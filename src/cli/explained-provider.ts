/** A provider of somebody who is writing it: what its methods throw by mistake is told, not hidden. */
import { ProviderError } from "../provider/errors.ts";
import type { Provider } from "../provider/provider.ts";

export function explained(provider: Provider): Provider {
  return new Proxy(provider, {
    get(target, key) {
      const value: unknown = Reflect.get(target, key, target);
      if (typeof value !== "function") return value;
      return (...args: unknown[]) => {
        try {
          const result: unknown = (value as (...all: unknown[]) => unknown).apply(target, args);
          if (result instanceof Promise)
            return result.catch((thrown: unknown) => {
              throw told(String(key), thrown);
            });
          return isIterable(result) ? iterating(String(key), result) : result;
        } catch (thrown) {
          throw told(String(key), thrown);
        }
      };
    },
  });
}

const isIterable = (value: unknown): value is AsyncIterable<unknown> =>
  typeof value === "object" && value !== null && Symbol.asyncIterator in value;

async function* iterating(method: string, source: AsyncIterable<unknown>): AsyncGenerator {
  try {
    yield* source;
  } catch (thrown) {
    throw told(method, thrown);
  }
}

/** With the first line of the author's own that was on the way. */
function told(method: string, thrown: unknown): unknown {
  if (thrown instanceof ProviderError) return thrown;
  const text = thrown instanceof Error ? `${thrown.name}: ${thrown.message}` : String(thrown);
  const frame =
    thrown instanceof Error ? thrown.stack?.split("\n").find((line) => line.includes("file://")) : undefined;
  const where = frame === undefined ? "" : ` ${frame.trim()}`;
  return new ProviderError("unavailable", `${method}() threw ${text}${where}; it should throw a ProviderError`, {
    cause: thrown,
  });
}
