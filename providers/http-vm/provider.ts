/**
 * Any backend that serves the Machine API, as a Provider. Its methods are the API's routes; the rules of trust are that a reply must
 * be valid, must answer this request and must be about this machine. Anything else is `unavailable`.
 */
import type { Duplex } from "node:stream";
import {
  type CallOptions,
  CAPABILITIES,
  type Capability,
  type LogLine,
  type LogOptions,
  type Machine,
  type MachineEvent,
  type MachineList,
  type MachinePatch,
  type MachineSpec,
  type MachineStats,
  type ProcessStreams,
  type Provider,
  type ProviderCapacity,
  ProviderError,
  type ProviderInfo,
  type StreamOptions,
} from "../../src/provider/kit/index.ts";
import { asProviderError, MachineApiClient, type Call } from "./client.ts";
import { REPLY_BYTES, type HttpVmOptions } from "./options.ts";
import { openPort, openProcess } from "./streams.ts";
import {
  InvalidReplyError,
  parseReply,
  plainText,
  tameMachine,
  tameTexts,
  type InvalidReason,
  type MachineRules,
} from "./validate.ts";
import { decodeLogLine, EVENT_STREAM_TYPE, LOG_TYPE, MAX_LOG_RECORD_BYTES } from "./wire.ts";

export interface HttpVmLimits {
  /** Asked for per page. */
  pageItems: number;
  /** A backend that lists more than this is refused: it would fill the memory. */
  listItems: number;
}

const DEFAULT_LIMITS: HttpVmLimits = { pageItems: 500, listItems: 100_000 };

export class HttpVmProvider implements Provider {
  readonly name: string;
  readonly #client: MachineApiClient;
  readonly #limits: HttpVmLimits;

  /** @throws TypeError when the url cannot be used */
  constructor(options: HttpVmOptions & { limits?: Partial<HttpVmLimits> }) {
    this.name = options.name ?? "http-vm";
    this.#client = new MachineApiClient(options);
    this.#limits = { ...DEFAULT_LIMITS, ...options.limits };
  }

  async getInfo({ signal }: CallOptions): Promise<ProviderInfo> {
    const info = await this.#client.json({ method: "GET", path: "/v1/info", signal }, "Info");
    const isKnown = (name: string): name is Capability => Object.hasOwn(CAPABILITIES, name);
    const unknown = info.capabilities.filter((name) => !isKnown(name)).map((name) => plainText(name, 128));
    return {
      name: plainText(info.name, 256),
      version: plainText(info.version, 256),
      capabilities: info.capabilities.filter(isKnown),
      ...(info.os !== undefined && { os: info.os }),
      ...(info.architecture !== undefined && { architecture: info.architecture }),
      ...(unknown.length > 0 && { unknownCapabilities: unknown }),
    };
  }

  createPod(id: string, spec: MachineSpec, { signal }: CallOptions): Promise<Machine> {
    return this.#machine(id, { method: "PUT", path: machinePath(id), body: spec, signal });
  }

  getPod(id: string, { signal }: CallOptions): Promise<Machine> {
    return this.#machine(id, { method: "GET", path: machinePath(id), signal });
  }

