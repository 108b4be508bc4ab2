/** The plugins of this host, served as a kubelet does, and the machines that have something of them. */
import { join } from "node:path";
import type { Clock, Logger, MachineSpec } from "../../../src/provider/kit/index.ts";
import type { ClaimSource, PreparedClaims } from "../claims.ts";
import type { DeviceSource, HeldDevices } from "../devices.ts";
import { TornFiles } from "../host/torn-files.ts";
import { ClaimManager } from "./claim-manager.ts";
import type { CsiSource, PublishedVolumes } from "../csi-volumes.ts";
import { type BlockDevices, hostBlockDevices } from "./csi-devices.ts";
import { CsiManager } from "./csi-manager.ts";
import { CsiPublisher } from "./csi-publisher.ts";
import { CsiStats } from "./csi-stats.ts";
import { connectCsiPlugin, type CsiPlugin } from "./csi-plugin.ts";
import { DeviceManager } from "./device-manager.ts";
import { connectDevicePlugin, type DevicePlugin } from "./device-plugin.ts";
import { connectDraPlugin, type DraPlugin, type DraServices } from "./dra-plugin.ts";
import { podResources } from "./pod-resources.ts";
import { PluginDoor, pluginFolder } from "./registration.ts";
import { UnixServer } from "./unix-server.ts";

export interface PluginOptions {
  /** The folder in which plugins look for a kubelet. Absent, for tests: they do not find this one. */
  directory?: string | undefined;
  /** For tests. Default: by the plugin's socket. */
  connect?: ((socket: string) => DevicePlugin) | undefined;
  /** For tests. Default: by the plugin's socket. */
  connectDra?: ((socket: string, services: DraServices) => DraPlugin) | undefined;
  /** For tests. Default: by the plugin's socket. */
  connectCsi?: ((socket: string) => CsiPlugin) | undefined;
  /** For tests. Default: those of this host. */
  blockDevices?: BlockDevices | undefined;
  /** For tests: told of the managers. */
  onReady?: ((devices: DeviceManager, claims: ClaimManager, csi: CsiManager) => void) | undefined;
}

const LOOK_MS = 30_000;

/** What is to be known of a machine. */
interface Machine {
  readonly id: string;
  readonly isOver: boolean;
  readonly spec: MachineSpec;
  readonly record: {
    readonly devices?: HeldDevices | "lost" | undefined;
    readonly prepared?: PreparedClaims | undefined;
    readonly published?: PublishedVolumes | undefined;
  };
  /** The health of what it has may have changed. */
  showDevices(): void;
}

interface Surroundings {
  stateDir: string;
  clock: Clock;
  logger: Logger;
  engine: { readonly name: string; readonly hasCdi?: boolean | undefined; readonly hasCsi?: boolean | undefined };
  supervisors: ReadonlyMap<string, Machine>;
}

export class HostPlugins {
  readonly devices: DeviceManager;
  readonly claims: ClaimManager;
  readonly csi: CsiManager;
  readonly csiVolumes: CsiPublisher;
  readonly csiStats: CsiStats;
  readonly #supervisors: ReadonlyMap<string, Machine>;
  readonly #clock: Clock;
  readonly #door: PluginDoor | undefined;
  readonly #podResources: UnixServer | undefined;

  constructor(options: PluginOptions, surroundings: Surroundings) {
    const { directory, connect = connectDevicePlugin, connectDra = connectDraPlugin, onReady } = options;
    const { connectCsi = connectCsiPlugin, blockDevices = hostBlockDevices } = options;
    const { stateDir, clock, logger, engine, supervisors } = surroundings;
    this.#supervisors = supervisors;
    this.#clock = clock;
    this.devices = new DeviceManager({
      stateDir,
      clock,
      logger,
      engine,
      connect,
      torn: new TornFiles(stateDir, logger),
      held: () =>
        [...supervisors.values()].flatMap(({ isOver, record: { devices } }) =>
          isOver || devices === undefined ? [] : [devices],
        ),
    });
    this.claims = new ClaimManager({
      clock,
      logger,
      onHealth: () => this.devices.changed.fire(),
      connect: connectDra,
      holders: () => [...supervisors.values()].map(({ id, record: { prepared } }) => ({ id, prepared })),
    });
    this.csi = new CsiManager({ logger, connect: connectCsi });
    this.csiVolumes = new CsiPublisher({
      drivers: this.csi,
      root: directory ?? join(stateDir, "plugins"),
      devices: blockDevices,
      clock,
      logger,
      holders: () => [...supervisors.values()].map(({ id, record: { published } }) => ({ id, published })),
    });
    this.csiStats = new CsiStats({ drivers: this.csi, clock, isThere: (machine) => supervisors.has(machine) });
    if (directory !== undefined) {
      const claims = engine.hasCdi === true ? this.claims : undefined;
      const csi = engine.hasCsi === true ? this.csi : undefined;
      const folder = pluginFolder(directory);
      this.#door = new PluginDoor({ folder, devices: this.devices, claims, csi, clock, logger });
      this.#podResources = new UnixServer(
        join(directory, "pod-resources/kubelet.sock"),
        podResources({ clock, machines: () => supervisors.values(), allocatable: () => this.devices.allocatable() }),
        logger,
      );
    }
    onReady?.(this.devices, this.claims, this.csi);
  }

  /** What machines have of them. */
  get sources(): { devices: DeviceSource; claims: ClaimSource; csi: CsiSource } {
    return { devices: this.devices, claims: this.claims, csi: this.csiVolumes };
  }

  /** @throws ConfigError when a kubelet, or another backend, is there already */
  async open(): Promise<void> {
    await this.#door?.open();
    await this.#podResources?.listen();
  }

  /**
   * The machines of a former backend are known: shows what becomes of their devices, and has volumes of drivers that
   * none of them has taken back, until the signal aborts.
   */
  follow(signal: AbortSignal): void {
    this.devices.recall();
    void this.#show(signal);
    void this.csiVolumes.run(signal);
  }

  async #show(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      for (const supervisor of this.#supervisors.values()) supervisor.showDevices();
      // Also when nobody says anything any more: what a driver has said holds for a while.
      await this.devices.changed.waitAtMost(this.#clock, LOOK_MS, signal);
    }
  }

  async close(): Promise<void> {
    this.devices.close();
    this.claims.close();
    this.csiVolumes.close();
    this.csiStats.close();
    this.csi.close();
    await this.#door?.close();
    await this.#podResources?.close();
  }
}
