/** The Machine API's HTTP routes, each a translation between one request and one call of the Provider. */
import { once } from "node:events";
import type { IncomingMessage, ServerResponse } from "node:http";
import {
  assertCapable,
  assertTellable,
  type Clock,
  type Machine,
  type MachineEvent,
  patchCapabilities,
  type Provider,
  ProviderError,
  requiredCapabilities,
  specExcess,
  type UnknownMachine,
  type UnknownMachineEvent,
} from "../../../src/provider/kit/index.ts";
import { violation } from "../../../src/provider/contract/document.ts";
import { encodeLogLine, errorReply, EVENT_STREAM_TYPE, LOG_TYPE } from "../wire.ts";
import type { AuditedCall } from "./audit.ts";
import { asProviderError, Query, readBody, sendJson, sendNothing } from "./http.ts";
import type { ServerLimits } from "./options.ts";
import { machineJson, statsJson } from "./telling.ts";

interface Exchange {
  request: IncomingMessage;
  response: ServerResponse;
  params: URLSearchParams;
  requestId: string;
  /** Aborts when the caller hangs up or the server closes: for what only waits or reads. */
  signal: AbortSignal;
  /** Aborts when the server is at the end of its patience: for what changes something and should be finished. */
  workSignal: AbortSignal;
  /** Where the call is audited. */
  audited?: AuditedCall | undefined;
}

export interface RouteContext {
  provider: Provider;
  clock: Clock;
  limits: ServerLimits;
}

type Handler = (context: RouteContext, exchange: Exchange, ids: string[]) => Promise<void>;

interface Route {
  method: string;
  /** Segments; `*` is an id. */
  path: string[];
  handle: Handler;
}

const route = (method: string, path: string, handle: Handler): Route => ({
  method,
  path: path.split("/").slice(1),
  handle,
});

const ROUTES: readonly Route[] = [
  route("GET", "/v1/machines/*", getMachine),
  route("PUT", "/v1/machines/*", putMachine),
  route("PATCH", "/v1/machines/*", patchMachine),
  route("DELETE", "/v1/machines/*", deleteMachine),
  route("GET", "/v1/machines", listMachines),
  route("POST", "/v1/machines/*/stop", stopMachine),
  route("GET", "/v1/machines/*/containers/*/logs", getLogs),
  route("GET", "/v1/events", getEvents),
  route("GET", "/v1/stats", getStats),
  route("GET", "/v1/info", getInfo),
  route("GET", "/v1/capacity", getCapacity),
];

/** Answers the request, or throws the ProviderError to answer with. */
export async function dispatch(context: RouteContext, exchange: Exchange, pathname: string): Promise<void> {
  const segments = pathname.split("/").slice(1);
  for (const candidate of ROUTES) {
    if (candidate.method !== exchange.request.method) continue;
    const ids = matchPath(candidate.path, segments);
    if (ids !== undefined) return candidate.handle(context, exchange, ids);
  }
  throw unsupportedRoute(exchange.request.method, pathname);
}

/** @returns the decoded ids, or undefined when the path is another. */
export function matchPath(pattern: readonly string[], segments: readonly string[]): string[] | undefined {
  if (pattern.length !== segments.length) return undefined;
  const ids: string[] = [];
  for (let i = 0; i < pattern.length; i++) {
    const segment = segments[i]!;
    if (pattern[i] === "*") ids.push(segment);
    else if (pattern[i] !== segment) return undefined;
  }
  return ids.map((id) => {
    try {
      return decodeURIComponent(id);
    } catch (thrown) {
      throw new ProviderError("invalid", "the path is not percent-encoded UTF-8", { cause: thrown });
    }
  });
}

export function unsupportedRoute(method: string | undefined, pathname: string): ProviderError {
  return new ProviderError("unsupported", `${method ?? "?"} ${pathname.slice(0, 200)} is not a route of this backend`);
}

/** @throws ProviderError invalid */
export function checkedId(id: string | undefined, schema: "MachineId" | "Name", field: string): string {
  const found = violation("request", schema, id);
  if (found !== undefined) throw new ProviderError("invalid", `${field} ${found.message}`, { field });
  return id!;
}

