/** The engine and the shims of one life of the backend, as engine.ts of the backend asks for them. */
import { ALL_CAPABILITIES } from "../../../src/provider/capabilities.ts";
import { ProviderError } from "../../../src/provider/errors.ts";
import {
  ContainerError,
  KILLED_EXIT,
  type ContainerRef,
  type Engine,
  type MachineHome,
  type Sandbox,
  type SandboxLoss,
  type ShimEvents,
  type Shims,
} from "../../../providers/local/engine.ts";
import { contentsOf } from "./disks.ts";
import type { Host, Instance } from "./host.ts";

export type IsAlive = () => boolean;

/** @param options.hasDisks its volumes are attached and detached; else they are folders */
export function engineOf(host: Host, isAlive: IsAlive, { hasDisks = false }: { hasDisks?: boolean } = {}): Engine {
  const ask = <T>(what: string, effect: () => T, amid?: () => void) =>
    host.ask(isAlive, what, effect, amid && { amid });
  return {
    name: "process",
    capabilities: ALL_CAPABILITIES,
    ...(hasDisks && { volumes: () => contentsOf(host, isAlive) }),
    check: () => Promise.resolve([]),
    sweep: (known) =>
      ask("sweep", () => {
        const all = [...host.sandboxes.keys(), ...host.volumes, ...host.prepared.values()];
        for (const machine of new Set(all)) if (!known.has(machine)) host.destroy(machine);
      }),
    open: async (home) => {
      await ask(
        `open ${home.id}`,
        () => host.open(home.id, true),
        () => host.open(home.id, false),
      );
      return new HostSandbox(host, isAlive, home);
    },
    recover: (home) =>
      ask(`recover ${home.id}`, () =>
        host.sandboxes.get(home.id)?.whole ? new HostSandbox(host, isAlive, home) : undefined,
      ),
    destroy: (home, { keepVolumes } = { keepVolumes: false }) =>
      ask(
        `destroy ${home.id}`,
        () => host.destroy(home.id, { keepVolumes }),
        () => host.destroy(home.id, { half: true }),
      ),
    close: () => Promise.resolve(),
  };
}

class HostSandbox implements Sandbox {
  readonly addresses = ["10.9.0.7"];
  readonly lost: Promise<SandboxLoss>;
  readonly #host: Host;
  readonly #isAlive: IsAlive;
  readonly #home: MachineHome;

  constructor(host: Host, isAlive: IsAlive, home: MachineHome) {
    this.#host = host;
    this.#isAlive = isAlive;
    this.#home = home;
    this.lost = new Promise((resolve) => {
      host.sandboxes.get(home.id)!.onLost = (loss) => {
        if (isAlive()) resolve(loss);
      };
    });
  }

  #ask<T>(what: string, effect: () => T, amid?: () => void): Promise<T> {
    return this.#host.ask(this.#isAlive, what, effect, amid && { amid });
  }

  /** @throws ProviderError unavailable when it is gone */
  #requireWhole(): number {
    const sandbox = this.#host.sandboxes.get(this.#home.id);
    if (!sandbox?.whole) throw new ProviderError("unavailable", "there is no such sandbox");
    return sandbox.generation;
  }

  async launch({ id, name, kind }: Parameters<Sandbox["launch"]>[0]) {
    const host = this.#host;
    const machine = this.#home.id;
    await this.#ask(
      `launch ${id}`,
      () => {
        const generation = this.#requireWhole();
        const definition = host.definition(machine, name);
        const phase = "prepared" as const;
        host.prepare({ machine, name, id, kind, generation, phase, startedAt: 0, oomKilled: false, definition });
      },
      () => host.prepared.set(id, machine),
    );
    return { argv: ["run"], env: {}, cwd: "/" };
  }

  async signal({ id }: ContainerRef): Promise<void> {
    await this.#ask(`signal ${id}`, () => {
      const instance = this.#host.find(id);
      // Some take no notice.
      if (instance?.phase === "running" && this.#host.random() < 0.7) instance.dying ??= 143;
    });
  }

  async kill({ id }: ContainerRef): Promise<void> {
    await this.#ask(`kill ${id}`, () => {
      const instance = this.#host.find(id);
      if (instance !== undefined) this.#host.end(instance, KILLED_EXIT, "kill");
    });
  }

  async conclude(...[{ id }, , keep]: Parameters<Sandbox["conclude"]>) {
    const host = this.#host;
    const conclusion = await this.#ask(`look at the end of ${id}`, () => {
      const instance = host.find(id);
      if (!host.known.has(id) || instance === undefined) return {};
      return { terminationMessage: `bye ${id}`, ...(instance.oomKilled && { oomKilled: true }) };
    });
    keep(conclusion);
    // What it was read from may be gone, and what was prepared not yet.
    await this.#ask(
      `conclude ${id}`,
      () => host.conclude(id),
      () => host.known.delete(id),
    );
    return conclusion;
  }

  exec(): Promise<never> {
    return Promise.reject(new ProviderError("unavailable", "no commands in this world"));
  }

  dial(): Promise<never> {
    return Promise.reject(new Error("no network in this world"));
  }

  stats() {
    return Promise.resolve({ containers: [] });
  }

  async applyFiles({ name, version }: Parameters<NonNullable<Sandbox["applyFiles"]>>[0]): Promise<void> {
    await this.#ask(`files ${name} ${version} of ${this.#home.id}`, () => void this.#requireWhole());
  }

  close(): Promise<void> {
    return Promise.resolve();
  }
}

export function shimsOf(host: Host, isAlive: IsAlive): Shims {
  return {
    start: async ({ id }) => {
      const begin = () => {
        const instance = host.find(id)!;
        if (instance.phase === "prepared") host.begin(instance);
        else throw new ContainerError("RunContainerError", "the instance is taken");
      };
      const late = () => {
        host.underway.push(() => {
          const instance = host.find(id)!;
          if (instance.phase === "prepared" && host.prepared.has(id)) host.begin(instance);
        });
      };
      await host.ask(isAlive, `start ${id}`, begin, { amid: late, failsWhole: true });
    },
    everStarted: ({ id }) => {
      const instance = host.find(id);
      if (instance?.phase === "prepared") instance.phase = "nobody";
      return instance !== undefined && instance.phase !== "nobody";
    },
    recorded: ({ id }) => {
      const instance = host.find(id);
      return instance && host.recorded(instance);
    },
    watch: ({ id }, _socket, events) => watch(host, isAlive, id, events),
    attach: () => Promise.reject(new Error("nothing to attach to in this world")),
  };
}

function watch(host: Host, isAlive: IsAlive, id: string, events: ShimEvents) {
  let closed = false;
  let told = { started: false, exited: false };
  const tell = (work: () => void) => {
    host.underway.push(() => {
      if (!closed && isAlive()) work();
    });
  };
  const look = (instance: Instance) => {
    if (instance.startedAt > 0 && !told.started) {
      told = { ...told, started: true };
      const { startedAt } = instance;
      tell(() => events.started({ pid: 1, startedAt }));
    }
    if (instance.phase !== "ended" || told.exited) return;
    told = { ...told, exited: true };
    const exit = host.recorded(instance) ?? { exitCode: KILLED_EXIT, lost: true, finishedAt: host.now };
    tell(() => events.exited(exit));
    tell(() => events.gone());
  };
  host.watchers.set(id, look);
  const instance = host.find(id);
  if (instance !== undefined) look(instance);
  return {
    close() {
      closed = true;
      if (host.watchers.get(id) === look) host.watchers.delete(id);
    },
  };
}
