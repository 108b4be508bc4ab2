import type { Clock, Logger, Once, SharedPlaces } from "../../../../src/provider/kit/index.ts";
import type { MachineUsers } from "../../bundle/machine-users.ts";
import type { SeccompSource } from "../../bundle/seccomp.ts";
import type { TornFiles } from "../../host/torn-files.ts";
import type { FrontDoor } from "../../network/front-door.ts";
import type { HostNetwork } from "../../network/network.ts";
import type { OciRuntime } from "./runtime.ts";

/** What every sandbox of this engine works with. */
export interface OciContext {
  clock: Clock;
  logger: Logger;
  torn: TornFiles;
  runtime: OciRuntime;
  network: HostNetwork;
  /** Where this host has one machine, which has its address. */
  frontDoor: FrontDoor | undefined;
  users: MachineUsers;
  /** Path of the program that maps mounts. */
  mapper: string;
  cgroupRoot: string;
  seccomp: () => SeccompSource;
  /** Name of the containers' profile, loaded once; undefined where the host has no AppArmor. */
  apparmor: Pick<Once<string | undefined>, "get">;
  pidsLimit: number;
  /** Bounds how many trees are measured at a time. */
  diskWalks: SharedPlaces;
}
