/**
 * An engine as a host has it that was off: nothing of any machine runs, or is there. What is begun on it runs in words
 * only; volumes are attached as ever, and shims of before the loss of power are asked, by what they have left on the disk.
 */
import { ALL_CAPABILITIES } from "../../src/provider/capabilities.ts";
import { ProviderError } from "../../src/provider/errors.ts";
import type { Logger } from "../../src/telemetry/logger.ts";
import type { Engine, ImageStore, MachineHome, Sandbox, Shims } from "../../providers/local/engine.ts";
import { recordedExit, shimEverStarted, watchShim } from "../../providers/local/shim/client.ts";
import { LoopVolumes } from "../../providers/local/volumes/loop-files.ts";
import type { VirtualClock } from "../support/virtual-clock.ts";

export interface Backup {
  /** How often a container of a machine was begun. */
  begun: Map<string, number>;
  clock: VirtualClock;
  logger: Logger;
}

export function bareEngine({ begun, clock }: Backup, images: ImageStore): { engine: Engine; shims: Shims } {
  /** The machines of what was launched, by the container's id. */
  const launched = new Map<string, MachineHome>();
  const started = new Map<string, number>();
  const engine: Engine = {
    name: "oci",
    capabilities: ALL_CAPABILITIES,
    images: {
      find: (image, auth) => images.find(image, auth),
      // As a registry has it.
      pull: (image) =>
        Promise.resolve({ imageId: "pulled", image, config: {}, location: "/var/lib/pulled", sizeBytes: 1 }),
      retain: (locations) => images.retain?.(locations),
    },
    volumes: (place) => new LoopVolumes(place),
    check: () => Promise.resolve([]),
    sweep: () => Promise.resolve(),
    open: (home) => Promise.resolve(sandboxOf(home)),
    recover: () => Promise.resolve(undefined),
    destroy: () => Promise.resolve(),
    close: () => Promise.resolve(),
  };
  const sandboxOf = (home: MachineHome): Sandbox => ({
    addresses: ["10.9.0.7"],
    lost: new Promise(() => {}),
    launch: ({ id }) => {
      launched.set(id, home);
      return Promise.resolve({ argv: ["run"], env: {}, cwd: "/" });
    },
    signal: () => Promise.resolve(),
    kill: () => Promise.resolve(),
    conclude: (_container, _exit, keep) => {
      keep({});
      return Promise.resolve({});
    },
    exec: () => Promise.reject(new ProviderError("unavailable", "no commands here")),
    dial: () => Promise.reject(new ProviderError("unavailable", "no network here")),
    stats: () => Promise.resolve({ containers: [] }),
    applyFiles: () => Promise.resolve(),
    close: () => Promise.resolve(),
  });
  const shims: Shims = {
    start: ({ id }) => {
      const machine = launched.get(id)!.id;
      begun.set(machine, (begun.get(machine) ?? 0) + 1);
      started.set(id, clock.now());
      return Promise.resolve();
    },
    watch: ({ id, dir }, socket, events) => {
      const startedAt = started.get(id);
      if (startedAt === undefined) return watchShim(dir, socket, clock, events);
      const endsAtOnce = launched.get(id)!.spec.labels["kind"] === "to its end";
      const cancel = clock.after(1, () => {
        events.started({ pid: 1, startedAt });
        if (!endsAtOnce) return;
        events.exited({ exitCode: 7, startedAt, finishedAt: clock.now() });
        events.gone();
      });
      return { close: cancel };
    },
    everStarted: ({ id, dir }) => started.has(id) || shimEverStarted(dir),
    recorded: ({ dir }) => recordedExit(dir),
    attach: () => Promise.reject(new ProviderError("unavailable", "nothing to attach to here")),
  };
  return { engine, shims };
}
