/** What happened since a revision, by long poll or as a stream: GET /v1/events. */
import {
  type MachineEvent,
  onAbort,
  ProviderError,
  type UnknownMachineEvent,
} from "../../../../src/provider/kit/index.ts";
import { errorReply, EVENT_STREAM_TYPE } from "../../wire.ts";
import { asProviderError, Query, sendJson } from "../http.ts";
import { BatchedOutput, settledSoon } from "../output.ts";
import { lacks, type Exchange, type RouteContext } from "../router.ts";
import { machineJson, sureOf } from "../telling.ts";

type AnyEvent = MachineEvent | UnknownMachineEvent;

/**
 * When the provider itself cannot believe a machine, the caller gets what is certain, and will not believe it either.
 */
function eventJson(event: AnyEvent): string {
  const machine = event.machine === undefined ? JSON.stringify(sureOf(event.unknown)) : machineJson(event.machine);
  return `{"revision":${event.revision},"machine":${machine}}`;
}

/** Events beyond this wait for the next poll. */
const POLL_EVENTS = 500;

export async function getEvents(context: RouteContext, exchange: Exchange): Promise<void> {
  const { provider } = context;
  const asked = new Query(exchange.query, ["since", "timeout", "label"]);
  if (provider.watchPods === undefined) throw lacks("events", "watchPods");
  const since = asked.count("since");
  if (since === undefined) throw new ProviderError("invalid", "since is required", { field: "since" });
  const labels = asked.labels();
  const timeoutMs = asked.timeoutMs(context.limits.longPollMs);
  const stop = new AbortController();
  const signal = AbortSignal.any([exchange.signal, stop.signal]);
  const iterator = provider.watchPods(since, { signal, labels })[Symbol.asyncIterator]();
  try {
    if (exchange.request.headers.accept?.includes(EVENT_STREAM_TYPE) === true)
      await streamEvents(context, exchange, iterator);
    else await pollEvents(context, exchange, iterator, since, timeoutMs);
  } finally {
    stop.abort();
    await iterator.return?.();
  }
}

async function pollEvents(
  { clock }: RouteContext,
  { response, signal }: Exchange,
  iterator: AsyncIterator<AnyEvent>,
  since: number,
  timeoutMs: number,
): Promise<void> {
  const events: string[] = [];
  let last = since;
  const { promise: over, resolve } = Promise.withResolvers<undefined>();
  const release = () => resolve(undefined);
  using _ = onAbort(signal, release);
  const cancel = clock.after(timeoutMs, release);
  try {
    // After the first event, only what is already there.
    let enough: Promise<undefined> = over;
    while (events.length < POLL_EVENTS) {
      const next = iterator.next();
      next.catch(() => {});
      const result = await Promise.race([next, enough]);
      if (result === undefined || result.done === true) break;
      events.push(eventJson(result.value));
      last = result.value.revision;
      enough = new Promise((resolve) => setImmediate(resolve, undefined));
    }
  } finally {
    cancel();
  }
  sendJson(response, 200, `{"events":[${events.join(",")}],"revision":${last}}`);
}

async function streamEvents(
  { clock, limits }: RouteContext,
  { response, signal, requestId }: Exchange,
  iterator: AsyncIterator<AnyEvent>,
): Promise<void> {
  let pending = iterator.next();
  await settledSoon(pending, clock);
  response.writeHead(200, { "content-type": EVENT_STREAM_TYPE, "cache-control": "no-store" });
  response.flushHeaders();
  let cancel = () => {};
  const keepAlive = () => {
    if (!response.writableNeedDrain) response.write(":\n\n");
    cancel = clock.after(limits.keepAliveMs, keepAlive);
  };
  keepAlive();
  const output = new BatchedOutput(response, signal);
  try {
    for (let result = await pending; !result.done; result = await pending) {
      const { revision } = result.value;
      await output.write(Buffer.from(`id: ${revision}\ndata: ${eventJson(result.value)}\n\n`));
      pending = iterator.next();
    }
  } catch (thrown) {
    if (!signal.aborted) {
      const error = JSON.stringify(errorReply(asProviderError(thrown), requestId));
      await output.write(Buffer.from(`event: error\ndata: ${error}\n\n`));
    }
  } finally {
    cancel();
  }
  output.flush();
  response.end();
}
