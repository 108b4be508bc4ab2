import type { Clock, Logger, SharedPlaces } from "../../../../src/provider/kit/index.ts";
import type { SeccompSource } from "../../bundle/seccomp.ts";
import type { TornFiles } from "../../host/torn-files.ts";
import type { HostNetwork } from "../../network/network.ts";
import type { OciRuntime } from "./runtime.ts";

/** What every sandbox of this engine works with. */
export interface OciContext {
  clock: Clock;
  logger: Logger;
  torn: TornFiles;
  runtime: OciRuntime;
  network: HostNetwork;
  cgroupRoot: string;
  seccomp: () => SeccompSource;
  pidsLimit: number;
  /** Bounds how many trees are measured at a time. */
  diskWalks: SharedPlaces;
}
