/** Backends that forget something when they are restarted. */
import { isProviderError } from "../../src/provider/errors.ts";
import type { Machine } from "../../src/provider/machine.ts";
import { endedWith, loggingLines, type Mutant, isCase } from "./mutant-kinds.ts";

/** Machines of this case are shown otherwise once the backend was restarted. */
const afterRestart = (name: string, change: (machine: Machine) => object): Mutant => ({
  provider: (sound, world) => ({
    getPod: async (id, options) => {
      const machine = await sound.getPod(id, options);
      return world.isRestarted && isCase(machine, name) ? { ...machine, ...change(machine) } : machine;
    },
  }),
});

/** A backend that has forgotten why it should refuse. */
const creatingAfterRestart = (name: string, code: "gone" | "conflict"): Mutant => ({
  provider: (sound, world) => ({
    createPod: (id, spec, options) =>
      sound.createPod(id, spec, options).catch((thrown: unknown) => {
        if (world.isRestarted && isCase(spec, name) && isProviderError(thrown, code)) return sound.getPod(id, options);
        throw thrown;
      }),
  }),
});

export const RESTARTED_MUTANTS: Record<string, Mutant> = {
  "containers/run-and-print": loggingLines((line) =>
    line.content.toString() === "conformance" ? { ...line, content: Buffer.from("") } : line,
  ),
  "backend-restart/machines-run-on": afterRestart("runs-on", ({ containers }) => ({
    containers: containers.map((container) => ({ ...container, state: "waiting" })),
  })),
  "backend-restart/logs-survive": {
    provider: (sound, world) => ({
      async *getLogs(id, container, options) {
        const isForgotten = world.isRestarted && isCase(await sound.getPod(id, options), "logs");
        if (!isForgotten) yield* sound.getLogs(id, container, options);
      },
    }),
  },
  "backend-restart/exit-codes-survive": afterRestart("exit-codes", ({ containers }) => ({
    containers: containers.map((container) => endedWith(container, 21, 137)),
  })),
  "backend-restart/an-end-meanwhile-is-told": afterRestart("meanwhile", ({ containers }) => ({
    containers: containers.map((container) => endedWith(container, 22, 137)),
  })),
  "backend-restart/tombstones-stay": creatingAfterRestart("tombstone", "gone"),
  "backend-restart/revisions-do-not-fall": afterRestart("revisions", () => ({ version: 0 })),
  "backend-restart/a-repeated-create-is-the-same-machine": {
    provider: (sound, world) => ({
      createPod: async (id, spec, options) => {
        const machine = await sound.createPod(id, spec, options);
        return world.isRestarted && isCase(spec, "repeated")
          ? { ...machine, created_at: "2026-01-01T00:00:00.000Z" }
          : machine;
      },
    }),
  },
  "backend-restart/another-spec-is-still-a-conflict": creatingAfterRestart("conflict", "conflict"),
  "backend-restart/lists-are-whole": {
    provider: (sound, world) => ({
      getPods: async (options) => {
        const list = await sound.getPods(options);
        const isIt = world.isRestarted && list.items.some((item) => isCase(item, "listed"));
        return isIt ? { ...list, items: list.items.slice(1) } : list;
      },
    }),
  },
  "backend-restart/a-machine-can-be-stopped": {
    provider: (sound, world) => ({
      stopPod: async (id, options) => {
        const machine = await sound.getPod(id, options);
        return world.isRestarted && isCase(machine, "stoppable") ? machine : sound.stopPod(id, options);
      },
    }),
  },
  "backend-restart/events-go-on-or-are-gone": {
    provider: (sound, world) => ({
      async *watchPods(since, options) {
        for await (const event of sound.watchPods(since, options))
          if (!world.isRestarted || !isCase(event.machine, "watched")) yield event;
      },
    }),
  },
};
