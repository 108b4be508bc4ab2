/** The bodies of replies: read whole, with a cap and a deadline, or passed on while they come. */
import type { IncomingMessage } from "node:http";
import type { Readable } from "node:stream";
import { type Clock, onAbort, ProviderError } from "../../src/provider/kit/index.ts";
import { InvalidReplyError } from "./invalid-reply.ts";

/**
 * The whole body, which ends with the signal or the deadline.
 *
 * @param options.withinMs milliseconds from now until its end
 * @param options.fatal bytes that are not UTF-8 are an error, else they are replaced; default true
 * @throws InvalidReplyError when it is too large or not UTF-8, ProviderError unavailable when it does not end in time
 */
export async function readText(
  body: IncomingMessage,
  options: { maxBytes: number; withinMs: number; clock: Clock; signal: AbortSignal; fatal?: boolean | undefined },
): Promise<string> {
  const { maxBytes, withinMs, clock, signal, fatal = true } = options;
  const breakOff = (why: string) => body.destroy(new ProviderError("unavailable", why));
  const cancel = clock.after(withinMs, () => breakOff("the reply's body did not end in time"));
  using _ = onAbort(signal, () => breakOff("the call was aborted"));
  try {
    const chunks: Buffer[] = [];
    let size = 0;
    for await (const chunk of body as AsyncIterable<Buffer>) {
      size += chunk.length;
      if (size > maxBytes) throw new InvalidReplyError("size", `the reply is larger than ${maxBytes} bytes`);
      chunks.push(chunk);
    }
    return new TextDecoder("utf-8", { fatal }).decode(chunks.length === 1 ? chunks[0] : Buffer.concat(chunks));
  } catch (thrown) {
    if (thrown instanceof TypeError) throw new InvalidReplyError("json", "the reply is not UTF-8", { cause: thrown });
    throw thrown;
  } finally {
    cancel();
  }
}

/**
 * Passes chunks on; breaks the stream when the next one is waited for too long. A reader that takes its time does not
 * count.
 */
export async function* whileAlive(body: Readable, silenceMs: number, clock: Clock): AsyncGenerator<Buffer> {
  const chunks = (body as AsyncIterable<Buffer>)[Symbol.asyncIterator]();
  for (;;) {
    const cancel = clock.after(silenceMs, () =>
      body.destroy(new ProviderError("unavailable", "the backend's stream fell silent")),
    );
    try {
      const next = await chunks.next();
      if (next.done === true) return;
      yield next.value;
    } finally {
      cancel();
    }
  }
}
