/**
 * Any backend that serves the Machine API, as a Provider. Its methods are the API's routes; the rules of trust are that
 * a reply must be valid, must answer this request and must be about this machine. Anything else is `unavailable`. A
 * fault of one machine does not spoil the others: that one is unknown, and the reply stands.
 */
import type { Duplex } from "node:stream";
import {
  type CallOptions,
  type DeleteOptions,
  CAPABILITIES,
  type Capability,
  type Exchange,
  type ImageProvider,
  type LogLine,
  type LogOptions,
  type Machine,
  type MachineEvent,
  type MachineList,
  type MachinePatch,
  type MachineSpec,
  type MachineStats,
  type ProcessStreams,
  type PodRangesProvider,
  type ServicesProvider,
  type Provider,
  type ProviderCapacity,
  ProviderError,
  type ProviderInfo,
  specExcess,
  type StreamOptions,
  type UnknownMachineEvent,
  type VolumeProvider,
} from "../../src/provider/kit/index.ts";
import { partViolation, violation } from "../../src/provider/contract/document.ts";
import { type Call, containerPath, labelQuery, machinePath, streamQuery } from "./call.ts";
import { MachineApiClient } from "./client.ts";
import { recordBatches, serverSentEvents } from "./event-stream.ts";
import { HttpVmImages } from "./images.ts";
import { InvalidReplyError } from "./invalid-reply.ts";
import { Judge } from "./judge.ts";
import { isRecord, tryParse, type Parsed } from "./json.ts";
import { upgrade } from "./last-release.ts";
import { isTooLarge, MachineLists, readItems } from "./lists.ts";
import { DEFAULT_LIMITS, type HttpVmLimits, type HttpVmOptions } from "./options.ts";
import { PodNames } from "./pod-names.ts";
import { HttpVmPodRanges } from "./pod-ranges.ts";
import { HttpVmServices } from "./services.ts";
import { openPort, openProcess } from "./streams.ts";
import { HttpVmVolumes } from "./volumes.ts";
import { believe, parseReply, plainText, requireValid, tameTexts } from "./validate.ts";
import { decodeLogLine, EVENT_STREAM_TYPE, LOG_TYPE, MAX_LOG_RECORD_BYTES } from "./wire.ts";

export class HttpVmProvider implements Provider {
  readonly name: string;
  readonly #client: MachineApiClient;
  readonly #limits: HttpVmLimits;
  readonly #judge: Judge;
  readonly #lists: MachineLists;
  readonly volumes: VolumeProvider;
  readonly images: ImageProvider;
  readonly podRanges: PodRangesProvider;
  readonly services: ServicesProvider;
  readonly #pods = new PodNames();

