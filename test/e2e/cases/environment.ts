/** What a case needs to know of the place where it runs; devcluster and the real control plane both provide it. */
import type { AgentProcess, BackendProcess } from "../harness/agent.ts";
import type { Client, Json } from "../harness/client.ts";
import { passTime } from "../harness/wait.ts";
import type { History } from "./history.ts";

/** What runs the node's machines, for those who look at them and those who kill it. */
export interface Machines {
  /** Every machine, tombstones left out. */
  machines(): Promise<Json[]>;
  /** Takes one away from its pod. */
  removeMachine(id: string): Promise<void>;
  restart(signal: NodeJS.Signals): Promise<void>;
  /** What runs the machines' containers ends without warning, and starts again. */
  killRuntime(): Promise<void>;
}

export interface CaseEnvironment extends AsyncDisposable {
  /** A user who may do everything. */
  readonly client: Client;
  readonly kubeconfig: string;
  readonly nodeName: string;
  /** Scratch space that ends with the environment. */
  readonly dir: string;
  readonly agent: AgentProcess;
  readonly backend: Machines;
  readonly history: History;
  /** How many times as long as usual machines may take. Default 1. */
  readonly patience?: number;
  /** Ends the API server without warning and starts it again on the same data. */
  restartApiServer(): Promise<void>;
}

export interface Environment extends CaseEnvironment {
  readonly backend: BackendProcess;
}

export const faults = ["nothing", "the agent", "the backend", "the runtime", "the API server"] as const;

/** What is killed with SIGKILL, and started again, in the middle of a case. */
export type Fault = (typeof faults)[number];

/** How long after the action of the case the kill comes, in turn: what is killed is caught at different stages of its work. */
const delaysMs = [0, 5, 20, 60, 150];
let kills = 0;

export async function inject(environment: CaseEnvironment, fault: Fault): Promise<void> {
  if (fault === "nothing") return;
  await passTime(delaysMs[kills++ % delaysMs.length]!, "each kill comes at another moment");
  switch (fault) {
    case "the agent":
      return environment.agent.restart("SIGKILL");
    case "the backend":
      return environment.backend.restart("SIGKILL");
    case "the runtime":
      return environment.backend.killRuntime();
    case "the API server":
      return environment.restartApiServer();
  }
}
