/**
 * The CSI drivers whose node plugins run on this host: as a kubelet's (pkg/volume/csi, nodeinfomanager), whose words
 * the refusals have. What a driver says of this host is asked for once, when it registers, and told with the capacity:
 * the agent writes it into the node's CSINode.
 */
import { type Logger, type ProviderCapacity, Pulse } from "../../../src/provider/kit/index.ts";
import type { CsiPlugin } from "./csi-plugin.ts";
import { judgeNodeInfo } from "./judge-csi.ts";

export type CsiDriverInfo = NonNullable<ProviderCapacity["csi_drivers"]>[number];

interface CsiManagerOptions {
  logger: Logger;
  connect: (socket: string) => CsiPlugin;
}

/** Drivers of this host. */
const MAX_DRIVERS = 64;

interface Registered {
  socket: string;
  api: CsiPlugin;
  /** Undefined while it is asked. */
  info?: CsiDriverInfo;
}

export class CsiManager {
  /** Fires when a driver has registered. */
  readonly registered = new Pulse();
  readonly #options: CsiManagerOptions;
  readonly #drivers = new Map<string, Registered>();
  readonly #closing = new AbortController();

  constructor(options: CsiManagerOptions) {
    this.#options = options;
  }

  /** What is told of them, by name. */
  drivers(): CsiDriverInfo[] {
    const known = [...this.#drivers.values()].flatMap(({ info }) => info ?? []);
    return known.toSorted((a, b) => (a.name < b.name ? -1 : 1));
  }

  /** @throws Error in a kubelet's words when there is none */
  plugin(driver: string): CsiPlugin {
    const registered = this.#drivers.get(driver);
    if (registered?.info === undefined)
      throw new Error(`driver name ${driver} not found in the list of registered CSI drivers`);
    return registered.api;
  }

  /**
   * Takes the plugin at a socket as this driver's, once it has said how it knows this host.
   * @returns has it not asked any more
   * @throws Error that tells the plugin why it is not taken
   */
  async register(driver: string, socket: string): Promise<() => void> {
    const known = this.#drivers.get(driver);
    // One that was killed registers again where it was.
    if (known !== undefined && known.socket !== socket)
      throw new Error(
        `RegisterPlugin for CSI driver "${driver}" failed. Another driver with the same name is already registered at ${known.socket}`,
      );
    if (known === undefined && this.#drivers.size >= MAX_DRIVERS)
      throw new Error(`there are ${MAX_DRIVERS} CSI drivers already`);
    const registered: Registered = { socket, api: this.#options.connect(socket) };
    known?.api.close();
    this.#drivers.set(driver, registered);
    try {
      registered.info = judgeNodeInfo(driver, await registered.api.info(this.#closing.signal));
    } catch (thrown) {
      this.#forget(driver, registered);
      throw thrown;
    }
    this.#options.logger.info({ driver, socket, nodeId: registered.info.node_id }, "A CSI driver has registered");
    this.registered.fire();
    return () => {
      if (this.#forget(driver, registered)) this.#options.logger.info({ driver, socket }, "A CSI driver has gone");
    };
  }

  /** @returns whether it was there */
  #forget(driver: string, registered: Registered): boolean {
    registered.api.close();
    return this.#drivers.get(driver) === registered && this.#drivers.delete(driver);
  }

  close(): void {
    this.#closing.abort(new Error("the backend is stopping"));
    for (const { api } of this.#drivers.values()) api.close();
  }
}