  /** @throws TypeError when the url cannot be used */
  constructor(options: HttpVmOptions & { limits?: Partial<HttpVmLimits> | undefined }) {
    this.name = options.name ?? "http-vm";
    const { onExchange } = options;
    const seen = onExchange && ((exchange: Exchange) => onExchange({ ...exchange, pod: this.#pods.of(exchange.path) }));
    this.#client = new MachineApiClient({ ...options, onExchange: seen });
    this.#limits = { ...DEFAULT_LIMITS, ...options.limits };
    this.#judge = new Judge({
      clock: this.#client.clock,
      allowLoopback: this.#client.target.isLoopback,
      onInvalid: (reason) => this.#client.countInvalid(reason),
      onMachine: onExchange && (({ id, labels }) => this.#pods.remember(id, labels)),
    });
    this.#lists = new MachineLists(this.#client, this.#judge, this.#limits);
    this.volumes = new HttpVmVolumes(this.#client, this.#judge, this.#limits);
    this.images = new HttpVmImages(this.#client, this.#judge);
    this.podRanges = new HttpVmPodRanges(this.#client, this.#judge);
    this.services = new HttpVmServices(this.#client, this.#judge);
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
      ...(info.runtime_handlers !== undefined && { runtimeHandlers: info.runtime_handlers }),
      ...(info.running_in_user_namespace !== undefined && { runningInUserNamespace: info.running_in_user_namespace }),
      ...(info.volume_classes !== undefined && { volumeClasses: info.volume_classes }),
      ...(info.zone !== undefined && { zone: plainText(info.zone, 253) }),
      ...(info.limits?.attached_volumes !== undefined && { maxAttachedVolumes: info.limits.attached_volumes }),
      ...(info.reserved !== undefined && { reserved: info.reserved }),
      ...(unknown.length > 0 && { unknownCapabilities: unknown }),
    };
  }

  /**
   * A specification that the document forbids is not sent: a backend that took it might not be able to report the
   * machine.
   */
  async createPod(id: string, spec: MachineSpec, { signal }: CallOptions): Promise<Machine> {
    requireValid(violation("request", "MachineSpec", spec) ?? specExcess(spec));
    this.#pods.remember(id, spec.labels);
    return await this.#machine(id, { method: "PUT", path: machinePath(id), body: spec, signal });
  }

  getPod(id: string, { signal }: CallOptions): Promise<Machine> {
    return this.#machine(id, { method: "GET", path: machinePath(id), signal });
  }

  getPods(
    options: CallOptions & { labels: Record<string, string>; includeDeleted?: boolean | undefined },
  ): Promise<MachineList> {
    return this.#lists.read(options);
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
    const judged = text === undefined ? undefined : this.#judge.machine(tryParse(text), {});
    return judged?.machine?.id === id ? judged.machine : undefined;
  }

  async deletePod(id: string, { signal, force, ifAbsent }: DeleteOptions): Promise<void> {
    const query = force ? new URLSearchParams({ force: "true" }) : undefined;
    await this.#client.accepted({
      method: "DELETE",
      path: machinePath(id),
      signal,
      query,
      ifAbsent,
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
      throw this.#judge.failure(thrown, call);
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
        const judged = this.#judge.event(data, last, labels);
        if (judged === undefined) continue;
        last = judged.revision;
        ids.add((judged.machine ?? judged.unknown).id);
        if (ids.size > this.#limits.listItems)
          throw new InvalidReplyError("size", `there are events of more than ${this.#limits.listItems} machines`);
        yield judged;
      }
    } catch (thrown) {
      if (signal.aborted) return;
      throw this.#judge.failure(thrown, call);
    } finally {
      stream.close();
    }
    if (!signal.aborted) throw new ProviderError("unavailable", "the backend ended the stream of events");
  }

  async getCapacity({ signal }: CallOptions): Promise<ProviderCapacity> {
    const text = await this.#client.text({ method: "GET", path: "/v1/capacity", signal }, "single");
    return this.#judge.orRefuse(() => {
      const { value, fault } = tryParse(text);
      if (fault !== undefined) throw fault;
      upgrade("ProviderCapacity", value);
      if (isRecord(value)) {
        this.#dropInvalid(value, "conditions", "properties/conditions/items");
        this.#dropInvalid(value, "taints", "properties/taints/items");
        this.#dropInvalid(value, "csi_drivers", "properties/csi_drivers/items");
        this.#dropInvalid(value, "resource_drivers", "properties/resource_drivers/items");
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
    const { items } = await readItems(this.#client, this.#judge, call, "StatsList");
    const samples = new Map<string, MachineStats>();
    for (const item of items) {
      const sample = this.#judge.sample(item);
      if (sample === undefined) continue;
      if (samples.has(sample.id)) this.#client.countInvalid("duplicate_id");
      else samples.set(sample.id, sample);
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
      this.#judge.machine(parsed, {}) ?? {};
    const named = machine?.id ?? unknown.id;
    if (named !== id) throw this.#judge.refuse("machine_id", `the reply is about machine ${named}, not ${id}`);
    if (machine !== undefined) return machine;
    throw new ProviderError("unavailable", `invalid reply: ${unknown.reason}`, { unknownMachine: unknown });
  }
}

function requireLogLine(record: Buffer | undefined): LogLine {
  if (record === undefined)
    throw new InvalidReplyError("size", `a log line is longer than ${MAX_LOG_RECORD_BYTES} bytes`);
  const line = decodeLogLine(record);
  if (line === undefined)
    throw new InvalidReplyError("log_line", "a log line has not the form `time stream tag content`");
  return line;
}

function errorOf(data: string): ProviderError {
  const { error } = parseReply("ErrorReply", data);
  return new ProviderError(error.code, plainText(error.message, 1024), {
    retryAfterMs: error.retry_after_ms,
    requestId: error.request_id,
  });
}
