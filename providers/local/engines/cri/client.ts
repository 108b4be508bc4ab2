/**
 * A container runtime by CRI v1, on its unix socket. Every call has a deadline, and ends with its caller's signal. What
 * is asked while the runtime is away is asked again when it is back, where that certainly does nothing twice.
 */
import { connect } from "node:net";
import { type CallOptions, type Client, Code, ConnectError, createClient, type Interceptor } from "@connectrpc/connect";
import { createGrpcTransport, Http2SessionManager } from "@connectrpc/connect-node";
import { type Clock, pause, ProviderError, type Tracing } from "../../../../src/provider/kit/index.ts";
import { ImageService, RuntimeService } from "./api.gen.js";
import { heldConnection } from "./held-connection.ts";

/** kubelet's runtimeRequestTimeout. */
const CALL_MS = 120_000;
/** No reply that is asked for is longer: a list of all containers of a host. */
const MAX_REPLY_BYTES = 64 * 1024 * 1024;
/** A runtime that was killed is back within seconds: it is not to be waited for longer than that. */
const RECONNECT = { pingIntervalMs: 30_000, pingTimeoutMs: 10_000, pingIdleConnection: false };

/** Unavailable: it cannot be reached. The others: its end of the connection was closed while it was at it. */
const CUT: ReadonlySet<Code> = new Set([Code.Unavailable, Code.Aborted, Code.Canceled]);

/** A killed containerd with some forty machines is back within that, also on a busy host. */
const AWAY_MS = 60_000;
const AGAIN_MS = 100;
/** Calls that only tell. */
const READS: ReadonlySet<string> = new Set([
  ...["Version", "Status", "RuntimeConfig", "ListContainers", "ContainerStatus", "ListPodSandbox", "PodSandboxStatus"],
  ...["PodSandboxStats", "ListImages", "ImageStatus", "ImageFsInfo"],
]);

export class CriClient {
  readonly runtime: Client<typeof RuntimeService>;
  readonly images: Client<typeof ImageService>;
  /** For what the runtime is to bring to its end though this process is killed meanwhile. */
  readonly lasting: Client<typeof RuntimeService>;
  readonly socket: string;
  readonly #sessions: Http2SessionManager[];
  readonly #closed = new AbortController();

  /**
   * @param socket path of the runtime's unix socket
   * @param patience waits for a runtime that is away; absent: says so at once
   * @param tracing says which traces calls are part of, which the runtime is told; absent: none
   */
  constructor(socket: string, patience?: Clock, tracing?: Pick<Tracing, "active">) {
    this.socket = socket;
    const baseUrl = "http://localhost";
    const held = () => heldConnection(socket, CALL_MS / 1000);
    this.#sessions = [() => connect(socket), held].map(
      (createConnection) => new Http2SessionManager(baseUrl, RECONNECT, { createConnection }),
    );
    const options = {
      baseUrl,
      readMaxBytes: MAX_REPLY_BYTES,
      defaultTimeoutMs: CALL_MS,
      interceptors: [
        ...(tracing === undefined ? [] : [partOf(tracing)]),
        ...(patience === undefined ? [] : [untilBack(patience)]),
      ],
    };
    const [transport, lasting] = this.#sessions.map((sessionManager) =>
      createGrpcTransport({ ...options, sessionManager }),
    );
    this.runtime = createClient(RuntimeService, transport!);
    this.images = createClient(ImageService, transport!);
    this.lasting = createClient(RuntimeService, lasting!);
  }

  /** Options of a call: it ends with the signal, with this client, and when its time is over. */
  within(ms = CALL_MS, signal?: AbortSignal): CallOptions {
    const { signal: closed } = this.#closed;
    return { timeoutMs: ms, signal: signal === undefined ? closed : AbortSignal.any([closed, signal]) };
  }

  /** Options of a stream that goes on until its signal, or this client's end. */
  endless(signal: AbortSignal): CallOptions {
    return { timeoutMs: 0, signal: AbortSignal.any([this.#closed.signal, signal]) };
  }

  /** Ends all calls that are under way. */
  close(): void {
    this.#closed.abort(new Error("the backend is stopping"));
    for (const session of this.#sessions) session.abort();
  }
}

/** By W3C Trace Context in gRPC's metadata, which containerd and CRI-O go on from. */
function partOf(tracing: Pick<Tracing, "active">): Interceptor {
  return (next) => (request) => {
    for (const [name, value] of Object.entries(tracing.active() ?? {})) request.header.set(name, String(value));
    return next(request);
  };
}

/** Asks again what the runtime has not received, or what only tells. Streams end with it: their users notice. */
function untilBack(clock: Clock): Interceptor {
  return (next) => async (request) => {
    // Before its time is over: a call that was late may have had its effect, and this one had none.
    const until = clock.monotonic() + Math.min(AWAY_MS, timeoutMs(request.header) - 2 * AGAIN_MS);
    for (;;) {
      try {
        return await next(request);
      } catch (thrown) {
        const isHarmless = isUnsent(thrown) || (isCut(thrown) && READS.has(request.method.name));
        if (request.stream || !isHarmless || request.signal.aborted || clock.monotonic() > until) throw thrown;
        await pause(clock, AGAIN_MS, request.signal);
        if (request.signal.aborted) throw thrown;
      }
    }
  };
}

/** As gRPC tells it to the other end: `10000m`. */
function timeoutMs(header: Headers): number {
  const [, ms] = /^(\d+)m$/.exec(header.get("grpc-timeout") ?? "") ?? [];
  return ms === undefined ? Infinity : Number(ms);
}

/** True when there was nobody to ask: containerd leaves its socket behind when it is killed, and makes another one. */
function isUnsent(thrown: unknown): boolean {
  for (let cause = thrown; cause instanceof Error; cause = cause.cause) {
    const { code, syscall } = cause as NodeJS.ErrnoException;
    if (syscall === "connect" && (code === "ECONNREFUSED" || code === "ENOENT")) return true;
  }
  return false;
}

/** True when the runtime says that there is no such thing; any other failure proves nothing. */
export function isNotFound(thrown: unknown): boolean {
  return thrown instanceof ConnectError && thrown.code === Code.NotFound;
}

/** The runtime has no such call. */
export function isUnimplemented(thrown: unknown): boolean {
  return thrown instanceof ConnectError && thrown.code === Code.Unimplemented;
}

/** True when the call's time was over: it may have had its effect, or have it yet. */
export function isLate(thrown: unknown): boolean {
  return thrown instanceof ConnectError && thrown.code === Code.DeadlineExceeded;
}

/** True when the runtime has ended, or cannot be reached: the call may have had its effect, or have it yet. */
export function isCut(thrown: unknown): boolean {
  return thrown instanceof ConnectError && (CUT.has(thrown.code) || isUnsent(thrown));
}

/** What the runtime says, without the code before it. */
export function runtimeMessage(thrown: unknown): string {
  if (thrown instanceof ConnectError) return thrown.rawMessage;
  return thrown instanceof Error ? thrown.message : String(thrown);
}

/** For callers of the Machine API: what they asked for could not be done now. */
export function unavailable(what: string, cause: unknown): ProviderError {
  return new ProviderError("unavailable", `${what}: ${runtimeMessage(cause)}`, { cause });
}

/** Does what is to remove something: that it is gone is as good. */
export async function unlessGone(call: Promise<unknown>): Promise<void> {
  try {
    await call;
  } catch (thrown) {
    if (!isNotFound(thrown)) throw thrown;
  }
}
