/** The routes of the Machine API. */
import { randomBytes, timingSafeEqual, createHash } from "node:crypto";
import { once } from "node:events";
import type { IncomingMessage, ServerResponse } from "node:http";
import { setTimeout as sleep } from "node:timers/promises";
import { TOMBSTONE_SECONDS, type Backend } from "./backend.ts";
import { readLog } from "./logs.ts";
import { ApiError, parseSpec, parseStop } from "./spec.ts";

const BODY_BYTES = 16 * 2 ** 20;
const STATES = "pending creating starting running stopping stopped failed deleting deleted".split(" ");

interface Call {
  backend: Backend;
  id: string;
  container: string;
  query: { [name: string]: unknown };
  body: Buffer;
  reply: ServerResponse;
  hungUp: AbortSignal;
}

/** What one parameter's text means; undefined when it means nothing. */
type Reader = (text: string) => unknown;

const flag: Reader = (text) => ({ true: true, false: false })[text];
const whole: Reader = (text) => (/^\d{1,15}$/.test(text) ? Number(text) : undefined);
const size: Reader = (text) => (/^[1-9]\d{0,4}$/.test(text) ? Number(text) : undefined);
const seconds: Reader = (text) => (/^\d{1,2}(\.\d{1,9})?$/.test(text) && Number(text) <= 60 ? Number(text) : undefined);
const time: Reader = (text) => (/^[\dT:.-]{19,29}Z$/.test(text) && !Number.isNaN(Date.parse(text)) ? text : undefined);
const states: Reader = (text) => (text.split(",").every((each) => STATES.includes(each)) ? text.split(",") : undefined);
const stream: Reader = (text) => (text === "stdout" || text === "stderr" ? text : undefined);
const label: Reader = (text) => {
  const at = text.indexOf("=");
  return at < 0 ? undefined : [text.slice(0, at), text.slice(at + 1)];
};
/** The first page's revision, and the last id seen: ids come in order, so whatever comes and goes moves nothing. */
const cursor: Reader = (text) => {
  const [, revision, after] = /^(\d{1,16}) (.+)$/.exec(Buffer.from(text, "base64url").toString()) ?? [];
  return revision === undefined ? undefined : { revision: Number(revision), after };
};

interface Route {
  method: string;
  path: RegExp;
  known?: { [name: string]: Reader };
  answer: (call: Call) => Promise<void> | void;
}

const MACHINE = /^\/v1\/machines\/([^/]+)$/;
const ROUTES: readonly Route[] = [
  { method: "GET", path: /^\/v1\/info$/, answer: info },
  {
    method: "GET",
    path: /^\/v1\/machines$/,
    known: { label, limit: size, cursor, include_deleted: flag },
    answer: list,
  },
  {
    method: "GET",
    path: MACHINE,
    known: { wait: states, since_version: whole, timeout: seconds },
    answer: get,
  },
  { method: "PUT", path: MACHINE, answer: put },
  { method: "DELETE", path: MACHINE, known: { force: flag }, answer: remove },
  { method: "POST", path: /^\/v1\/machines\/([^/]+)\/stop$/, answer: stop },
  {
    method: "GET",
    path: /^\/v1\/machines\/([^/]+)\/containers\/([^/]+)\/logs$/,
    known: { follow: flag, previous: flag, tail: whole, since: time, stream, limit_bytes: whole },
    answer: logs,
  },
];

export async function serve(
  { backend, token }: { backend: Backend; token: string },
  request: IncomingMessage,
  reply: ServerResponse,
): Promise<void> {
  const startedAt = performance.now();
  const hungUp = new AbortController();
  reply.on("close", () => hungUp.abort());
  // Without one, it gets one: by it a failure is found in the log.
  const given = request.headers["x-request-id"];
  const requestId =
    typeof given === "string" && /^[A-Za-z0-9._-]{1,64}$/.test(given) ? given : randomBytes(8).toString("hex");
  reply.setHeader("x-request-id", requestId);
  try {
    const body = await bodyOf(request);
    // Before anything else: strangers learn nothing, not even what is absent.
    if (!isSame(request.headers.authorization ?? "", `Bearer ${token}`))
      throw new ApiError("unauthorized", "the token is missing, or another one");
    const { route, call } = find(request, body);
    await route.answer({ ...call, backend, reply, hungUp: hungUp.signal });
  } catch (thrown) {
    // Anything else, as a full disk: nothing is known of what became of it.
    const error = thrown instanceof ApiError ? thrown : new ApiError("unavailable", String(thrown));
    const { code, message, field, status } = error;
    if (reply.headersSent) reply.destroy();
    else send(reply, status, { error: { code, message, field, request_id: requestId } });
  }
  console.error(`${request.method} ${request.url} ${Math.round(performance.now() - startedAt)} ms ${requestId}`);
}

async function bodyOf(request: IncomingMessage): Promise<Buffer> {
  const parts: Buffer[] = [];
  let length = 0;
  for await (const part of request as AsyncIterable<Buffer>) {
    length += part.length;
    if (length <= BODY_BYTES) parts.push(part);
  }
  if (length > BODY_BYTES) throw new ApiError("invalid", `a body has at most ${BODY_BYTES} bytes`);
  return Buffer.concat(parts);
}

