/** Planted bugs of the backend: each must be found as what it is. */
import type { Engine, Shims } from "../../../providers/local/engine.ts";
import { ContainerStatus } from "../../../providers/local/machine/container-status.ts";
import { InstanceFolders } from "../../../providers/local/machine/instance-folders.ts";
import { MachineState } from "../../../providers/local/machine/machine-state.ts";
import { MachineStore } from "../../../providers/local/machine/machine-store.ts";
import { LocalVolumes } from "../../../providers/local/volumes/local-volumes.ts";
import { VolumeBook } from "../../../src/provider/volume-book.ts";
import type { Host } from "./host.ts";

export interface Mutant {
  name: string;
  /** The invariant that must be violated, for this and no other reason: its name and the beginning of its text. */
  caughtAs: string;
  /** Default: kills. */
  scenario?: string;
  /** Breaks the backend's own code, until it is disposed of. */
  plant?: () => Disposable;
  engine?: (real: Engine) => Engine;
  shims?: (real: Shims, host: Host) => Shims;
  /** Files that are never written. */
  unwritten?: RegExp;
  /** A flush does nothing. */
  unflushed?: boolean;
}

/** Puts another method in the place of a class's own. */
const replace =
  <T extends object, K extends keyof T>(owner: { prototype: T }, name: K, make: (real: T[K]) => T[K]) =>
  (): Disposable => {
    const real = owner.prototype[name];
    owner.prototype[name] = make(real);
    return { [Symbol.dispose]: () => void (owner.prototype[name] = real) };
  };

