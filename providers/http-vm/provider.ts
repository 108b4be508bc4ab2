/**
 * Any backend that serves the Machine API, as a Provider. Its methods are the API's routes; the rules of trust are that
 * a reply must be valid, must answer this request and must be about this machine. Anything else is `unavailable`. A
 * fault of one machine does not spoil the others: that one is unknown, and the reply stands.
 */
import type { Duplex } from "node:stream";
import {
  type CallOptions,
  CAPABILITIES,
  type Capability,
  isProviderError,
  isSubset,
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
  specExcess,
  type StreamOptions,
  type UnknownMachine,
  type UnknownMachineEvent,
} from "../../src/provider/kit/index.ts";
import { asProviderError, MachineApiClient, type Call } from "./client.ts";
import { partViolation, violation, type Schemas, type Violation } from "../../src/provider/contract/document.ts";
import { recordBatches, serverSentEvents } from "./event-stream.ts";
import { InvalidReplyError, type InvalidReason } from "./invalid-reply.ts";
import { isRecord, parseItems, tryParse, type Parsed } from "./json.ts";
import type { HttpVmOptions } from "./options.ts";
import { openPort, openProcess } from "./streams.ts";
import {
  believe,
  parseReply,
  plainText,
  tameMachine,
  tameStats,
  tameTexts,
  whatIsSure,
  type MachineRules,
} from "./validate.ts";
import { decodeLogLine, EVENT_STREAM_TYPE, LOG_TYPE, MAX_LOG_RECORD_BYTES } from "./wire.ts";

export interface HttpVmLimits {
  /** Asked for per page. */
  pageItems: number;
  /** A backend that lists more than this is refused: it would fill the memory, also that of the agent's other nodes. */
  listItems: number;
  /** The same of all pages of a list together, in characters. */
  listChars: number;
}

const DEFAULT_LIMITS: HttpVmLimits = { pageItems: 500, listItems: 100_000, listChars: 256 * 1024 * 1024 };
/** A list with this many pages without an item is taken to be endless. */
const MAX_EMPTY_PAGES = 100;

const TOO_LARGE = new InvalidReplyError("size", "the event is too large");

/** One machine of a reply: described so that it can be believed, or not. */
type Judged = { machine: Machine; unknown?: undefined } | { machine?: undefined; unknown: UnknownMachine };

export class HttpVmProvider implements Provider {
  readonly name: string;
  readonly #client: MachineApiClient;
  readonly #limits: HttpVmLimits;
  /** Fewer than `limits.pageItems` after a page that was too large. */
  #pageItems: number;

