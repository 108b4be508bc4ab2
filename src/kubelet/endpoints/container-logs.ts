/**
 * `/containerLogs/NAMESPACE/POD/CONTAINER`: the log as `kubectl logs` shows it, with the kubelet's options, codes and
 * words.
 */
import type { ServerResponse } from "node:http";
import type { Pod } from "../../kube/wire.ts";
import type { LogLine, LogOptions, Provider } from "../../provider/provider.ts";
import type { Clock } from "../../util/clock.ts";
import { HttpError } from "../../http/http-error.ts";
import { containerStatus, hasContainer, type PodLookup } from "../pod-lookup.ts";
import type { Handler } from "../router.ts";
import type { Sessions } from "../sessions.ts";
import { unlessAborted, untilAborted } from "../../util/abort.ts";

/** `PodLogOptions`, as far as a node serves them. */
interface ContainerLogOptions {
  follow: boolean;
  previous: boolean;
  timestamps: boolean;
  tailLines?: number | undefined;
  limitBytes?: number | undefined;
  sinceSeconds?: number | undefined;
  /** Milliseconds since the epoch. */
  sinceTime?: number | undefined;
  stream?: "stdout" | "stderr" | undefined;
}

/**
 * How long a follower of a silent container waits for its response's header: a fault of the backend can still be told
 * by then.
 */
const FIRST_LINE_WAIT_MS = 250;

export function containerLogs({
  lookup,
  provider,
  sessions,
  clock,
}: {
  lookup: PodLookup;
  provider: Provider;
  sessions: Sessions;
  clock: Clock;
}): Handler {
  return {
    kind: "stream",
    async handle({ params, query, user, signal }, response) {
      const options = parseLogOptions(query);
      const podName = params["pod"]!;
      const container = params["container"]!;
      const found = lookup.get(params["namespace"]!, podName);
      if (found === undefined) throw new HttpError(404, `pod ${JSON.stringify(podName)} does not exist`);
      if (!hasContainer(found.pod, container)) {
        throw new HttpError(404, `container ${JSON.stringify(container)} not found in pod ${JSON.stringify(podName)}`);
      }
      const previous = attemptToRead(found.pod, container, options.previous);
      using _session = sessions.open("logs", found.pod.metadata, user.username);
      const since = sinceMs(options, clock.now());
      const lines = provider.getLogs(
        found.machineId,
        container,
        providerOptions({ ...options, previous }, since, signal),
      );
      await writeLog(lines, { ...options, since }, response, clock, signal);
    },
  };
}

/**
 * @throws HttpError 400 for what cannot be decoded, 422 for what contradicts itself
 * @internal
 */
export function parseLogOptions(query: URLSearchParams): ContainerLogOptions {
  const undecodable = () => new HttpError(400, '{"message": "Unable to decode query."}');
  const invalid = () => new HttpError(422, '{"message": "Invalid request."}');
  // As Kubernetes converts query parameters: anything but "false" and "0" is true, even nothing.
  const flag = (name: string) => query.has(name) && !["false", "0"].includes(query.get(name)!.toLowerCase());
  const count = (name: string, least: number, value = query.get(name)): number | undefined => {
    if (value === null) return undefined;
    if (!/^[+-]?[0-9]{1,19}$/.test(value) || BigInt.asIntN(64, BigInt(value)) !== BigInt(value)) throw undecodable();
    if (Number(value) < least) throw invalid();
    // What some clients mean by the largest of all is "no limit"; a backend need not know numbers that large.
    return Math.min(Number(value), Number.MAX_SAFE_INTEGER);
  };
  const sinceText = query.get("sinceTime");
  const sinceTime = sinceText === null || sinceText === "" ? undefined : parseRfc3339(sinceText);
  if (sinceText && sinceTime === undefined) throw undecodable();

  // Old clients say `tail`, and `all` for no limit.
  const tail = query.get("tail");
  const tailLines = tail === "all" ? undefined : count("tailLines", 0, tail || query.get("tailLines"));
  const limitBytes = count("limitBytes", 1);
  const sinceSeconds = count("sinceSeconds", 1);
  const streamText = query.get("stream") ?? "All";
  if (!["All", "Stdout", "Stderr"].includes(streamText)) throw invalid();
  const stream = streamText === "Stdout" ? "stdout" : streamText === "Stderr" ? "stderr" : undefined;
  if (sinceSeconds !== undefined && sinceTime !== undefined) throw invalid();
  if (stream !== undefined && tailLines !== undefined) throw invalid();
  return {
    follow: flag("follow"),
    previous: flag("previous"),
    timestamps: flag("timestamps"),
    tailLines,
    limitBytes,
    sinceSeconds,
    sinceTime,
    stream,
  };
}