export const MUTANTS: readonly Mutant[] = [
  {
    name: "an instance is begun before that is written down",
    caughtAs: "B1 two instances",
    plant: replace(
      MachineState,
      "write",
      (real) =>
        function write(this: MachineState) {
          if (!this.containers().some(({ own }) => own.phase === "starting")) real.call(this);
        },
    ),
  },
  {
    name: "tombstones are remembered and not written",
    caughtAs: "B5",
    unwritten: /\/tombstones\//,
  },
  {
    name: "an id with a tombstone is used again",
    caughtAs: "B6",
    plant: replace(MachineStore, "tombstone", () => () => undefined),
  },
  {
    name: "revisions are counted anew by each backend",
    caughtAs: "B7 the revision falls",
    unwritten: /\/revision\.json/,
  },
  {
    name: "a shim that has begun counts as one that never did",
    caughtAs: "B1 two instances",
    shims: (real) => ({
      ...real,
      everStarted: (ref) => {
        real.everStarted(ref);
        return false;
      },
    }),
  },
  {
    name: "what shims wrote down is not asked for when the sandbox is gone",
    caughtAs: "B3 the end of",
    shims: ({ recorded: _recorded, ...real }) => real,
  },
  {
    name: "the end of a container is told with the time at which that is written",
    caughtAs: "B3",
    plant: replace(
      ContainerStatus,
      "exited",
      (real) =>
        function exited(this: ContainerStatus, end) {
          real.call(this, { ...end, finished_at: new Date(Date.parse(end.finished_at) + 1000).toISOString() });
        },
    ),
  },
  {
    name: "what only the engine knows of an end is kept when it has removed everything",
    caughtAs: "B3 what only the engine knew",
    engine: (real) =>
      wrapSandbox(real, (sandbox) => ({ conclude: (ref, exit) => sandbox.conclude(ref, exit, () => {}) })),
  },
  {
    name: "a sandbox that cannot be looked at counts as gone",
    caughtAs: "B8",
    engine: (real) => ({ ...real, recover: (home) => real.recover(home).catch(() => undefined) }),
  },
  {
    name: "what is left of a sandbox is not removed before another is made",
    caughtAs: "B1 two sandboxes",
    engine: (real) => ({
      ...real,
      destroy: (home, options) => (options?.keepVolumes ? Promise.resolve() : real.destroy(home, options)),
    }),
  },
  {
    name: "a sandbox that cannot be removed is forgotten",
    caughtAs: "B4",
    engine: (real) => ({ ...real, destroy: (home, options) => real.destroy(home, options).catch(() => {}) }),
  },
  {
    name: "what was prepared and never begun is left",
    caughtAs: "B4 what was prepared",
    plant: replace(InstanceFolders, "unrecorded", () => () => []),
  },
  {
    name: "what a former backend has not cleared is left",
    caughtAs: "B4 what was prepared",
    plant: replace(InstanceFolders, "recorded", () => () => []),
  },
  {
    name: "the folder of an instance goes before the engine has cleared it",
    caughtAs: "B4 what was prepared",
    plant: replace(
      InstanceFolders,
      "forgetOld",
      (real) =>
        function forgetOld(this: InstanceFolders, name, own) {
          real.call(this, name, own, () => true);
        },
    ),
  },
  {
    name: "a machine's folder is left when it is deleted",
    caughtAs: "B4",
    plant: replace(MachineStore, "remove", () => () => {}),
  },
  {
    name: "that a machine is deleted is not written down",
    caughtAs: "B10",
    plant: replace(MachineState, "markDeleted", () => () => {}),
  },
  {
    name: "nothing is flushed",
    caughtAs: "B5",
    scenario: "power-cuts",
    unflushed: true,
  },
  {
    name: "a volume is given to every machine that names it",
    caughtAs: "V1",
    scenario: "volumes",
    plant: replace(VolumeBook, "assertClaimable", () => () => {}),
  },
  {
    name: "which volumes a machine has is forgotten with the backend",
    caughtAs: "V5",
    scenario: "volumes",
    plant: replace(
      MachineStore,
      "load",
      (real) =>
        function load(this: MachineStore) {
          const found = real.call(this);
          for (const { record } of found.machines) delete record?.claims;
          return found;
        },
    ),
  },
  {
    name: "a backend that finds a machine again takes its volumes away",
    caughtAs: "V2",
    scenario: "volumes",
    plant: replace(
      LocalVolumes,
      "attach",
      (real) =>
        async function attach(this: LocalVolumes, machine, options) {
          await real.call(this, machine, options);
          if (options.isRunning === true) await this.detach(machine);
        },
    ),
  },
  {
    name: "a machine begins without its volumes",
    caughtAs: "V3",
    scenario: "volumes",
    plant: replace(LocalVolumes, "attach", () => () => Promise.resolve()),
  },
  {
    name: "records of volumes are never written",
    caughtAs: "V4",
    scenario: "volumes",
    unwritten: /\/volume\.json/,
  },
  {
    name: "a reservation is given back while a machine has the volume by it",
    caughtAs: "V5",
    scenario: "volumes",
    plant: replace(
      VolumeBook,
      "release",
      (real) =>
        function release(this: VolumeBook, ...args) {
          return real.apply(this, args).catch(() => {});
        },
    ),
  },
  {
    name: "what a kill has broken off of a volume is never finished",
    caughtAs: "V7",
    scenario: "volumes",
    plant: replace(LocalVolumes, "finish", () => () => Promise.resolve()),
  },
];

type Sandboxed = Awaited<ReturnType<Engine["open"]>>;

function wrapSandbox(real: Engine, change: (sandbox: Sandboxed) => Partial<Sandboxed>): Engine {
  const wrap = (sandbox: Sandboxed) =>
    new Proxy(sandbox, {
      get: (target, name) => {
        const value: unknown = Reflect.get({ ...change(target) }, name) ?? Reflect.get(target, name);
        return typeof value === "function" ? (value.bind(target) as unknown) : value;
      },
    });
  return {
    ...real,
    open: async (home, signal) => wrap(await real.open(home, signal)),
    recover: async (home) => {
      const found = await real.recover(home);
      return found && wrap(found);
    },
  };
}