const machineId = (ids: string[]): string => checkedId(ids[0], "MachineId", "id");

async function getInfo({ provider, limits }: RouteContext, { response, params, signal }: Exchange): Promise<void> {
  new Query(params, []);
  const { name, version, capabilities, os, architecture } = await provider.getInfo({ signal });
  sendJson(
    response,
    200,
    JSON.stringify({
      name,
      version,
      capabilities,
      os,
      architecture,
      api: "v1",
      limits: { body_bytes: limits.bodyBytes, page_items: limits.pageItems },
    }),
  );
}

async function getCapacity({ provider }: RouteContext, { response, params, signal }: Exchange): Promise<void> {
  new Query(params, []);
  if (provider.getCapacity === undefined) throw lacks("capacity");
  sendJson(response, 200, JSON.stringify(await provider.getCapacity({ signal })));
}

async function getStats({ provider }: RouteContext, { response, params, signal }: Exchange): Promise<void> {
  const query = new Query(params, ["label"]);
  if (provider.getStats === undefined) throw lacks("stats");
  const items = await provider.getStats({ signal, labels: query.labels() });
  sendJson(response, 200, statsJson(items));
}

export function lacks(capability: string): ProviderError {
  return new ProviderError("unsupported", `this backend lacks the capability ${capability}`);
}

async function putMachine({ provider, limits }: RouteContext, exchange: Exchange, ids: string[]): Promise<void> {
  new Query(exchange.params, []);
  const id = machineId(ids);
  const spec = await readBody(exchange.request, "MachineSpec", limits.bodyBytes);
  if (exchange.audited !== undefined) exchange.audited.labels = spec.labels;
  assertTellable(specExcess(spec));
  const { capabilities } = await provider.getInfo({ signal: exchange.workSignal });
  assertCapable(requiredCapabilities(spec), capabilities);
  const machine = await provider.createPod(id, spec, { signal: exchange.workSignal });
  sendJson(exchange.response, 200, machineJson(machine));
}

async function patchMachine({ provider, limits }: RouteContext, exchange: Exchange, ids: string[]): Promise<void> {
  new Query(exchange.params, []);
  const id = machineId(ids);
  if (provider.updatePod === undefined) throw lacks("patch_files");
  const patch = await readBody(exchange.request, "MachinePatch", limits.bodyBytes);
  const { capabilities } = await provider.getInfo({ signal: exchange.workSignal });
  assertCapable(patchCapabilities(patch), capabilities);
  sendJson(exchange.response, 200, machineJson(await provider.updatePod(id, patch, { signal: exchange.workSignal })));
}

async function deleteMachine(
  { provider }: RouteContext,
  { response, params, workSignal }: Exchange,
  ids: string[],
): Promise<void> {
  const force = new Query(params, ["force"]).flag("force");
  await provider.deletePod(machineId(ids), { signal: workSignal, force });
  sendNothing(response);
}

async function stopMachine({ provider, limits }: RouteContext, exchange: Exchange, ids: string[]): Promise<void> {
  new Query(exchange.params, []);
  const id = machineId(ids);
  const body = await readBody(exchange.request, "StopRequest", limits.bodyBytes);
  const machine = await provider.stopPod(id, { signal: exchange.workSignal, graceSeconds: body.grace_seconds });
  sendJson(exchange.response, 202, machine === undefined ? JSON.stringify({ id }) : machineJson(machine));
}

async function getMachine(context: RouteContext, { response, params, signal }: Exchange, ids: string[]): Promise<void> {
  const query = new Query(params, ["wait", "since_version", "timeout"]);
  const id = machineId(ids);
  const states = query.text("wait")?.split(",");
  for (const state of states ?? []) {
    const found = violation("request", "MachineState", state);
    if (found !== undefined) throw new ProviderError("invalid", `wait ${found.message}`, { field: "wait" });
  }
  const sinceVersion = query.count("since_version");
  const timeoutMs = query.timeoutMs(context.limits.longPollMs);
  let machine = await context.provider.getPod(id, { signal });
  const due = (seen: Machine): boolean =>
    (states === undefined && sinceVersion === undefined) ||
    states?.includes(seen.state) === true ||
    (sinceVersion !== undefined && seen.version > sinceVersion);
  if (!due(machine)) machine = await nextState(context, machine, due, timeoutMs, signal);
  sendJson(response, 200, machineJson(machine));
}