  async getPods(
    options: CallOptions & { labels: Record<string, string>; includeDeleted?: boolean },
  ): Promise<MachineList> {
    const items = new Map<string, Machine>();
    const cursors = new Set<string>();
    let revision: number | undefined;
    for (let cursor: string | undefined; ;) {
      const query = labelQuery(options.labels);
      query.set("limit", String(this.#limits.pageItems));
      if (options.includeDeleted === true) query.set("include_deleted", "true");
      if (cursor !== undefined) query.set("cursor", cursor);
      const page = await this.#client.json(
        { method: "GET", path: "/v1/machines", query, signal: options.signal },
        "MachinePage",
        REPLY_BYTES.list,
      );
      // What happened while later pages were fetched is in the events after the first.
      revision = Math.min(revision ?? page.revision, page.revision);
      for (const machine of page.items) {
        if (items.has(machine.id)) throw this.#refuse("duplicate_id", `the list has machine ${machine.id} twice`);
        const tame = this.#tame(machine);
        if (this.#carries(tame, options.labels)) items.set(machine.id, tame);
      }
      if (items.size > this.#limits.listItems)
        throw this.#refuse("size", `the list has more than ${this.#limits.listItems} machines`);
      cursor = page.next_cursor;
      if (cursor === undefined) return { items: [...items.values()], revision };
      if (cursors.has(cursor)) throw this.#refuse("cursor_loop", "the list's pages go in a circle");
      cursors.add(cursor);
    }
  }

  stopPod(id: string, { signal, graceSeconds }: CallOptions & { graceSeconds: number }): Promise<Machine> {
    return this.#machine(id, {
      method: "POST",
      path: `${machinePath(id)}/stop`,
      body: { grace_seconds: graceSeconds },
      signal,
    });
  }

  deletePod(id: string, { signal, force }: CallOptions & { force: boolean }): Promise<void> {
    const query = force ? new URLSearchParams({ force: "true" }) : undefined;
    return this.#client.nothing({
      method: "DELETE",
      path: machinePath(id),
      signal,
      ...(query === undefined ? {} : { query }),
    });
  }

  updatePod(id: string, patch: MachinePatch, { signal }: CallOptions): Promise<Machine> {
    return this.#machine(id, { method: "PATCH", path: machinePath(id), body: patch, signal });
  }

  async *getLogs(id: string, container: string, options: LogOptions): AsyncGenerator<LogLine> {
    const query = new URLSearchParams();
    if (options.follow === true) query.set("follow", "true");
    if (options.previous === true) query.set("previous", "true");
    if (options.tail !== undefined) query.set("tail", String(options.tail));
    if (options.since !== undefined) query.set("since", options.since);
    if (options.stream !== undefined) query.set("stream", options.stream);
    if (options.limitBytes !== undefined) query.set("limit_bytes", String(options.limitBytes));
    const call: Call = { method: "GET", path: `${containerPath(id, container)}/logs`, query, signal: options.signal };
    // A quiet container is no dead stream: a followed log may be silent for as long as it likes.
    const stream = await this.#client.stream(call, LOG_TYPE, {
      accept: LOG_TYPE,
      ...(options.follow === true ? {} : { silenceMs: this.#client.deadlines.silenceMs }),
    });
    try {
      for await (const records of recordBatches(stream.chunks, MAX_LOG_RECORD_BYTES)) {
        for (const record of records) yield requireLogLine(record);
      }
    } catch (thrown) {
      if (options.signal.aborted) return;
      throw this.#unknown(thrown, call);
    } finally {
      stream.close();
    }
  }

  async *watchPods(
    since: number,
    { signal, labels }: CallOptions & { labels: Record<string, string> },
  ): AsyncGenerator<MachineEvent> {
    const query = labelQuery(labels);
    query.set("since", String(since));
    const call: Call = { method: "GET", path: "/v1/events", query, signal };
    const stream = await this.#client.stream(call, EVENT_STREAM_TYPE, {
      accept: EVENT_STREAM_TYPE,
      silenceMs: this.#client.deadlines.silenceMs,
    });
    try {
      let last = since;
      for await (const { event, data } of serverSentEvents(stream.chunks)) {
        if (event === "error") throw errorOf(data);
        const { revision, machine } = parseReply("MachineEvent", data);
        if (revision < last) throw new InvalidReplyError("schema", `revision ${revision} came after ${last}`);
        last = revision;
        const tame = this.#tame(machine);
        if (this.#carries(tame, labels)) yield { revision, machine: tame };
      }
    } catch (thrown) {
      if (signal.aborted) return;
      throw this.#unknown(thrown, call);
    } finally {
      stream.close();
    }
    if (!signal.aborted) throw new ProviderError("unavailable", "the backend ended the stream of events");
  }

  async getCapacity({ signal }: CallOptions): Promise<ProviderCapacity> {
    const capacity = await this.#client.json({ method: "GET", path: "/v1/capacity", signal }, "ProviderCapacity");
    for (const condition of capacity.conditions ?? []) tameTexts(condition);
    return capacity;
  }

  async getStats({ signal, labels }: CallOptions & { labels: Record<string, string> }): Promise<MachineStats[]> {
    const call: Call = { method: "GET", path: "/v1/stats", query: labelQuery(labels), signal };
    return (await this.#client.json(call, "StatsList", REPLY_BYTES.list)).items;
  }

  exec(id: string, container: string, command: string[], options: StreamOptions): Promise<ProcessStreams> {
    const query = streamQuery(options);
    for (const word of command) query.append("command", word);
    return openProcess(this.#client, `${containerPath(id, container)}/exec`, query, options);
  }

  attach(id: string, container: string, options: StreamOptions): Promise<ProcessStreams> {
    return openProcess(this.#client, `${containerPath(id, container)}/attach`, streamQuery(options), options);
  }

  portForward(id: string, port: number, { signal }: CallOptions): Promise<Duplex> {
    return openPort(this.#client, `${machinePath(id)}/ports/${port}`, signal);
  }

  async close(): Promise<void> {
    this.#client.close();
  }

  async #machine(id: string, call: Call): Promise<Machine> {
    const machine = this.#tame(await this.#client.json(call, "Machine"));
    if (machine.id === id) return machine;
    throw this.#refuse("machine_id", `the reply is about machine ${machine.id}, not ${id}`);
  }

  #tame(machine: Machine): Machine {
    try {
      return tameMachine(machine, this.#rules());
    } catch (thrown) {
      if (thrown instanceof InvalidReplyError) throw this.#refuse(thrown.reason, thrown.message);
      throw thrown;
    }
  }

  #rules(): MachineRules {
    return {
      now: this.#client.clock.now(),
      allowLoopback: this.#client.target.isLoopback,
      onCorrected: (reason) => this.#client.countInvalid(reason),
    };
  }

  /** Another tenant's machine must never be touched; leaving it out does that, and the count tells that it came. */
  #carries(machine: Machine, labels: Record<string, string>): boolean {
    for (const [key, value] of Object.entries(labels)) {
      if (machine.labels[key] === value) continue;
      this.#client.countInvalid("labels");
      return false;
    }
    return true;
  }

  #refuse(reason: InvalidReason, message: string): ProviderError {
    this.#client.countInvalid(reason);
    return new ProviderError("unavailable", `invalid reply: ${message}`);
  }

  #unknown(thrown: unknown, call: Call): ProviderError {
    if (thrown instanceof InvalidReplyError) return this.#refuse(thrown.reason, thrown.message);
    return asProviderError(thrown, call);
  }
}