function isSame(given: string, wanted: string): boolean {
  const digest = (text: string): Buffer => createHash("sha256").update(text).digest();
  return timingSafeEqual(digest(given), digest(wanted));
}

function find({ method, url = "/" }: IncomingMessage, body: Buffer) {
  const { pathname, searchParams } = new URL(url, "http://backend");
  for (const route of ROUTES) {
    const [matched, id = "", container = ""] = route.path.exec(pathname) ?? [];
    if (matched === undefined || route.method !== method) continue;
    if (id !== "" && !/^[a-z0-9]([-a-z0-9.]{0,126}[a-z0-9])?$/.test(id))
      throw new ApiError("invalid", `${id} is no id`, "id");
    return { route, call: { id, container, body, query: queryOf(route, searchParams) } };
  }
  // `not_found` would be proof that a machine is absent.
  throw new ApiError("unsupported", `there is no ${method} ${pathname}`);
}

function queryOf({ known = {} }: Route, parameters: URLSearchParams): Call["query"] {
  const query: Call["query"] = { label: [] };
  for (const [name, text] of parameters) {
    if (name.startsWith("x-")) continue;
    const value = Object.hasOwn(known, name) ? known[name]!(text) : undefined;
    // A misspelt selector that is ignored lists, and so touches, other people's machines.
    if (value === undefined)
      throw new ApiError("invalid", `the parameter ${name}=${text} is not known or not valid`, name);
    if (name === "label") (query["label"] as unknown[]).push(value);
    else query[name] = value;
  }
  return query;
}

function send(reply: ServerResponse, status: number, value: unknown): void {
  const data = JSON.stringify(value);
  reply.writeHead(status, { "content-type": "application/json", "content-length": Buffer.byteLength(data) }).end(data);
}

function info({ reply }: Call): void {
  const limits = { body_bytes: BODY_BYTES, tombstone_seconds: TOMBSTONE_SECONDS };
  send(reply, 200, { name: "typescript-sample", version: "1", api: "v1", capabilities: [], limits });
}

function list({ backend, query, reply }: Call): void {
  const { revision, after } = (query["cursor"] as { revision: number; after: string } | undefined) ?? {
    revision: backend.revision,
    after: "",
  };
  const { limit = 500, include_deleted: withTombstones } = query as { limit?: number; include_deleted?: boolean };
  const labels = query["label"] as [string, string][];
  const all = [...backend.machines.values()]
    .map(({ shown }) => shown)
    .filter(({ id, state }) => id > after && (withTombstones === true || state !== "deleted"))
    .filter((shown) => labels.every(([key, value]) => Object.hasOwn(shown.labels, key) && shown.labels[key] === value))
    .toSorted((a, b) => (a.id < b.id ? -1 : 1));
  const items = all.slice(0, limit);
  const next = all.length > limit ? Buffer.from(`${revision} ${items.at(-1)!.id}`).toString("base64url") : undefined;
  send(reply, 200, { items, revision, next_cursor: next });
}

async function get({ backend, id, query, reply, hungUp }: Call): Promise<void> {
  const { wait, since_version, timeout = 0 } = query as { wait?: string[]; since_version?: number; timeout?: number };
  const isSo = (): boolean => {
    const { state, version } = backend.find(id).shown;
    if (wait === undefined && since_version === undefined) return true;
    return wait?.includes(state) === true || (since_version !== undefined && version > since_version);
  };
  const late = AbortSignal.any([hungUp, AbortSignal.timeout(timeout * 1000)]);
  while (!isSo() && !late.aborted) await once(backend.changes, "change", { signal: late }).catch(() => undefined);
  send(reply, 200, backend.find(id).shown);
}

function put({ backend, id, body, reply }: Call): void {
  send(reply, 201, backend.create(id, parseSpec(body)).shown);
}

function stop({ backend, id, body, reply }: Call): void {
  const { grace_seconds } = parseStop(body);
  const machine = backend.find(id);
  backend.stop(machine, grace_seconds);
  send(reply, 202, machine.shown);
}

function remove({ backend, id, query, reply }: Call): void {
  backend.delete(id, query["force"] === true);
  reply.writeHead(202).end();
}

async function logs({ backend, id, container, query, reply, hungUp }: Call): Promise<void> {
  const machine = backend.find(id);
  const isPrevious = query["previous"] === true;
  const folder = machine.instance(isPrevious ? 1 : 0);
  if (machine.shown.containers[0]?.name !== container || (isPrevious && folder === undefined))
    throw new ApiError("not_found", `machine ${id} has no such log of a container ${container}`);
  const { state, last } = machine.main;
  if (folder === undefined || (state === "waiting" && last === undefined))
    throw new ApiError("conflict", `container ${container} of machine ${id} is waiting to start`);
  reply.writeHead(200, { "content-type": "text/x-cri-log" }).flushHeaders();
  const pause = (): Promise<void> => sleep(100, undefined, { signal: hungUp });
  for await (const line of readLog(machine, folder, query, pause)) {
    // What a slow client has not read is not taken from the disk.
    if (!reply.write(line)) await once(reply, "drain", { signal: hungUp });
  }
  reply.end();
}
