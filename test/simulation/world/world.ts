/**
 * A toy of everything around the agent: an API server with pods, a backend with machines, users, and time that moves only
 * when told. Small and slow-witted on purpose; what matters is that every request of an agent is a choice point.
 */
import { machineId } from "../../../src/podspec/machine-id.ts";
import type { Random } from "../../../src/util/random.ts";
import type { Switches } from "../scenarios.ts";
import { ApiServer } from "./api-server.ts";
import { Backend } from "./backend.ts";
import { CloudWorld } from "./cloud.ts";
import { ConfigMaps } from "./config-maps.ts";
import { DiskWorld } from "./disks.ts";
import { History, type PodHistory } from "./history.ts";
import { CLUSTER, NAMESPACES } from "./names.ts";
import { NodeCapacity } from "./node.ts";

/** What is broken on purpose in the servers, to see that the agent needs them whole. */
export interface WorldFlaws {
  /** A delete leaves nothing behind. */
  noTombstones?: boolean;
  /** Every create makes a machine. */
  createNotIdempotent?: boolean;
  /** A machine that stops counts as one that writes no more. */
  forgetsStopping?: boolean;
  /** A machine gets a volume whoever it is reserved for. */
  noReservations?: boolean;
  /** A machine that is told to stop, for its volume is taken by force, counts as one that has it no more. */
  believesForce?: boolean;
  /** A volume of a shared class is reserved for whoever asks, also where one node is to have it. */
  sharesReserved?: boolean;
  /** CSI's attacher takes a refusal for an answer. */
  believesRelease?: boolean;
}

export class World {
  /** True time, milliseconds since the epoch. */
  now = Date.parse("2026-01-01T00:00:00Z");
  readonly random: Random;
  readonly scenario: Switches;
  readonly flaws: WorldFlaws;
  readonly history = new History();
  readonly api: ApiServer;
  readonly backend: Backend;
  /** Where machines are VMs. */
  readonly cloud: CloudWorld | undefined;
  /** Where machines have volumes that outlive them. */
  readonly disks: DiskWorld | undefined;
  readonly configMaps = new ConfigMaps();
  readonly capacity = new NodeCapacity();
  /** Nobody reaches the backend. */
  isBackendAway = false;
  /** Told of everything that happens, for whoever replays a schedule. */
  trace: ((line: string) => void) | undefined;

  /** How the agents name a pod's machine. */
  readonly idOf: (uid: string) => string;

  constructor(options: {
    random: Random;
    scenario: Switches;
    flaws: WorldFlaws;
    seed: number;
    machineId?: ((uid: string, pod: Pick<PodHistory, "namespace" | "name">) => string) | undefined;
  }) {
    const { machineId: broken } = options;
    this.idOf = (uid) => broken?.(uid, this.history.of(uid)) ?? machineId(CLUSTER, uid);
    this.random = options.random;
    this.scenario = options.scenario;
    this.flaws = options.flaws;
    this.api = new ApiServer(this, { nodeAuthorizer: options.seed % 2 === 0 });
    const deletesSlowly = options.seed % 3 === 0;
    this.cloud =
      options.scenario.cloud === true ? new CloudWorld(this, { deletesSlowly: options.seed % 3 !== 0 }) : undefined;
    this.backend = new Backend(this, { deletesSlowly: deletesSlowly && this.cloud === undefined });
    this.disks = options.scenario.volumes === true ? new DiskWorld(this, NAMESPACES) : undefined;
  }
}
