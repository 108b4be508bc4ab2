/**
 * Faults of the system under the backend: the calls of Node's file and process interfaces fail as the test says, as
 * they do on a full or broken disk, or when descriptors, memory or processes have run out.
 */
import childProcess, { type ChildProcess } from "node:child_process";
import { EventEmitter } from "node:events";
import fs from "node:fs";
import promises from "node:fs/promises";
import { syncBuiltinESMExports } from "node:module";
import { constants } from "node:os";
import { onTestFinished } from "vitest";

export type Errno = "ENOSPC" | "EDQUOT" | "EIO" | "EMFILE" | "ENFILE" | "ENOMEM" | "EAGAIN";

/** What may fail. `flush` is fsync; `look` asks what there is, without its content; `remove` is what frees room. */
export type CallKind = "write" | "flush" | "open" | "read" | "look" | "remove" | "spawn";

export interface FaultRule {
  kind: CallKind;
  errno: Errno;
  /** Only calls about paths that this says yes to. Default: all. */
  about?: ((path: string) => boolean) | undefined;
  /** The first of those calls that fails, from 1. Default: 1. */
  from?: number | undefined;
  /** How many fail. Default: all, until the rule is taken away. */
  times?: number | undefined;
}

const SYNC: Record<Exclude<CallKind, "spawn">, readonly (keyof typeof fs)[]> = {
  write: [
    ...(["writeFileSync", "writeSync", "mkdirSync", "renameSync", "linkSync", "symlinkSync", "mkdtempSync"] as const),
    ...(["chmodSync", "chownSync", "truncateSync"] as const),
  ],
  flush: ["fsyncSync"],
  open: ["openSync"],
  read: ["readFileSync", "readdirSync", "readSync"],
  look: ["statSync", "lstatSync", "statfsSync", "readlinkSync", "realpathSync"],
  remove: ["rmSync", "rmdirSync", "unlinkSync"],
};
const ASYNC: Record<Exclude<CallKind, "spawn">, readonly (keyof typeof promises)[]> = {
  write: ["writeFile", "mkdir", "rename", "link", "symlink", "mkdtemp", "chmod", "chown", "truncate"],
  flush: [],
  open: ["open"],
  read: ["readFile", "readdir"],
  look: ["stat", "lstat", "statfs", "readlink"],
  remove: ["rm", "rmdir", "unlink"],
};

/** Installed until the test ends. */
export class Faults {
  readonly #rules = new Set<{ rule: FaultRule; seen: number; failed: number }>();
  #failed = 0;

  static install(): Faults {
    const faults = new Faults();
    const restore = faults.#interpose();
    onTestFinished(restore);
    return faults;
  }

  /** From now on these calls fail; the returned function mends that. */
  fail(rule: FaultRule): () => void {
    const entry = { rule, seen: 0, failed: 0 };
    this.#rules.add(entry);
    return () => this.#rules.delete(entry);
  }

  /** How many calls have failed so far. */
  get failed(): number {
    return this.#failed;
  }

  #errorFor(kind: CallKind, call: string, path: string): NodeJS.ErrnoException | undefined {
    for (const entry of this.#rules) {
      const { kind: wanted, errno, about = () => true, from = 1, times = Infinity } = entry.rule;
      if (wanted !== kind || !about(path)) continue;
      entry.seen++;
      if (entry.seen < from || entry.failed >= times) continue;
      entry.failed++;
      this.#failed++;
      return Object.assign(new Error(`${errno}: injected, ${call} '${path}'`), {
        code: errno,
        errno: -constants.errno[errno],
        syscall: call,
        path,
      });
    }
    return undefined;
  }

  #interpose(): () => void {
    const undo: (() => void)[] = [];
    const put = (target: object, name: string, wrap: (real: (...args: never[]) => unknown) => unknown) => {
      const holder = target as Record<string, (...args: never[]) => unknown>;
      const real = holder[name]!;
      holder[name] = wrap(real) as typeof real;
      undo.push(() => (holder[name] = real));
    };
    for (const kind of ["write", "flush", "open", "read", "look", "remove"] as const) {
      for (const name of SYNC[kind])
        put(fs, name, (real) => (...args: never[]) => {
          const error = this.#errorFor(kind, name, String(args[0]));
          if (error === undefined) return real.apply(fs, args);
          if (isHalfDone(name, error)) real.apply(fs, emptied(args));
          throw error;
        });
      for (const name of ASYNC[kind])
        put(promises, name, (real) => async (...args: never[]) => {
          const error = this.#errorFor(kind, name, String(args[0]));
          if (error === undefined) return await real.apply(promises, args);
          if (isHalfDone(name, error)) await real.apply(promises, emptied(args));
          throw error;
        });
    }
    put(childProcess, "spawn", (real) => (...args: never[]) => {
      const error = this.#errorFor("spawn", "spawn", String(args[0]));
      return error === undefined ? real.apply(childProcess, args) : notSpawned(error);
    });
    syncBuiltinESMExports();
    return () => {
      for (const each of undo) each();
      syncBuiltinESMExports();
    };
  }
}

/** A full or broken disk lets a file be made, and nothing be written to it. */
const isHalfDone = (name: string, { code }: NodeJS.ErrnoException): boolean =>
  name.startsWith("writeFile") && ["ENOSPC", "EDQUOT", "EIO"].includes(code!);

const emptied = ([path, _content, ...options]: never[]): never[] => [path!, "" as never, ...options];

/**
 * What Node returns when it cannot start a process for want of descriptors: there are no streams, and the error comes
 * later. Without memory it throws.
 */
function notSpawned(error: NodeJS.ErrnoException): ChildProcess {
  if (error.code === "ENOMEM") throw error;
  const child = Object.assign(new EventEmitter(), { pid: undefined, kill: () => false, unref() {} });
  process.nextTick(() => {
    child.emit("error", error);
    child.emit("close", -constants.errno.EMFILE, null);
  });
  return child as unknown as ChildProcess;
}
