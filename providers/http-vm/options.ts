/** Where a backend is and how it is talked to. */
import { isIP } from "node:net";
import type { Duplex } from "node:stream";
import { trimEnd, type Clock, type Exchange, type Logger, type Tracing } from "../../src/provider/kit/index.ts";
import type { CredentialFiles } from "./credentials.ts";
import type { PacingOptions } from "./pacing.ts";
import type { InvalidReason } from "./invalid-reply.ts";

export interface Deadlines {
  /** TCP and TLS. */
  connectMs: number;
  /** From the request to the reply's headers. */
  headersMs: number;
  /** From the headers to the end of the body. Does not hold for streams. */
  bodyMs: number;
  /** A stream that is silent for so long is dead: a backend shows a sign of life every 15 s. */
  silenceMs: number;
}

export type Dial = (signal: AbortSignal) => Promise<Duplex>;

export interface HttpVmOptions {
  /** `https://host:port/prefix`, `http://` on loopback, or `unix:///path`. */
  url: string;
  name?: string | undefined;
  /** Opens a byte stream to the backend, where it has no address. The url then says only how it is spoken to. */
  dial?: Dial | undefined;
  /** What `dial` opened reaches the same backend for as long as it is open, and is kept for further calls. */
  keepDialled?: boolean | undefined;
  credentials?: CredentialFiles | undefined;
  /** Plain HTTP beyond loopback shows every secret of every pod to the network. For experiments. */
  allowPlainHttp?: boolean | undefined;
  pacing?: Partial<PacingOptions> | undefined;
  deadlines?: Partial<Deadlines> | undefined;
  clock?: Clock | undefined;
  logger?: Logger | undefined;
  /** Says which traces requests are part of, which are told to the backend. Absent: none. */
  tracing?: Pick<Tracing, "active"> | undefined;
  /** Called for every request, when its reply has begun or cannot come any more. */
  onExchange?: ((exchange: Exchange) => void) | undefined;
  /** Called for every reply that was refused or corrected, for a counter. */
  onInvalidReply?: ((reason: InvalidReason) => void) | undefined;
}

/** reliability.md §2.8. */
export const DEFAULT_DEADLINES: Deadlines = { connectMs: 5000, headersMs: 10_000, bodyMs: 30_000, silenceMs: 60_000 };
export const DEFAULT_PACING: PacingOptions = { concurrency: 32, perSecond: 50, burst: 100 };

/** Byte caps of replies. */
export const REPLY_BYTES = { single: 1024 * 1024, list: 8 * 1024 * 1024, headers: 16 * 1024 } as const;

/** Where the backend is, split up for Node. */
export interface Target {
  baseUrl: string;
  socketPath: string | undefined;
  isLoopback: boolean;
  isTls: boolean;
}

/** @throws TypeError that says what is wrong with the address */
export function parseTarget(url: string, allowPlainHttp: boolean): Target {
  if (url.startsWith("unix:")) {
    const socketPath = url.replace(/^unix:(\/\/)?/, "");
    if (!socketPath.startsWith("/")) throw new TypeError(`the backend's address ${url} must be unix:///absolute/path`);
    return { baseUrl: "http://localhost", socketPath, isLoopback: true, isTls: false };
  }
  let parsed: URL;
  try {
    parsed = new URL(url);
  } catch {
    throw new TypeError(
      `the backend's address ${url} is no URL; give https://host:port, http:// on loopback, or unix:///path`,
    );
  }
  if (parsed.protocol !== "https:" && parsed.protocol !== "http:") {
    throw new TypeError(`the backend's address ${url} must start with https://, http:// or unix://`);
  }
  if (parsed.username !== "" || parsed.password !== "")
    throw new TypeError("credentials do not belong in the backend's address; use tokenFile");
  const isLoopback = isLoopbackHost(parsed.hostname);
  if (parsed.protocol === "http:" && !isLoopback && !allowPlainHttp) {
    throw new TypeError(
      `the backend's address ${url} is plain HTTP beyond loopback, which shows every secret to the network; use https://`,
    );
  }
  const path = trimEnd(parsed.pathname, "/");
  return {
    baseUrl: `${parsed.protocol}//${parsed.host}${path}`,
    socketPath: undefined,
    isLoopback,
    isTls: parsed.protocol === "https:",
  };
}

function isLoopbackHost(hostname: string): boolean {
  const bare = hostname.replace(/^\[|\]$/g, "");
  return bare === "localhost" || bare === "::1" || (isIP(bare) === 4 && bare.startsWith("127."));
}

/** How much a backend may list. */
export interface HttpVmLimits {
  /** Asked for per page. */
  pageItems: number;
  /** A backend that lists more than this is refused: it would fill the memory, also that of the agent's other nodes. */
  listItems: number;
  /** The same of all pages of a list together, in characters. */
  listChars: number;
}

export const DEFAULT_LIMITS: HttpVmLimits = { pageItems: 500, listItems: 100_000, listChars: 256 * 1024 * 1024 };