function parseRfc3339(text: string): number | undefined {
  if (!/^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?(Z|[+-]\d{2}:\d{2})$/.test(text)) return undefined;
  const ms = Date.parse(text);
  return Number.isNaN(ms) ? undefined : ms;
}

/**
 * Whether to read the instance before the newest one. `previous` means the one that ended last, which is the newest one
 * itself while the container waits to be started again (CrashLoopBackOff); then its log is also what there is without
 * `previous`.
 *
 * @throws HttpError 400 when there is nothing to read
 * @internal
 */
export function attemptToRead(pod: Pod, container: string, previous: boolean): boolean {
  const where = `container ${JSON.stringify(container)} in pod ${JSON.stringify(pod.metadata?.name ?? "")}`;
  const status = containerStatus(pod, container);
  if (status === undefined) throw new HttpError(400, `${where} is not available`);
  const last = status.lastState?.terminated;
  const { running, terminated, waiting } = status.state ?? {};
  const newestHasStarted = running !== undefined || Boolean(terminated?.containerID);
  if (previous) {
    if (!last?.containerID) throw new HttpError(400, `previous terminated ${where} not found`);
    return newestHasStarted;
  }
  if (newestHasStarted || last?.containerID) return false;
  if (terminated || last) throw new HttpError(400, `${where} is terminated`);
  if (waiting) {
    const reasons: Record<string, string> = {
      ErrImagePull: "image can't be pulled",
      ImagePullBackOff: "trying and failing to pull image",
    };
    const reason = waiting.reason ?? "";
    throw new HttpError(
      400,
      `${where} is waiting to start: ${Object.hasOwn(reasons, reason) ? reasons[reason] : reason}`,
    );
  }
  throw new HttpError(400, `${where} is waiting to start - no logs yet`);
}

/** Milliseconds since the epoch, before which no log was written. */
function sinceMs(options: ContainerLogOptions, now: number): number | undefined {
  const since = options.sinceSeconds === undefined ? options.sinceTime : now - options.sinceSeconds * 1000;
  return since && Math.max(0, since);
}

/**
 * What the backend is asked to leave out already. The tail is found first and the time filter applies to its lines, so
 * with both only the tail is asked for. A limit of bytes of output is one of bytes of log too.
 */
function providerOptions(options: ContainerLogOptions, since: number | undefined, signal: AbortSignal): LogOptions {
  return {
    signal,
    follow: options.follow,
    previous: options.previous,
    tail: options.tailLines,
    since: since !== undefined && options.tailLines === undefined ? new Date(since).toISOString() : undefined,
    stream: options.stream,
    limitBytes: options.limitBytes !== undefined && since === undefined ? options.limitBytes : undefined,
  };
}

/** What of the log is output, and how. `since` in milliseconds since the epoch. */
export interface LogFormat {
  timestamps: boolean;
  limitBytes?: number | undefined;
  stream?: "stdout" | "stderr" | undefined;
  since?: number | undefined;
}

/**
 * Collects the output's bytes: what is wanted of the lines, times if asked for, parts of a line joined, cut at the
 * limit.
 * @internal
 */
