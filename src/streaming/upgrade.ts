/** What the streaming protocols share of HTTP: the request to upgrade, its refusal, and the choice of a subprotocol. */
import type { IncomingMessage } from "node:http";
import type { Duplex } from "node:stream";
import { HttpError } from "../http/http-error.ts";

/** What node's `upgrade` event hands over. */
export interface UpgradeRequest {
  request: IncomingMessage;
  socket: Duplex;
  /** Bytes behind the request's header that were read already. */
  head: Buffer;
  /** Set once 101 was written: from then on a failure can only close the connection. */
  answered: boolean;
}

/** The comma-separated, possibly repeated values of a header. */
export function headerList(value: string | string[] | undefined): string[] {
  if (value === undefined) return [];
  return (Array.isArray(value) ? value : [value])
    .flatMap((line) => line.split(","))
    .map((item) => item.trim())
    .filter((item) => item !== "");
}

type UpgradeKind = "spdy" | "websocket";

/**
 * Which protocol the client wants, by its `Connection` and `Upgrade` headers.
 * @throws HttpError 400 when neither
 */
export function upgradeKind(request: IncomingMessage): UpgradeKind {
  const connection = headerList(request.headers.connection).map((item) => item.toLowerCase());
  const upgrades = headerList(request.headers.upgrade).map((item) => item.toLowerCase());
  if (connection.includes("upgrade")) {
    if (upgrades.includes("websocket")) return "websocket";
    if (upgrades.includes("spdy/3.1")) return "spdy";
  }
  throw new HttpError(
    400,
    "unable to upgrade: missing upgrade headers in request: Upgrade must be SPDY/3.1 or websocket",
  );
}

/**
 * The first protocol of the client that the server has.
 *
 * @throws HttpError 400 when the client names none, 403 when there is none in common
 */
export function negotiateSpdyProtocol(request: IncomingMessage, supported: readonly string[]): string {
  const offered = headerList(request.headers["x-stream-protocol-version"]);
  if (offered.length === 0) {
    const count = Object.keys(request.headers).length;
    throw new HttpError(
      400,
      `unable to upgrade: header X-Stream-Protocol-Version does not exist in request with ${count} headers`,
    );
  }
  const chosen = offered.find((protocol) => supported.includes(protocol));
  if (chosen !== undefined) return chosen;
  throw new HttpError(
    403,
    `unable to upgrade: unable to negotiate protocol: client supports [${offered.join(" ")}], server accepts [${supported.join(" ")}]`,
    supported.map((protocol) => ["X-Accepted-Stream-Protocol-Versions", protocol] as const),
  );
}

/** Answers 101 for SPDY with the negotiated protocol. */
export function acceptSpdyUpgrade(upgrade: UpgradeRequest, protocol: string): void {
  upgrade.answered = true;
  upgrade.socket.write(
    `HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: ${protocol}\r\n\r\n`,
  );
}
