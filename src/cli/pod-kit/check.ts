import type { Capability } from "../../provider/capabilities.ts";
import type { PodContext } from "./context.ts";

/** One thing that pods on a backend must do, and how to see whether they do. */
export interface PodCheck {
  /** `group/what-holds`. */
  name: string;
  /** What goes wrong in a cluster otherwise: the end of a failure's message. */
  why: string;
  needs?: readonly Capability[];
  /** Looks at what a restart in the middle leaves as it was. All checks of a kind share one. */
  restarts?: "agent" | "backend";
  run(context: PodContext): Promise<void>;
}