/** How often a provider without events is asked while a caller waits. */
const POLL_MS = 250;

async function nextState(
  { provider, clock }: RouteContext,
  machine: Machine,
  due: (machine: Machine) => boolean,
  timeoutMs: number,
  signal: AbortSignal,
): Promise<Machine> {
  const expired = new AbortController();
  const cancel = clock.after(timeoutMs, () => expired.abort());
  const waiting = AbortSignal.any([signal, expired.signal]);
  let last = machine;
  try {
    const { capabilities } = await provider.getInfo({ signal });
    if (provider.watchPods === undefined || !capabilities.includes("events")) {
      while (!due(last)) {
        await clock.sleep(POLL_MS, waiting);
        last = await provider.getPod(machine.id, { signal });
      }
      return last;
    }
    // The list says from where to watch; what happened before it is in its items.
    const list = await provider.getPods({ signal, labels: machine.labels, includeDeleted: true });
    last = list.items.find((item) => item.id === machine.id) ?? last;
    if (due(last)) return last;
    for await (const event of provider.watchPods(list.revision, { signal: waiting, labels: machine.labels })) {
      if (event.machine?.id !== machine.id) continue;
      last = event.machine;
      if (due(last)) return last;
    }
    return last;
  } catch (thrown) {
    if (expired.signal.aborted && !signal.aborted) return last;
    throw thrown;
  } finally {
    cancel();
    expired.abort();
  }
}

interface Cursor {
  /** Last id of the page before. */
  after: string;
  /** Revision of the first page. */
  revision: number;
}

/** Pages in the order of the ids, so a page needs no memory of the one before but its last id. */
async function listMachines({ provider, limits }: RouteContext, { response, params, signal }: Exchange): Promise<void> {
  const query = new Query(params, ["label", "limit", "cursor", "include_deleted"]);
  const limit = Math.min(query.count("limit", { min: 1, max: 10_000 }) ?? limits.pageItems, limits.pageItems);
  const cursor = decodeCursor(query.text("cursor"));
  const list = await provider.getPods({
    signal,
    labels: query.labels(),
    includeDeleted: query.flag("include_deleted"),
  });
  const bodies = [
    ...list.items.map((machine) => ({ id: machine.id, text: () => machineJson(machine) })),
    ...(list.unknown ?? []).map((unknown) => ({ id: unknown.id, text: () => JSON.stringify(sureOf(unknown)) })),
  ];
  const items = bodies.sort((a, b) => (a.id < b.id ? -1 : 1));
  const from = cursor === undefined ? 0 : firstAfter(items, cursor.after);
  const revision = cursor?.revision ?? list.revision;

  const page: string[] = [];
  let bytes = 0;
  let next = from;
  while (next < items.length && page.length < limit) {
    const text = items[next]!.text();
    bytes += Buffer.byteLength(text);
    // A client refuses a page above its own cap, and then sees none of the machines: only the first may be larger.
    if (bytes > limits.pageBytes && page.length > 0) break;
    page.push(text);
    next++;
  }
  const nextCursor =
    next < items.length
      ? `,"next_cursor":${JSON.stringify(encodeCursor({ after: items[next - 1]!.id, revision }))}`
      : "";
  sendJson(response, 200, `{"items":[${page.join(",")}],"revision":${revision}${nextCursor}}`);
}

function firstAfter(items: readonly { id: string }[], id: string): number {
  let low = 0;
  let high = items.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (items[middle]!.id <= id) low = middle + 1;
    else high = middle;
  }
  return low;
}

function encodeCursor(cursor: Cursor): string {
  return Buffer.from(`${cursor.revision} ${cursor.after}`).toString("base64url");
}

function decodeCursor(text: string | undefined): Cursor | undefined {
  if (text === undefined) return undefined;
  const match = /^(\d{1,16}) ([-a-z0-9.]+)$/.exec(Buffer.from(text, "base64url").toString("latin1"));
  if (match === null) throw new ProviderError("invalid", "cursor is not one of this backend", { field: "cursor" });
  return { revision: Number(match[1]), after: match[2]! };
}

