import type { Pod } from "../../../src/kube/wire.ts";
import type { Observed } from "../../../src/pods/decision.ts";
import type { Machine } from "../../../src/provider/machine.ts";

/** What an agent knew of a pod when it sent a request about it. */
export interface Sender {
  /** The newest state of the pod's machine that any reply or event has told it. */
  read: Machine | undefined;
  /** What its cache said of the machine. */
  observed: Observed;
  /** What its cache held of the pod. */
  pod: Pod | undefined;
  /** True time, milliseconds since the epoch. */
  sentAt: number;
}
