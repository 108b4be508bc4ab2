import type { Capability } from "../capabilities.ts";
import type { CheckContext } from "./context.ts";

/** One rule, and how to see whether it holds. */
export interface Check {
  /** `group/what-holds`. */
  name: string;
  /** Why the rule is there: the end of a failure's message. */
  why: string;
  needs?: readonly Capability[];
  needsHttp?: true;
  /** Looks at what survives a restart of the backend. All such checks share one. */
  needsRestart?: true;
  /** Changes what is one for the whole backend: such checks follow each other, tidied up in between. */
  inTurn?: true;
  /** Checks something else than what the capabilities say: the reason not to run it here, or undefined. */
  skip?: (context: CheckContext) => string | undefined | Promise<string | undefined>;
  run(context: CheckContext): Promise<void>;
}
