/**
 * Who holds the connections of a server, and who has to go when there is no room, so that no client can keep others out
 * by holding connections open. All of vmlet's servers stand behind this: the kubelet API, the Machine API and the
 * health port.
 *
 * A connection is a stranger's until a request on it was allowed (`trust`). Among strangers the address that has
 * most of them pays, with the one that has been silent for longest. Only when there are no strangers does a trusted
 * connection go, and only one without a request. TLS handshakes that do not come to an end are cut off.
 */
import type { IncomingMessage, Server, ServerResponse } from "node:http";
import { Server as TlsServer } from "node:https";
import type { Socket } from "node:net";
import type { Duplex } from "node:stream";

export interface ConnectionLimits {
  /** Connections in all. */
  total: number;
  /** Strangers' connections of one address. Default: as many as in all. */
  strangersPerAddress?: number | undefined;
  /** Trusted connections of one owner. Default: as many as in all. */
  trustedPerOwner?: number | undefined;
}

interface Connection {
  readonly socket: Socket;
  readonly address: string;
  readonly ends: string;
  /** Undefined while it is a stranger's. */
  owner: string | undefined;
  /** The last request on it, and its answer. */
  last: { request: IncomingMessage; response: ServerResponse } | undefined;
  /** Requests that are not answered in whole. An upgraded connection has one until it ends. */
  requests: number;
}

export class Connections {
  readonly #server: Server;
  readonly #total: number;
  readonly #strangersPerAddress: number;
  readonly #trustedPerOwner: number;
  readonly #usesTls: boolean;
  readonly #all = new Set<Connection>();
  /** By the socket that is seen: TLS wraps the one that was accepted. */
  readonly #bySocket = new WeakMap<Duplex, Connection>();
  /** By the addresses and ports of both sides, which the two sockets have in common. */
  readonly #byEnds = new Map<string, Connection>();
  /** Strangers' connections by address; the one that was silent for longest comes first. */
  readonly #strangers = new Map<string, Set<Connection>>();
  /** Trusted ones without a request; what was silent for longest comes first. */
  readonly #idle = new Set<Connection>();
  readonly #owned = new Map<string, number>();
  /** TLS sockets whose handshake is over. */
  readonly #secured = new WeakSet<Duplex>();
  #closed = false;

