/** An agent in a process of its own, so that it can be killed: the demo's, and that of `conformance --pods`. */
import { fork, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import { extname, join } from "node:path";
import { ENVIRONMENT } from "../config/load.ts";

const PROGRAM = join(import.meta.dirname, `child-program${extname(import.meta.filename)}`);

export class ChildAgent {
  readonly #configFile: string;
  readonly #failure = new AbortController();
  #child: ChildProcess;
  #isEnding = false;

  /** @param configFile what `vmlet run --config` takes */
  constructor(configFile: string) {
    this.#configFile = configFile;
    this.#child = this.#fork();
  }

  /** Aborts when the agent ends unasked. */
  get failed(): AbortSignal {
    return this.#failure.signal;
  }

  /** Ends it as a loss of power does, and starts another. */
  async killAndStart(): Promise<void> {
    await this.#end("SIGKILL");
    this.#child = this.#fork();
  }

  async stop(): Promise<void> {
    await this.#end("SIGTERM");
  }

  #fork(): ChildProcess {
    const child = fork(PROGRAM, ["run", "--config", this.#configFile], {
      stdio: ["ignore", "inherit", "inherit", "ipc"],
      // The file says all; what the user has set for agents of other clusters is not meant.
      env: Object.fromEntries(Object.entries(process.env).filter(([name]) => !(name in ENVIRONMENT))),
    });
    child.once("exit", (code, signal) => {
      if (!this.#isEnding) this.#failure.abort(new Error(`the agent has ended by itself (${signal ?? code})`));
    });
    return child;
  }

  async #end(signal: "SIGKILL" | "SIGTERM"): Promise<void> {
    if (this.failed.aborted) return;
    const exited = once(this.#child, "exit");
    this.#isEnding = true;
    this.#child.kill(signal);
    await exited;
    this.#isEnding = false;
  }
}
