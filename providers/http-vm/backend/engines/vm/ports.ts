/**
 * Virtio ports of a VM, one for each command whose streams the host carries: a socket on this host, a device in the guest.
 * They are plugged in as they are needed, because each costs the guest half a megabyte, and used again. Which ones are in
 * use is asked of QEMU: the guest's end is open until the command's session is over, also that of a former backend.
 */
import { randomBytes } from "node:crypto";
import { join } from "node:path";
import { ProviderError } from "../../../../../src/provider/kit/index.ts";
import type { GuestCommandPlace } from "../../guest-session.ts";
import { Qmp } from "./qmp.ts";

/** The control channel has number 1; QEMU keeps 0 for a console. */
const FIRST_PORT = 2;
/** For `max_ports` of the VM's serial device: commands, forwarded ports and containers at a time. */
export const MAX_PORTS = 128;

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
  /** Given out by this backend. */
  readonly #taken = new Set<number>();

  /** @param dir folder of the VM, for the sockets */
  constructor(qmp: string, dir: string) {
    this.#qmp = qmp;
    this.#dir = dir;
  }

  /** A port for one command, with a token of its own. @throws ProviderError unavailable when all are in use */
  async take(signal: AbortSignal): Promise<GuestPort> {
    const qmp = await Qmp.open(this.#qmp, signal);
    try {
      const chardevs = (await qmp.execute("query-chardev")) as Chardev[];
      const plugged = new Map(chardevs.map((chardev) => [chardev.label, chardev["frontend-open"]]));
      let number = FIRST_PORT;
      while (this.#taken.has(number) || plugged.get(label(number)) === true) number++;
      if (number >= MAX_PORTS)
        throw new ProviderError(
          "unavailable",
          `the machine has ${MAX_PORTS - FIRST_PORT} containers, commands and forwarded ports open: try again when one has ended`,
        );
      this.#taken.add(number);
      const socket = join(this.#dir, label(number));
      try {
        if (!plugged.has(label(number))) await plug(qmp, number, socket);
      } catch (cause) {
        this.#taken.delete(number);
        throw cause;
      }
      return { number, socket, token: randomBytes(16).toString("hex") };
    } finally {
      qmp.close();
    }
  }

  /** The command's session is over, or about to be. */
  release(port: GuestPort): void {
    this.#taken.delete(port.number);
  }
}

function label(number: number): string {
  return `p${number}`;
}

async function plug(qmp: Qmp, number: number, path: string): Promise<void> {
  const id = label(number);
  const data = { addr: { type: "unix", data: { path } }, server: true, wait: false };
  await qmp.execute("chardev-add", { id, backend: { type: "socket", data } });
  try {
    await qmp.execute("device_add", { driver: "virtserialport", id: `port-${id}`, chardev: id, nr: number, name: id });
  } catch (cause) {
    await qmp.execute("chardev-remove", { id });
    throw cause;
  }
}