  /**
   * Watches `server` from now on; its own `maxConnections` must stay unset. TLS is for addresses, not for sockets of a
   * file.
   */
  constructor(server: Server, limits: ConnectionLimits) {
    this.#server = server;
    this.#total = limits.total;
    this.#strangersPerAddress = limits.strangersPerAddress ?? limits.total;
    this.#trustedPerOwner = limits.trustedPerOwner ?? limits.total;
    this.#usesTls = server instanceof TlsServer;
    server.on("connection", (socket: Socket) => {
      if (!this.#add(socket)) socket.destroy();
    });
    server.prependListener("secureConnection", (socket: Socket) => {
      this.#secured.add(socket);
      const connection = this.#byEnds.get(endsOf(socket));
      if (connection !== undefined) this.#bySocket.set(socket, connection);
    });
    // Node tells of a handshake that takes too long, and leaves the connection as it is.
    server.on("tlsClientError", (_error, socket: Socket) => socket.destroy());
    server.prependListener("request", (request: IncomingMessage, response: ServerResponse) => {
      const connection = this.#bySocket.get(request.socket);
      if (connection === undefined) return;
      connection.last = { request, response };
      this.#begin(connection);
      response.once("close", () => this.#end(connection));
    });
    server.prependListener("upgrade", (_request: IncomingMessage, socket: Duplex) => {
      const connection = this.#bySocket.get(socket);
      if (connection !== undefined) this.#begin(connection);
    });
  }

  /**
   * The request that came on `socket` was let in: no stranger takes its place any more.
   *
   * @param owner to whom the connection counts, for the bound of `trustedPerOwner`
   * @returns false when the owner has as many as it may already, and uses them all
   */
  trust(socket: Duplex, owner = ""): boolean {
    const connection = this.#bySocket.get(socket);
    // A connection that is gone takes no room.
    if (connection === undefined || !this.#all.has(connection) || connection.owner === owner) return true;
    if ((this.#owned.get(owner) ?? 0) >= this.#trustedPerOwner) {
      const spare = this.#idle.values().find((idle) => idle.owner === owner);
      if (spare === undefined) return false;
      this.#drop(spare);
    }
    if (connection.owner === undefined) this.#noStranger(connection);
    else this.#disown(connection.owner);
    connection.owner = owner;
    this.#owned.set(owner, (this.#owned.get(owner) ?? 0) + 1);
    if (connection.requests === 0) this.#idle.add(connection);
    return true;
  }

  /**
   * Has `answer` tell a client that what it sent is not HTTP, or came too late, where that can be told. It gets the
   * connection, for which nothing else cares any more.
   */
  answerGarbage(answer: (error: NodeJS.ErrnoException, socket: Duplex) => void): void {
    this.#server.on("clientError", (error, socket) => {
      if (!this.#canAnswer(socket)) socket.destroy();
      // A second answer to one request would be taken for that to the next, or for more of the first.
      else if (isBeingAnswered(this.#bySocket.get(socket)?.last)) (socket as Socket).destroySoon();
      else answer(error, socket);
    });
  }

  /** Not while it speaks TLS and the handshake is not over. */
  #canAnswer(socket: Duplex): boolean {
    return socket.writable && !socket.destroyed && (!this.#usesTls || this.#secured.has(socket));
  }

  /** From now on, newcomers are cut off. */
  close(): void {
    this.#closed = true;
  }

  destroyAll(): void {
    for (const { socket } of this.#all) socket.destroy();
  }

  destroyStrangers(): void {
    for (const { socket, owner } of this.#all) if (owner === undefined) socket.destroy();
  }

  /** @returns false when there is no room and no connection has to make some */
  #add(socket: Socket): boolean {
    if (this.#closed) return false;
    const address = socket.remoteAddress ?? "";
    const strangers = this.#strangers.get(address);
    if (strangers !== undefined && strangers.size >= this.#strangersPerAddress) this.#drop(first(strangers)!);
    if (this.#all.size >= this.#total) {
      const victim = first(this.#mostStrangers() ?? this.#idle);
      if (victim === undefined) return false;
      this.#drop(victim);
    }
    const connection: Connection = {
      socket,
      address,
      ends: endsOf(socket),
      last: undefined,
      owner: undefined,
      requests: 0,
    };
    this.#all.add(connection);
    this.#bySocket.set(socket, connection);
    if (address !== "") this.#byEnds.set(connection.ends, connection);
    this.#asStranger(connection);
    socket.once("close", () => this.#forget(connection));
    return true;
  }

  #begin(connection: Connection): void {
    connection.requests++;
    this.#idle.delete(connection);
    if (connection.owner === undefined && this.#all.has(connection)) {
      this.#noStranger(connection);
      this.#asStranger(connection);
    }
  }

  #end(connection: Connection): void {
    connection.requests--;
    if (connection.requests === 0 && connection.owner !== undefined && this.#all.has(connection))
      this.#idle.add(connection);
  }

  #asStranger(connection: Connection): void {
    const ofAddress = this.#strangers.get(connection.address) ?? new Set();
    this.#strangers.set(connection.address, ofAddress.add(connection));
  }

  #noStranger(connection: Connection): void {
    const ofAddress = this.#strangers.get(connection.address);
    if (ofAddress?.delete(connection) && ofAddress.size === 0) this.#strangers.delete(connection.address);
  }

  /** Those of the address that has most of them. */
  #mostStrangers(): Set<Connection> | undefined {
    let most: Set<Connection> | undefined;
    for (const ofAddress of this.#strangers.values()) if (ofAddress.size > (most?.size ?? 0)) most = ofAddress;
    return most;
  }

  #disown(owner: string): void {
    const left = this.#owned.get(owner)! - 1;
    if (left === 0) this.#owned.delete(owner);
    else this.#owned.set(owner, left);
  }

  #drop(connection: Connection): void {
    this.#forget(connection);
    connection.socket.destroy();
  }

  #forget(connection: Connection): void {
    if (!this.#all.delete(connection)) return;
    this.#idle.delete(connection);
    if (connection.owner === undefined) this.#noStranger(connection);
    else this.#disown(connection.owner);
    // A newer one may have the same ends already, when this one was dropped before it closed.
    if (this.#byEnds.get(connection.ends) === connection) this.#byEnds.delete(connection.ends);
  }
}

function isBeingAnswered(exchange: Connection["last"]): boolean {
  if (exchange === undefined || !exchange.response.headersSent) return false;
  return !exchange.request.complete || !exchange.response.writableFinished;
}

function endsOf(socket: Socket): string {
  return [socket.remoteAddress, socket.remotePort, socket.localAddress, socket.localPort].join(" ");
}

function first<T>(set: ReadonlySet<T>): T | undefined {
  return set.values().next().value;
}
