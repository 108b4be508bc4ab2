/**
 * What a Machine API server is made of: the provider that it serves, who may call, and how much a caller may ask for.
 */
import type { AuditedCommand, Clock, Logger, Provider, Tracing } from "../../../src/provider/kit/index.ts";
import type { Scope } from "./scope.ts";

/**
 * Who may call. Without any of this, all who can connect may do everything: no more than a unix socket is for. Beyond
 * it, the server listens only on loopback then.
 */
export interface ServerAuth {
  /**
   * Accepted bearer tokens of a client that may do everything, `default`; asked for again with every request, so that a
   * token can be replaced while the server runs. With `ServerTls.clientCa` a certificate is asked for besides.
   */
  bearerTokens?: (() => readonly string[]) | undefined;
  /** Clients that may do some of it. With them, a certificate alone is not enough: its names must be a client's. */
  clients?: readonly ApiClient[] | undefined;
}

/** One who calls: an agent, a dashboard. It is known by its token, its certificate, or both where both are given. */
export interface ApiClient extends Scope {
  /** In the audit, and in refusals. */
  name: string;
  /** Accepted bearer tokens, asked for again with every request. */
  bearerTokens?: (() => readonly string[]) | undefined;
  /** The certificate's common name, or one of its DNS or URI names, letter by letter. Needs `ServerTls.clientCa`. */
  certificateNames?: readonly string[] | undefined;
}

export interface ServerTls {
  cert: string | Buffer;
  key: string | Buffer;
  /** With it, a client must show a certificate that this CA signed. */
  clientCa?: string | Buffer | undefined;
}

export interface ServerLimits {
  /** Largest request body in bytes. A spec carries configMaps and secrets of 1 MiB each. */
  bodyBytes: number;
  /** Of all bodies of one client's requests that are under way, in bytes. Beyond it, it is told to try again later. */
  bodiesBytes: number;
  /** Most machines on one page of a list. */
  pageItems: number;
  /** A page ends early rather than grow beyond this many bytes. */
  pageBytes: number;
  /**
   * Open connections in all. Beyond that, a new one takes the place of one on which no credentials have been accepted
   * yet, or, if there is none, of an idle one.
   */
  connections: number;
  /** Connections of one client, where there are several: none can take them all. */
  connectionsPerClient: number;
  /**
   * Connections of one address on which no credentials were accepted yet; a new one beyond takes the place of the
   * oldest.
   */
  strangersPerAddress: number;
  /** How long a caller may take for the TLS handshake, and for the header of a request, in milliseconds. */
  headersMs: number;
  /** Longest long poll in milliseconds; a caller that asks for more gets this. */
  longPollMs: number;
  /** Between two signs of life on a quiet stream, in milliseconds. */
  keepAliveMs: number;
  /**
   * What all sessions together hold in memory: input that a command does not read, messages that are not whole. Beyond
   * it, the largest of the client that has most is ended.
   */
  unreadBytes: number;
}

export const DEFAULT_SERVER_LIMITS: ServerLimits = {
  bodyBytes: 16 * 1024 * 1024,
  bodiesBytes: 256 * 1024 * 1024,
  pageItems: 500,
  pageBytes: 6 * 1024 * 1024,
  connections: 1024,
  connectionsPerClient: 512,
  strangersPerAddress: 512,
  headersMs: 10_000,
  longPollMs: 60_000,
  keepAliveMs: 15_000,
  unreadBytes: 64 * 1024 * 1024,
};

export interface MachineApiServerOptions {
  provider: Provider;
  logger: Logger;
  clock?: Clock | undefined;
  auth?: ServerAuth | undefined;
  tls?: ServerTls | undefined;
  /** How much of a command the audit, at level info of the log, says. Default: its first word. */
  auditCommands?: AuditedCommand | undefined;
  limits?: Partial<ServerLimits> | undefined;
  /** Absent: nothing is traced, and what callers say of traces is not looked at. */
  tracing?: Tracing | undefined;
}

export type ListenAddress = { host: string; port: number } | { socketPath: string };
