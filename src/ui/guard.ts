/**
 * Who may ask. The page's own server listens on loopback, where every user of the host and every page in the browser
 * can reach it, and it acts with the rights of the user who started it. So nothing but the page's files is given to
 * anybody without the token, which the user's browser gets in the fragment of the address. It is kept per origin and
 * sent in a header, never as a cookie: those go to every port of this host.
 */
import { createHash, timingSafeEqual } from "node:crypto";
import type { IncomingHttpHeaders } from "node:http";
import { HttpError } from "../http/http-error.ts";
import { headerList } from "../streaming/upgrade.ts";

/**
 * The subprotocol of a terminal, and what the token follows in a second one: a browser's WebSocket takes no headers.
 */
export const TERMINAL_PROTOCOL = "terminal.vmlet.dev";
const TOKEN_PROTOCOL = "token.vmlet.dev.";

/**
 * The names under which the page may be asked for: a name of somebody else's that was made to lead here (DNS
 * rebinding) is none of them.
 */
export function allowedHosts(port: number): string[] {
  return [`127.0.0.1:${port}`, `localhost:${port}`, `[::1]:${port}`];
}

/** @throws HttpError 403 for a request under another name, or from another page */
export function requireOwnPage(headers: IncomingHttpHeaders, hosts: readonly string[]): void {
  const { host = "", origin } = headers;
  if (!hosts.includes(host))
    throw new HttpError(403, `this server is not ${host === "" ? "nameless" : "known by that name"}`);
  if (origin !== undefined && origin !== `http://${host}`)
    throw new HttpError(403, "another page may not ask this server");
  const site = headers["sec-fetch-site"];
  if (site !== undefined && site !== "same-origin" && site !== "none")
    throw new HttpError(403, "another page may not ask this server");
}

/** @throws HttpError 401 */
export function requireToken(headers: IncomingHttpHeaders, token: string): void {
  const [, bearer] = /^Bearer ([\w-]{1,128})$/.exec(headers.authorization ?? "") ?? [];
  const offered = headerList(headers["sec-websocket-protocol"]).find((name) => name.startsWith(TOKEN_PROTOCOL));
  const given = bearer ?? offered?.slice(TOKEN_PROTOCOL.length) ?? "";
  // Of their hashes, which are of one length, so that the time tells nothing.
  if (!timingSafeEqual(hash(given), hash(token)))
    throw new HttpError(
      401,
      "this address is no longer valid, or lacks its token: take the one that `vmlet ui` printed",
    );
}

const hash = (text: string): Buffer => createHash("sha256").update(text).digest();
