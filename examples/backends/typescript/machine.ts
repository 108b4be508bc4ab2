/** A machine: what is known of it, its folder, and the pipe to its shim. */
import { execFileSync, spawn } from "node:child_process";
import { closeSync, constants, mkdirSync, openSync, rmSync, writeSync } from "node:fs";
import { join } from "node:path";
import { codeOf } from "./files.ts";
import type { Spec } from "./spec.ts";

export interface Terminated {
  exit_code: number;
  reason: string;
  message?: string | undefined;
  started_at?: string | undefined;
  finished_at: string;
  id?: string | undefined;
}

export interface Container {
  name: string;
  kind: "main";
  state: "waiting" | "running" | "terminated";
  reason?: string | undefined;
  ready: boolean;
  started: boolean;
  restart_count: number;
  image: string;
  image_id: string;
  id?: string | undefined;
  started_at?: string | undefined;
  terminated?: Terminated | undefined;
  last?: Terminated | undefined;
}

/** As the API shows it. */
export interface Shown {
  id: string;
  version: number;
  revision: number;
  labels: { [key: string]: string };
  state: "creating" | "running" | "stopping" | "stopped" | "deleting" | "deleted";
  reachability: "ok";
  sandbox_ready: boolean;
  created_at: string;
  started_at?: string;
  stopped_at?: string;
  deleted_at?: string;
  addresses: never[];
  containers: Container[];
}

/** All that is known of it, as it is on disk. */
export interface Record {
  shown: Shown;
  /** Absent in a tombstone: secrets go, the exit code stays. */
  spec?: Spec | undefined;
  fingerprint?: string;
  wanted: "running" | "stopped" | "deleted";
  /** Number of the container's last instance. */
  instance: number;
  /** When the next one is due, in milliseconds since 1970; absent while one is under way. */
  due?: number | undefined;
  crashes: number;
  killAt?: number;
  /** Whether it was asked to stop, by its signal. */
  asked?: boolean;
}

/** One folder: `record.json`, and one folder for each instance of its container (the last two are kept). */
export class Machine {
  readonly folder: string;
  readonly record: Record;

  constructor(folder: string, record: Record) {
    this.folder = folder;
    this.record = record;
  }

  get shown(): Shown {
    return this.record.shown;
  }

  get main(): Container {
    return this.shown.containers[0]!;
  }

  get isOver(): boolean {
    return this.shown.state === "stopped" || this.shown.state === "deleted";
  }

  /** The folder of the last instance, or of one before it. */
  instance(back = 0): string | undefined {
    const number = this.record.instance - back;
    return number > 0 ? join(this.folder, `${number}`) : undefined;
  }

  /** Tells the shim; false when there is none. A pipe that nobody reads cannot be opened for writing. */
  tellShim(line = ""): boolean {
    try {
      const pipe = openSync(join(this.instance()!, "control"), constants.O_WRONLY | constants.O_NONBLOCK);
      try {
        if (line !== "") writeSync(pipe, `${line}\n`);
      } finally {
        closeSync(pipe);
      }
      return true;
    } catch (thrown) {
      if (["ENXIO", "ENOENT", "EPIPE"].includes(codeOf(thrown) ?? "")) return false;
      throw thrown;
    }
  }

  spawn(): void {
    const folder = this.instance()!;
    rmSync(folder, { recursive: true, force: true });
    mkdirSync(folder, { mode: 0o700 });
    const path = join(folder, "control");
    execFileSync("mkfifo", ["-m", "600", path]);
    // It has a reader from here on: first this process, then the shim, never none.
    const control = openSync(path, constants.O_RDWR);
    const shim = join(import.meta.dirname, "shim.ts");
    spawn(process.execPath, [shim], { cwd: folder, detached: true, stdio: [control, "ignore", "inherit"] })
      .on("error", (thrown) => console.error(thrown))
      .unref();
    closeSync(control);
    const old = this.instance(2);
    if (old !== undefined) rmSync(old, { recursive: true, force: true });
  }
}
