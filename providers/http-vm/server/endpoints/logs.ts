/** A container's log, line by line as it comes: GET /v1/machines/ID/containers/NAME/logs. */
import { ProviderError } from "../../../../src/provider/kit/index.ts";
import { violation } from "../../../../src/provider/contract/document.ts";
import { encodeLogLine, LOG_TYPE } from "../../wire.ts";
import { Query } from "../http.ts";
import { BatchedOutput, settledSoon } from "../output.ts";
import { checkedId, type Exchange, type RouteContext } from "../router.ts";

export async function getLogs({ provider, clock }: RouteContext, exchange: Exchange): Promise<void> {
  const asked = new Query(exchange.query, ["follow", "previous", "tail", "since", "stream", "limit_bytes"]);
  const id = checkedId(exchange.params["id"], "MachineId", "id");
  const container = checkedId(exchange.params["container"], "Name", "container");
  const since = asked.text("since");
  if (since !== undefined && violation("request", "Time", since) !== undefined) {
    throw new ProviderError("invalid", "since must be RFC 3339 in UTC", { field: "since" });
  }
  const stream = asked.text("stream");
  if (stream !== undefined && stream !== "stdout" && stream !== "stderr") {
    throw new ProviderError("invalid", "stream must be stdout or stderr", { field: "stream" });
  }
  const tail = asked.count("tail");
  const limitBytes = asked.count("limit_bytes");
  const lines = provider.getLogs(id, container, {
    signal: exchange.signal,
    follow: asked.flag("follow"),
    previous: asked.flag("previous"),
    tail,
    since,
    stream,
    limitBytes,
  });
  const iterator = lines[Symbol.asyncIterator]();
  try {
    let pending = iterator.next();
    await settledSoon(pending, clock);
    exchange.response.writeHead(200, { "content-type": LOG_TYPE, "x-content-type-options": "nosniff" });
    exchange.response.flushHeaders();
    const output = new BatchedOutput(exchange.response, exchange.signal);
    for (let result = await pending; !result.done; result = await pending) {
      const room = output.write(encodeLogLine(result.value));
      if (room !== undefined) await room;
      pending = iterator.next();
    }
    output.flush();
    // A reply that was called off is not complete, and must not look complete.
    exchange.signal.throwIfAborted();
    exchange.response.end();
  } finally {
    await iterator.return?.();
  }
}