export class LogOutput {
  readonly #format: LogFormat;
  #left: number;
  #pieces: Buffer[] = [];
  #size = 0;
  #atLineStart = true;

  constructor(format: LogFormat) {
    this.#format = format;
    this.#left = format.limitBytes ?? Number.POSITIVE_INFINITY;
  }

  /** Bytes that `take` would return. */
  get size(): number {
    return this.#size;
  }

  /** The limit is reached: nothing more comes. */
  get isDone(): boolean {
    return this.#left <= 0;
  }

  add(line: LogLine): void {
    const { stream, since, timestamps } = this.#format;
    if (stream !== undefined && line.stream !== stream) return;
    if (since !== undefined && Date.parse(line.at) < since) return;
    if (timestamps && this.#atLineStart) this.#push(Buffer.from(`${nineDigits(line.at)} `));
    this.#push(line.content);
    if (!line.partial) this.#push(NEWLINE);
    this.#atLineStart = !line.partial;
  }

  /** What was added since the last call. */
  take(): Buffer {
    const bytes = Buffer.concat(this.#pieces, this.#size);
    this.#pieces = [];
    this.#size = 0;
    return bytes;
  }

  #push(bytes: Buffer): void {
    if (this.#left <= 0) return;
    const piece = bytes.length <= this.#left ? bytes : bytes.subarray(0, this.#left);
    this.#pieces.push(piece);
    this.#size += piece.length;
    this.#left -= piece.length;
  }
}

const NEWLINE = Buffer.from("\n");

/**
 * kubelet's RFC3339Nano with fixed width.
 * @internal
 */
export function nineDigits(at: string): string {
  const match = /^([\d-]*T\d{2}:\d{2}:\d{2})(?:\.(\d*))?(\D.*)?$/.exec(at);
  if (match === null) return at;
  const [, seconds, fraction = "", zone = ""] = match;
  return `${seconds}.${fraction.slice(0, 9).padEnd(9, "0")}${zone}`;
}

/** Small lines are sent together, up to this many bytes. */
const BATCH_BYTES = 64 * 1024;

async function writeLog(
  lines: AsyncIterable<LogLine>,
  format: LogFormat & { follow: boolean },
  response: ServerResponse,
  clock: Clock,
  signal: AbortSignal,
): Promise<void> {
  response.setHeader("content-type", "text/plain");
  response.setHeader("x-content-type-options", "nosniff");
  const begin = () => {
    if (!response.headersSent && !response.destroyed) response.writeHead(200).flushHeaders();
  };
  const output = new LogOutput(format);
  const flush = () => {
    if (output.size === 0 || response.destroyed) return;
    begin();
    const { promise, resolve } = Promise.withResolvers<void>();
    sent = promise;
    response.write(output.take(), () => resolve());
  };
  let sent = Promise.resolve();
  const cancelBegin = format.follow ? clock.after(FIRST_LINE_WAIT_MS, begin) : () => {};
  try {
    for await (const line of lines) {
      // Lines that are at hand now go out together, in the next turn of the event loop.
      if (output.size === 0) setImmediate(flush);
      output.add(line);
      if (output.size >= BATCH_BYTES) flush();
      if (output.isDone) break;
      if (response.writableNeedDrain) await drained(response, signal);
    }
    flush();
    begin();
    // The end must not share a TLS record with the last lines: an API server that passes logs on to a WebSocket drops
    // what it reads together with the end (messageCopy in k8s.io/streaming). The kubelet speaks HTTP/2, where that does
    // not happen.
    // And it is not waited for what a connection that is gone will never send.
    await untilAborted(signal, sent);
    response.end();
  } finally {
    cancelBegin();
  }
}

async function drained(response: ServerResponse, signal: AbortSignal): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>();
  response.once("drain", resolve);
  try {
    await unlessAborted(promise, signal);
  } finally {
    response.off("drain", resolve);
  }
}