  /** @throws TypeError when the url cannot be used */
  constructor(options: HttpVmOptions & { limits?: Partial<HttpVmLimits> | undefined }) {
    this.name = options.name ?? "http-vm";
    this.#client = new MachineApiClient(options);
    this.#limits = { ...DEFAULT_LIMITS, ...options.limits };
    this.#pageItems = this.#limits.pageItems;
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

  /**
   * A specification that the document forbids is not sent: a backend that took it might not be able to report the
   * machine.
   */
  async createPod(id: string, spec: MachineSpec, { signal }: CallOptions): Promise<Machine> {
    requireValid(violation("request", "MachineSpec", spec) ?? specExcess(spec));
    return await this.#machine(id, { method: "PUT", path: machinePath(id), body: spec, signal });
  }

  getPod(id: string, { signal }: CallOptions): Promise<Machine> {
    return this.#machine(id, { method: "GET", path: machinePath(id), signal });
  }

  async getPods(
    options: CallOptions & { labels: Record<string, string>; includeDeleted?: boolean | undefined },
  ): Promise<MachineList> {
    const judged = new Map<string, Judged>();
    const cursors = new Set<string>();
    let revision: number | undefined;
    let emptyPages = 0;
    let chars = 0;
    for (let cursor: string | undefined; ;) {
      const page = await this.#page(options, cursor);
      // What happened while later pages were fetched is in the events after the first.
      revision = Math.min(revision ?? page.revision, page.revision);
      for (const item of page.items) this.#collect(item, options.labels, judged);
      chars += page.chars;
      if (judged.size > this.#limits.listItems || chars > this.#limits.listChars)
        throw this.#refuse("size", `the list has ${judged.size} machines and ${chars} characters, and goes on`);
      cursor = page.next_cursor;
      if (cursor === undefined) break;
      if (page.items.length === 0) emptyPages++;
      if (cursors.has(cursor) || emptyPages > MAX_EMPTY_PAGES)
        throw this.#refuse("cursor_loop", "the list's pages go in a circle, or on without end");
      cursors.add(cursor);
    }
    this.#pageItems = Math.min(this.#pageItems * 2, this.#limits.pageItems);
    const all = [...judged.values()];
    const unknown = all.flatMap((each) => each.unknown ?? []);
    return { items: all.flatMap(({ machine }) => machine ?? []), revision, ...(unknown.length > 0 && { unknown }) };
  }

  /** A page that is too large is asked for again with fewer machines on it: each of them may be of any legal size. */
  async #page(
    options: CallOptions & { labels: Record<string, string>; includeDeleted?: boolean | undefined },
    cursor: string | undefined,
  ): Promise<{ items: Parsed[]; chars: number; revision: number; next_cursor?: string }> {
    const query = labelQuery(options.labels);
    query.set("limit", String(this.#pageItems));
    if (options.includeDeleted === true) query.set("include_deleted", "true");
    if (cursor !== undefined) query.set("cursor", cursor);
    try {
      return await this.#list({ method: "GET", path: "/v1/machines", query, signal: options.signal }, "MachinePage");
    } catch (thrown) {
      if (this.#pageItems === 1 || !isTooLarge(thrown)) throw thrown;
      this.#pageItems = Math.ceil(this.#pageItems / 4);
      return await this.#page(options, cursor);
    }
  }

  /** When a machine is listed twice, neither of the two can be believed. */
  #collect(item: Parsed, labels: Record<string, string>, into: Map<string, Judged>): void {
    const judged = this.#judge(item, labels);
    if (judged === undefined) return;
    const { id } = judged.machine ?? judged.unknown;
    if (!into.has(id)) return void into.set(id, judged);
    this.#client.countInvalid("duplicate_id");
    into.set(id, { unknown: { id, reason: "the list has it twice" } });
  }

  async stopPod(
    id: string,
    { signal, graceSeconds }: CallOptions & { graceSeconds: number },
  ): Promise<Machine | undefined> {
    const text = await this.#client.accepted({
      method: "POST",
      path: `${machinePath(id)}/stop`,
      body: { grace_seconds: graceSeconds },
      signal,
    });
    const judged = text === undefined ? undefined : this.#judge(tryParse(text), {});
    return judged?.machine?.id === id ? judged.machine : undefined;
  }

  async deletePod(id: string, { signal, force }: CallOptions & { force: boolean }): Promise<void> {
    const query = force ? new URLSearchParams({ force: "true" }) : undefined;
    await this.#client.accepted({
      method: "DELETE",
      path: machinePath(id),
      signal,
      query,
    });
  }

  async updatePod(id: string, patch: MachinePatch, { signal }: CallOptions): Promise<Machine> {
    requireValid(violation("request", "MachinePatch", patch));
    return await this.#machine(id, { method: "PATCH", path: machinePath(id), body: patch, signal });
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
    // A quiet container does not mean a dead stream: a followed log may be silent for as long as it likes.
    const stream = await this.#client.stream(call, LOG_TYPE, {
      accept: LOG_TYPE,
      silenceMs: options.follow === true ? undefined : this.#client.deadlines.silenceMs,
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
  ): AsyncGenerator<MachineEvent | UnknownMachineEvent> {
    const query = labelQuery(labels);
    query.set("since", String(since));
    const call: Call = { method: "GET", path: "/v1/events", query, signal };
    const stream = await this.#client.stream(call, EVENT_STREAM_TYPE, {
      accept: EVENT_STREAM_TYPE,
      silenceMs: this.#client.deadlines.silenceMs,
    });
    try {
      let last = since;
      const ids = new Set<string>();
      for await (const { event, data } of serverSentEvents(stream.chunks)) {
        if (event === "error") throw errorOf(data ?? "");
        const judged = this.#judgeEvent(data, last, labels);
        if (judged === undefined) continue;
        last = judged.revision;
        ids.add((judged.machine ?? judged.unknown).id);
        if (ids.size > this.#limits.listItems)
          throw new InvalidReplyError("size", `there are events of more than ${this.#limits.listItems} machines`);
        yield judged;
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
    const text = await this.#client.text({ method: "GET", path: "/v1/capacity", signal }, "single");
    return this.#orRefuse(() => {
      const { value, fault } = tryParse(text);
      if (fault !== undefined) throw fault;
      if (isRecord(value)) {
        this.#dropInvalid(value, "conditions", "properties/conditions/items");
        this.#dropInvalid(value, "taints", "properties/taints/items");
        if (isRecord(value["allocatable"]))
          this.#dropInvalid(value["allocatable"], "extended", "properties/allocatable/properties/extended/items");
      }
      const capacity = believe("ProviderCapacity", value);
      for (const condition of capacity.conditions ?? []) tameTexts(condition);
      return capacity;
    });
  }

  /** Leaves those items of a list out that the document does not allow. */
  #dropInvalid(holder: Record<string, unknown>, field: string, path: string): void {
    const list = holder[field];
    if (!Array.isArray(list)) return;
    holder[field] = list.filter((item: unknown) => {
      const isValid = partViolation("reply", "ProviderCapacity", path, item) === undefined;
      if (!isValid) this.#client.countInvalid("schema");
      return isValid;
    });
  }

  async getStats({ signal, labels }: CallOptions & { labels: Record<string, string> }): Promise<MachineStats[]> {
    const call: Call = { method: "GET", path: "/v1/stats", query: labelQuery(labels), signal };
    const { items } = await this.#list(call, "StatsList");
    const samples = new Map<string, MachineStats>();
    for (const { value, fault } of items) {
      try {
        if (fault !== undefined) throw fault;
        const sample = tameStats(believe("MachineStats", value), this.#rules());
        if (samples.has(sample.id)) this.#client.countInvalid("duplicate_id");
        else samples.set(sample.id, sample);
      } catch (thrown) {
        if (!(thrown instanceof InvalidReplyError)) throw thrown;
        this.#client.countInvalid(thrown.reason);
      }
    }
    return [...samples.values()];
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

  /** The machine that a call is about, as its reply has it. */
  async #machine(id: string, call: Call): Promise<Machine> {
    let parsed: Parsed;
    try {
      parsed = tryParse(await this.#client.text(call, "single"));
    } catch (thrown) {
      if (!isTooLarge(thrown)) throw thrown;
      throw new ProviderError("unavailable", thrown.message, { unknownMachine: { id, reason: thrown.message } });
    }
    const { machine, unknown = { id, reason: parsed.fault?.message ?? "the reply is not a machine" } } =
      this.#judge(parsed, {}) ?? {};
    const named = machine?.id ?? unknown.id;
    if (named !== id) throw this.#refuse("machine_id", `the reply is about machine ${named}, not ${id}`);
    if (machine !== undefined) return machine;
    throw new ProviderError("unavailable", `invalid reply: ${unknown.reason}`, { unknownMachine: unknown });
  }

  /**
   * Items of a reply that is a list, and what stands beside them.
   * @throws ProviderError when what stands beside them is invalid
   */
  async #list<N extends "MachinePage" | "StatsList">(
    call: Call,
    schema: N,
  ): Promise<Omit<Schemas[N], "items"> & { items: Parsed[]; chars: number }> {
    const text = await this.#client.text(call, "list");
    return this.#orRefuse(() => {
      const { envelope, items } = parseItems(text, "items");
      return { ...believe(schema, envelope), items, chars: text.length };
    });
  }

  /**
   * An item, counted if it is invalid. Undefined for one that is not a machine with these labels, or not known to be
   * one.
   */
  #judge({ value, fault }: Parsed, labels: Record<string, string>): Judged | undefined {
    try {
      if (fault !== undefined) throw fault;
      const machine = tameMachine(believe("Machine", value), this.#rules());
      return this.#carries(machine.labels, labels) ? { machine } : undefined;
    } catch (thrown) {
      if (!(thrown instanceof InvalidReplyError)) throw thrown;
      this.#client.countInvalid(thrown.reason);
      const isAmbiguous = thrown.reason === "duplicate_key" && isRecord(value);
      const unknown = whatIsSure(isAmbiguous ? { id: value["id"] } : value, thrown.message);
      if (unknown === undefined) return undefined;
      return isRecord(value) && contradicts(value["labels"], labels) ? undefined : { unknown };
    }
  }

  /**
   * Undefined for an event that is not about a machine with these labels, or not known to be: the next list has what it
   * said.
   */
  #judgeEvent(
    data: string | undefined,
    last: number,
    labels: Record<string, string>,
  ): MachineEvent | UnknownMachineEvent | undefined {
    const { value, fault } = data === undefined ? { fault: TOO_LARGE } : tryParse(data);
    if (!isRecord(value)) {
      this.#client.countInvalid(fault?.reason ?? "schema");
      return undefined;
    }
    const { revision, machine } = value;
    const wrong = fault ?? revisionFault(revision, last);
    const judged = this.#judge({ value: machine, fault: wrong }, labels);
    return judged && { revision: wrong === undefined ? (revision as number) : last, ...judged };
  }

  #rules(): MachineRules {
    return {
      now: this.#client.clock.now(),
      allowLoopback: this.#client.target.isLoopback,
      onCorrected: (reason) => this.#client.countInvalid(reason),
    };
  }

  /** Another tenant's machine must never be touched; leaving it out does that, and the count tells that it came. */
  #carries(own: Record<string, string>, labels: Record<string, string>): boolean {
    const carries = isSubset(labels, own);
    if (!carries) this.#client.countInvalid("labels");
    return carries;
  }

  #orRefuse<T>(work: () => T): T {
    try {
      return work();
    } catch (thrown) {
      if (thrown instanceof InvalidReplyError) throw this.#refuse(thrown.reason, thrown.message);
      throw thrown;
    }
  }

  #refuse(reason: InvalidReason, message: string): ProviderError {
    this.#client.countInvalid(reason);
    return new ProviderError("unavailable", `invalid reply: ${plainText(message, 1024)}`);
  }

  #unknown(thrown: unknown, call: Call): ProviderError {
    if (thrown instanceof InvalidReplyError) return this.#refuse(thrown.reason, thrown.message);
    return asProviderError(thrown, call);
  }
}

