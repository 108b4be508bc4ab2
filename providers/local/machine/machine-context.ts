/** What the parts of one machine's supervisor share. */
import type { Clock, Logger, SharedPlaces } from "../../../src/provider/kit/index.ts";
import type { ClaimSource } from "../claims.ts";
import type { CsiSource } from "../csi-volumes.ts";
import type { DeviceSource } from "../devices.ts";
import type { Engine, MachineHome, Sandbox } from "../engine.ts";
import type { Shims } from "../engine.ts";
import type { MachineVolumes } from "../volume-contents.ts";
import type { InstanceFolders } from "./instance-folders.ts";
import type { MachineState } from "./machine-state.ts";
import type { MachineTrace } from "./machine-trace.ts";
import type { MachineWork } from "./machine-work.ts";

export interface MachineContext {
  readonly engine: Engine;
  /** Absent: the engine has none. */
  readonly volumes: MachineVolumes | undefined;
  readonly shims: Shims;
  /** Absent: there are no plugins. */
  readonly devices: DeviceSource | undefined;
  readonly claims: ClaimSource | undefined;
  readonly csi: CsiSource | undefined;
  readonly clock: Clock;
  readonly logger: Logger;
  /** Bounds how many machines and containers start at once, and shares that out among tenants. */
  readonly starts: SharedPlaces;
  /** Whose machine it is (`tenantOf`). */
  readonly tenant: string;
  readonly home: MachineHome;
  readonly state: MachineState;
  readonly folders: InstanceFolders;
  readonly work: MachineWork;
  readonly trace: MachineTrace;
  /**
   * False while a former backend's sandbox has yet to be found again: until then nothing is begun, changed or ended.
   */
  isReady(): boolean;
  /** Undefined while there is none: not made yet, lost, or destroyed. */
  sandbox(): Sandbox | undefined;
  /** @throws Error when a volume of the machine cannot be had yet: then no container begins */
  haveVolumes(): Promise<void>;
  /** A container has a new image: what images are in use has changed. */
  onImagesChanged(): void;
  /** Something has changed that the plan depends on. */
  replan(): void;
}
