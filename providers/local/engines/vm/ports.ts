/**
 * Virtio ports of a VM, one for each command whose streams the host carries: a socket on this host, a device in the
 * guest. They are plugged in as they are needed, because each costs the guest half a megabyte, and used again. Which
 * ones are in use is asked of QEMU: the guest's end is open until the command's session is over, also that of a former
 * backend.
 */
import { randomBytes } from "node:crypto";
import { join } from "node:path";
import { ProviderError } from "../../../../src/provider/kit/index.ts";
import type { GuestCommandPlace } from "../../engine.ts";
import { Qmp } from "./qmp.ts";

/** The control channel has number 1; QEMU keeps 0 for a console. */
const FIRST_PORT = 2;
/**
 * For `max_ports` of the VM's serial device: commands, forwarded ports and containers at a time. All of them together
 * need less than what a guest has left of its own share of memory (sandbox.ts), or it would die of them.
 */
export const MAX_PORTS = 64;
/** QEMU does it in milliseconds. */
const PLUG_MS = 30_000;

export interface GuestPort extends GuestCommandPlace {
  /** The guest's number of it. */
  number: number;
}

interface Chardev {
  label: string;
  "frontend-open": boolean;
}

export class GuestPorts {
  readonly #qmp: string;
  readonly #dir: string;
  /** Given out, or given up: see `release`. */
  readonly #taken = new Set<number>();
  /** Plugged in for sure: a backend that was killed may have left one half done. */
  readonly #plugged = new Set<number>();

  /** @param dir folder of the VM, for the sockets */
  constructor(qmp: string, dir: string) {
    this.#qmp = qmp;
    this.#dir = dir;
  }

  /** A port for one command, with a token of its own. @throws ProviderError unavailable when all are in use */
  async take(signal: AbortSignal): Promise<GuestPort> {
    const open = await this.#openInGuest(signal);
    let number = FIRST_PORT;
    while (this.#taken.has(number) || open.has(label(number))) number++;
    if (number >= MAX_PORTS)
      throw new ProviderError(
        "unavailable",
        `the machine has ${MAX_PORTS - FIRST_PORT} containers, commands and forwarded ports open: try again when one has ended`,
      );
    this.#taken.add(number);
    const socket = join(this.#dir, label(number));
    try {
      if (!this.#plugged.has(number)) await this.#plug(number, socket);
    } catch (thrown) {
      this.#taken.delete(number);
      throw thrown;
    }
    return { number, socket, token: randomBytes(16).toString("hex") };
  }

  async #openInGuest(signal: AbortSignal): Promise<Set<string>> {
    using qmp = await Qmp.open(this.#qmp, signal);
    const chardevs = (await qmp.execute("query-chardev")) as Chardev[];
    return new Set(chardevs.filter((chardev) => chardev["frontend-open"]).map((chardev) => chardev.label));
  }

  /** After a restart of the backend: what a container was given, which its session may be about to open. */
  reserve(number: number): void {
    this.#taken.add(number);
  }

  /**
   * The command's session is over, about to be, or was never begun. One that may still come would take the word that is
   * meant for the next: its port is not released, but lost with the VM.
   */
  release({ number }: Pick<GuestPort, "number">): void {
    this.#taken.delete(number);
  }

  /**
   * Both steps, also when a former backend took the first. A VM has the socket from its start (`portSockets`), but for
   * one that an earlier version has started. By no caller's signal: half a port is of no use.
   */
  async #plug(number: number, path: string): Promise<void> {
    const id = label(number);
    const data = { addr: { type: "unix", data: { path } }, server: true, wait: false };
    using qmp = await Qmp.open(this.#qmp, AbortSignal.timeout(PLUG_MS));
    await orThere(qmp.execute("chardev-add", { id, backend: { type: "socket", data } }));
    const device = { driver: "virtserialport", id: `port-${id}`, chardev: id, nr: number, name: id };
    await orThere(qmp.execute("device_add", device));
    this.#plugged.add(number);
  }
}

/** All that a VM may need, by QEMU's name: it cannot make any itself. */
export function portSockets(dir: string): { label: string; path: string }[] {
  const numbers = Array.from({ length: MAX_PORTS - FIRST_PORT }, (_, index) => FIRST_PORT + index);
  return numbers.map((number) => ({ label: label(number), path: join(dir, label(number)) }));
}

function label(number: number): string {
  return `p${number}`;
}

async function orThere(step: Promise<unknown>): Promise<void> {
  await step.catch((thrown: unknown) => {
    if (!/duplicate|already exists/i.test(String(thrown))) throw thrown;
  });
}
