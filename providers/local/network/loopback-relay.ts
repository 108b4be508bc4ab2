/**
 * The host's side of relay-program.ts: port-forward to ports that listen on a machine's loopback alone.
 *
 * Engine `cri` has it too, in place of its runtime's port-forward: containerd passes the end of one half on to nobody,
 * and a second after it closes both (internal/cri/server/sandbox_portforward_linux.go), so that a client that has said
 * all gets no answer, or half of one.
 */
import { spawn, type ChildProcess } from "node:child_process";
import { rm } from "node:fs/promises";
import { connect, type Socket } from "node:net";
import type { Duplex, Readable } from "node:stream";
import { fileURLToPath } from "node:url";
import { type Clock, onAbort } from "../../../src/provider/kit/index.ts";
import { findTool } from "../host/command.ts";

/** How long the program stays after its last connection. */
const IDLE_MS = 60_000;
const EXTENSION = import.meta.url.endsWith(".ts") ? "ts" : "js";
const PROGRAM = fileURLToPath(new URL(`./relay-program.${EXTENSION}`, import.meta.url));

/**
 * Connections to the loopback of a network namespace. A process cannot change its own: a helper in the namespace
 * connects, and is kept for the next connection for a while.
 */
export class LoopbackRelay {
  readonly #netns: string;
  readonly #socketPath: string;
  readonly #clock: Clock;
  #helper: Promise<ChildProcess> | undefined;
  #open = 0;
  #cancelIdle: (() => void) | undefined;

  constructor(options: { netns: string; socketPath: string; clock: Clock }) {
    this.#netns = options.netns;
    this.#socketPath = options.socketPath;
    this.#clock = options.clock;
  }

  /** @throws the socket's error: ECONNREFUSED when nothing listens on the port */
  async dial(port: number, signal: AbortSignal): Promise<Duplex> {
    this.#cancelIdle?.();
    this.#open++;
    try {
      await this.#ensureHelper();
      const socket = await this.#connect(port, signal);
      socket.once("close", () => this.#closed());
      return socket;
    } catch (thrown) {
      this.#closed();
      throw thrown;
    }
  }

  close(): void {
    this.#cancelIdle?.();
    const helper = this.#helper;
    this.#helper = undefined;
    helper?.then(
      (child) => child.kill("SIGKILL"),
      () => undefined,
    );
  }

  #closed(): void {
    this.#open--;
    if (this.#open === 0) this.#cancelIdle = this.#clock.after(IDLE_MS, () => this.close());
  }

  #ensureHelper(): Promise<ChildProcess> {
    if (this.#helper !== undefined) return this.#helper;
    const helper = this.#start();
    this.#helper = helper;
    // Its end may be told when there is another helper already.
    const forget = () => {
      if (this.#helper === helper) this.#helper = undefined;
    };
    helper.then((child) => child.once("exit", forget), forget);
    return helper;
  }

  async #start(): Promise<ChildProcess> {
    await rm(this.#socketPath, { force: true });
    const child = spawn(
      findTool("nsenter")!,
      [`--net=${this.#netns}`, process.execPath, "--max-old-space-size=32", "--no-warnings", PROGRAM, this.#socketPath],
      { stdio: ["pipe", "pipe", "ignore"] },
    );
    return await new Promise((resolve, reject) => {
      // First: without descriptors to spare there are no streams, and only this tells why.
      child.once("error", reject);
      (child.stdout as Readable | undefined)?.once("data", () => resolve(child));
      child.once("exit", (code) => reject(new Error(`the helper for connections into the machine ended with ${code}`)));
    });
  }

  async #connect(port: number, signal: AbortSignal): Promise<Socket> {
    signal.throwIfAborted();
    const socket = connect({ path: this.#socketPath, allowHalfOpen: true });
    using _ = onAbort(signal, () => socket.destroy(signal.reason as Error));
    return await connected(socket, port);
  }
}

/**
 * Asks the helper for a port; resolves with the socket once it stands for a connection to that.
 * @throws as `connect` does
 */
function connected(socket: Socket, port: number): Promise<Socket> {
  return new Promise((resolve, reject) => {
    const fail = (error: Error) => {
      socket.destroy();
      reject(error);
    };
    socket.once("error", fail);
    socket.once("close", () => fail(new Error("the connection into the machine was closed")));
    socket.write(`${port}\n`);
    let answer = Buffer.alloc(0);
    const read = (chunk: Buffer) => {
      answer = Buffer.concat([answer, chunk]);
      const newline = answer.indexOf(10);
      if (newline < 0) return;
      socket.off("data", read);
      socket.pause();
      const code = answer.subarray(0, newline).toString();
      if (code !== "") return fail(Object.assign(new Error(`connect ${code} 127.0.0.1:${port}`), { code, port }));
      socket.removeAllListeners("close").off("error", fail);
      const rest = answer.subarray(newline + 1);
      if (rest.length > 0) socket.unshift(rest);
      resolve(socket);
    };
    socket.on("data", read);
  });
}
