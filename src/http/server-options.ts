/** What vmlet's servers demand of every client: TLS, time limits, and the size of a request's head. */
import { constants } from "node:crypto";
import type { ServerOptions } from "node:http";
import type { SecureContextOptions } from "node:tls";
import { TLS_CIPHERS } from "../util/tls-ciphers.ts";

/** A command to execute is part of a URL, and scripts are passed that way. */
const MAX_HEAD_BYTES = 64 * 1024;
/** Without probes, the session of a client whose host is gone would be kept for ever, and its process with it. */
const TCP_KEEPALIVE_MS = 30_000;

interface TimeLimits {
  /** For the TLS handshake, and for the head of a request, in milliseconds. */
  headersMs: number;
  /** Until a request is read in whole. */
  requestMs: number;
  /** An idle connection is closed after so long. */
  keepAliveMs: number;
}

/** For `createServer` of node:http and node:https. */
export function serverOptions({ headersMs, requestMs, keepAliveMs }: TimeLimits): ServerOptions & {
  handshakeTimeout: number;
} {
  return {
    handshakeTimeout: headersMs,
    headersTimeout: headersMs,
    requestTimeout: requestMs,
    // Node looks for what is late only so often.
    connectionsCheckingInterval: Math.min(5_000, headersMs),
    keepAliveTimeout: keepAliveMs,
    keepAlive: true,
    keepAliveInitialDelay: TCP_KEEPALIVE_MS,
    noDelay: true,
    maxHeaderSize: MAX_HEAD_BYTES,
  };
}

/**
 * The TLS context of a server, in whole: a new one (`setSecureContext`) takes nothing over from the one before.
 *
 * @param pair the server's certificate and key in PEM; without them no handshake succeeds
 * @param clientCa whose clients' certificates are good; none means no CA, not the public ones
 */
export function tlsContext(
  pair: { cert: string | Buffer; key: string | Buffer } | undefined,
  clientCa: string | Buffer | undefined,
): SecureContextOptions {
  return {
    ...(pair && { cert: pair.cert, key: pair.key }),
    // An empty list, for without any Node would trust the public CAs.
    ca: clientCa === undefined ? [] : [clientCa],
    minVersion: "TLSv1.2",
    ciphers: TLS_CIPHERS,
    // No tickets: a resumed session would carry a client certificate past a change of the CA.
    secureOptions: constants.SSL_OP_NO_TICKET | constants.SSL_OP_NO_RENEGOTIATION,
  };
}
