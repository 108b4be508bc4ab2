import type { Clock, Logger, SharedPlaces } from "../../../../src/provider/kit/index.ts";
import type { HostNetwork } from "../../network/network.ts";
import type { CriClient } from "./client.ts";
import type { RuntimeContainers } from "./containers.ts";
import type { MachineGroups } from "./machine-groups.ts";
import type { MachineUsers } from "../../bundle/machine-users.ts";
import type { FrontDoor } from "../../network/front-door.ts";
import type { OwnContainerd } from "./own-containerd.ts";
import type { PodLogs } from "./pod-logs.ts";

/** What every sandbox of this engine works with. */
export interface CriContext {
  clock: Clock;
  logger: Logger;
  client: CriClient;
  /** The runtime that `client` speaks to, when it is our own. */
  own: OwnContainerd | undefined;
  containers: RuntimeContainers;
  users: MachineUsers;
  /** The bridge of a runtime of our own; undefined where the runtime's network is another's. */
  network: HostNetwork | undefined;
  /** Where this host has one machine, which has its address. */
  frontDoor: FrontDoor | undefined;
  /** Value of the backend's label. */
  backend: string;
  /** As the runtime says that it has them made: known before the first machine. */
  groups: MachineGroups;
  /** Where the host's owner has pods' logs shown. */
  podLogs: PodLogs | undefined;
  pidsLimit: number;
  /** Bounds how many trees are measured at a time. */
  diskWalks: SharedPlaces;
}