/** How long headers are held back in the hope that an error can still be told by status. */
const FIRST_RESULT_MS = 250;

async function getLogs({ provider, clock }: RouteContext, exchange: Exchange, ids: string[]): Promise<void> {
  const query = new Query(exchange.params, ["follow", "previous", "tail", "since", "stream", "limit_bytes"]);
  const id = machineId(ids);
  const container = checkedId(ids[1], "Name", "container");
  const since = query.text("since");
  if (since !== undefined && violation("request", "Time", since) !== undefined) {
    throw new ProviderError("invalid", "since must be RFC 3339 in UTC", { field: "since" });
  }
  const stream = query.text("stream");
  if (stream !== undefined && stream !== "stdout" && stream !== "stderr") {
    throw new ProviderError("invalid", "stream must be stdout or stderr", { field: "stream" });
  }
  const tail = query.count("tail");
  const limitBytes = query.count("limit_bytes");
  const lines = provider.getLogs(id, container, {
    signal: exchange.signal,
    follow: query.flag("follow"),
    previous: query.flag("previous"),
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

/** Resolves when `promise` settles, or after a moment. @throws what the promise rejects with, within that moment */
async function settledSoon(promise: Promise<unknown>, clock: Clock): Promise<void> {
  let cancel = () => {};
  const moment = new Promise<void>((resolve) => {
    cancel = clock.after(FIRST_RESULT_MS, resolve);
  });
  // The race may leave the promise behind; the next `await` of it sees its rejection.
  promise.catch(() => {});
  try {
    await Promise.race([promise, moment]);
  } finally {
    cancel();
  }
}

const BATCH_BYTES = 64 * 1024;

/** Small writes of one turn leave as one; a full socket holds the writer back. */
class BatchedOutput {
  readonly #response: ServerResponse;
  readonly #signal: AbortSignal;
  #batch: Buffer[] = [];
  #bytes = 0;

  constructor(response: ServerResponse, signal: AbortSignal) {
    this.#response = response;
    this.#signal = signal;
  }

  /** @returns something to wait for when nothing more should be written for now */
  write(data: Buffer): Promise<unknown> | undefined {
    if (this.#bytes === 0) setImmediate(() => this.flush());
    this.#batch.push(data);
    this.#bytes += data.length;
    if (this.#bytes >= BATCH_BYTES) this.flush();
    return this.#response.writableNeedDrain ? once(this.#response, "drain", { signal: this.#signal }) : undefined;
  }

  /** Must come before end(). */
  flush(): void {
    if (this.#bytes === 0 || this.#response.destroyed) return;
    this.#response.write(Buffer.concat(this.#batch, this.#bytes));
    this.#batch = [];
    this.#bytes = 0;
  }
}

type AnyEvent = MachineEvent | UnknownMachineEvent;

/**
 * When the provider itself cannot believe a machine, the caller gets what is certain, and will not believe it either.
 */
function eventJson(event: AnyEvent): string {
  const machine = event.machine === undefined ? JSON.stringify(sureOf(event.unknown)) : machineJson(event.machine);
  return `{"revision":${event.revision},"machine":${machine}}`;
}

const sureOf = ({ id, state, version }: UnknownMachine): object => ({ id, state, version });

/** Events beyond this wait for the next poll. */
const POLL_EVENTS = 500;

async function getEvents(context: RouteContext, exchange: Exchange): Promise<void> {
  const { provider } = context;
  const query = new Query(exchange.params, ["since", "timeout", "label"]);
  if (provider.watchPods === undefined) throw lacks("events");
  const since = query.count("since");
  if (since === undefined) throw new ProviderError("invalid", "since is required", { field: "since" });
  const labels = query.labels();
  const timeoutMs = query.timeoutMs(context.limits.longPollMs);
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
  let release = () => {};
  const over = new Promise<undefined>((resolve) => {
    release = () => resolve(undefined);
    signal.addEventListener("abort", release, { once: true });
  });
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
    signal.removeEventListener("abort", release);
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