const machinePath = (id: string): string => `/v1/machines/${encodeURIComponent(id)}`;
const containerPath = (id: string, container: string): string =>
  `${machinePath(id)}/containers/${encodeURIComponent(container)}`;

function labelQuery(labels: Record<string, string>): URLSearchParams {
  return new URLSearchParams(
    Object.entries(labels).map(([key, value]): [string, string] => ["label", `${key}=${value}`]),
  );
}

function streamQuery({ stdin, stdout, stderr, tty }: StreamOptions): URLSearchParams {
  const query = new URLSearchParams();
  for (const [name, wanted] of Object.entries({ stdin, stdout, stderr, tty })) if (wanted) query.set(name, "true");
  return query;
}

function requireLogLine(record: Buffer): LogLine {
  const line = decodeLogLine(record);
  if (line === undefined)
    throw new InvalidReplyError("log_line", "a log line has not the form `time stream tag content`");
  return line;
}

/**
 * The lines of a byte stream, without their newlines, as many at a time as came together.
 *
 * @throws InvalidReplyError when a line is too long or the last one is cut off
 */
async function* recordBatches(source: AsyncIterable<Buffer>, maxBytes: number): AsyncGenerator<Buffer[]> {
  let rest: Buffer = Buffer.alloc(0);
  for await (const chunk of source) {
    let data = rest.length === 0 ? chunk : Buffer.concat([rest, chunk]);
    const records: Buffer[] = [];
    let start = 0;
    for (let end = data.indexOf(10); end >= 0; end = data.indexOf(10, start)) {
      records.push(data.subarray(start, end));
      start = end + 1;
    }
    yield records;
    data = data.subarray(start);
    if (data.length > maxBytes) throw new InvalidReplyError("size", `a line is longer than ${maxBytes} bytes`);
    rest = data;
  }
  if (rest.length > 0) throw new InvalidReplyError("log_line", "the last line is cut off");
}

/** The part of the WHATWG format that the Machine API uses. */
async function* serverSentEvents(source: AsyncIterable<Buffer>): AsyncGenerator<{ event: string; data: string }> {
  let event = "";
  let data: string | undefined;
  for await (const records of recordBatches(source, REPLY_BYTES.single)) {
    for (const record of records) {
      const line = record.at(-1) === 13 ? record.toString("utf8", 0, record.length - 1) : record.toString("utf8");
      if (line === "") {
        if (data !== undefined) yield { event, data };
        event = "";
        data = undefined;
        continue;
      }
      const colon = line.indexOf(":");
      const field = colon < 0 ? line : line.slice(0, colon);
      const value = colon < 0 ? "" : line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
      if (field === "event") event = value;
      if (field === "data") data = data === undefined ? value : `${data}\n${value}`;
      if (data !== undefined && data.length > REPLY_BYTES.single)
        throw new InvalidReplyError("size", `an event is larger than ${REPLY_BYTES.single} bytes`);
    }
  }
}

function errorOf(data: string): ProviderError {
  const { error } = parseReply("ErrorReply", data);
  return new ProviderError(error.code, plainText(error.message, 1024), {
    retryAfterMs: error.retry_after_ms,
    requestId: error.request_id,
  });
}