/** @throws ProviderError invalid */
function requireValid(found: Violation | undefined): void {
  if (found === undefined) return;
  throw new ProviderError("invalid", plainText(`${found.field} ${found.message}`, 1024), { field: found.field });
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

function requireLogLine(record: Buffer | undefined): LogLine {
  if (record === undefined)
    throw new InvalidReplyError("size", `a log line is longer than ${MAX_LOG_RECORD_BYTES} bytes`);
  const line = decodeLogLine(record);
  if (line === undefined)
    throw new InvalidReplyError("log_line", "a log line has not the form `time stream tag content`");
  return line;
}

/** Those of one stream never fall. */
function revisionFault(revision: unknown, last: number): InvalidReplyError | undefined {
  const found = violation("reply", "Count", revision);
  if (found !== undefined) return new InvalidReplyError("schema", `MachineEvent.revision ${found.message}`);
  if ((revision as number) >= last) return undefined;
  return new InvalidReplyError("revision", `revision ${String(revision)} came after ${last}`);
}

/** True for labels that are another owner's, however wrong they are otherwise. */
function contradicts(own: unknown, labels: Record<string, string>): boolean {
  if (!isRecord(own)) return false;
  return Object.entries(labels).some(
    ([key, value]) => Object.hasOwn(own, key) && typeof own[key] === "string" && own[key] !== value,
  );
}

/** True for a reply that was refused for its size. */
function isTooLarge(thrown: unknown): thrown is ProviderError {
  return isProviderError(thrown) && thrown.cause instanceof InvalidReplyError && thrown.cause.reason === "size";
}

function errorOf(data: string): ProviderError {
  const { error } = parseReply("ErrorReply", data);
  return new ProviderError(error.code, plainText(error.message, 1024), {
    retryAfterMs: error.retry_after_ms,
    requestId: error.request_id,
  });
}
