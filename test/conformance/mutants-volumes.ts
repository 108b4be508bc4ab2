/** Backends that break a rule of volumes. */
import { type ProviderErrorCode, ProviderError, isProviderError } from "../../src/provider/errors.ts";
import type { MachineSpec, Volume } from "../../src/provider/machine.ts";
import type { PersistentVolume, VolumeClaim, VolumeProvider } from "../../src/provider/volume.ts";
import type { MemoryProvider } from "../../providers/memory/index.ts";
import { creating, type Mutant, isCase } from "./mutant-kinds.ts";

/** Methods for volumes in place of the sound ones. */
const storing = (change: (volumes: VolumeProvider, sound: MemoryProvider) => Partial<VolumeProvider>): Mutant => ({
  provider: (sound) => ({ volumes: { ...sound.volumes, ...change(sound.volumes, sound) } }),
});

/** Shows volumes of this case otherwise than they are. */
const showingVolumes = (name: string, change: (volume: PersistentVolume) => object): Mutant =>
  storing((volumes) => ({
    get: async (id, options) => {
      const volume = await volumes.get(id, options);
      return isCase(volume, name) ? { ...volume, ...change(volume) } : volume;
    },
  }));

const claimless = (spec: MachineSpec): MachineSpec => ({
  ...spec,
  volumes: (spec.volumes ?? []).map((volume) =>
    volume.type === "persistent" ? { name: volume.name, type: "empty_dir", medium: "disk" } : volume,
  ),
});

/** Makes machines of this case which it should refuse. */
const making = (name: string, code: ProviderErrorCode): Mutant => ({
  provider: (sound) => ({
    createPod: (id, spec, options) =>
      sound.createPod(id, spec, options).catch((thrown: unknown) => {
        if (isCase(spec, name) && isProviderError(thrown, code)) return sound.createPod(id, claimless(spec), options);
        throw thrown;
      }),
  }),
});

/** Does for volumes of this case what it should refuse: at least, it says so. */
const saying = (name: string, call: "create" | "delete" | "reserve" | "release", code: ProviderErrorCode): Mutant =>
  storing((volumes) => ({
    [call]: async (id: string, ...rest: unknown[]) => {
      const isIt = await volumes.get(id, rest.at(-1) as { signal: AbortSignal }).then(
        (volume) => isCase(volume, name),
        () => false,
      );
      const sound = volumes[call] as (...all: unknown[]) => Promise<unknown>;
      return await sound(id, ...rest).catch((thrown: unknown) => {
        if (isIt && isProviderError(thrown, code))
          return call === "delete" || call === "release"
            ? undefined
            : volumes.get(id, rest.at(-1) as { signal: AbortSignal });
        throw thrown;
      });
    },
  }));

/** Where machines of this case have scratch space instead of the volume. */
const forgetting = (name: string): Mutant => creating((spec) => (isCase(spec, name) ? claimless(spec) : spec));

export const VOLUME_MUTANTS: Record<string, Mutant> = {
  "disks/replays-make-one-volume": storing((volumes) => {
    let creates = 0;
    return {
      create: async (id, spec, options) => ({
        ...(await volumes.create(id, spec, options)),
        ...(isCase(spec, "replays") && { created_at: new Date(1_780_000_000_000 + ++creates).toISOString() }),
      }),
    };
  }),
  "disks/another-specification-is-a-conflict": saying("another", "create", "conflict"),
  "disks/have-what-was-asked-for": showingVolumes("asked-for", () => ({ size_bytes: 1 })),
  "disks/outlive-their-machine": forgetting("outlive"),
  "disks/are-empty-at-first": creating((spec) =>
    isCase(spec, "empty") && JSON.stringify(spec).includes("cat ")
      ? (JSON.parse(JSON.stringify(spec).replaceAll("cat /conformance/said", "echo secret")) as MachineSpec)
      : spec,
  ),
  "disks/a-second-machine-is-refused": making("second", "in_use"),
  "disks/one-of-two-at-once-gets-it": making("at-once", "in_use"),
  "disks/all-of-a-machine-or-none": {
    provider: (sound) => ({
      createPod: (id, spec, options) =>
        sound.createPod(id, spec, options).catch(async (thrown: unknown) => {
          if (isCase(spec, "all-or-none") && spec.volumes?.length === 2)
            await sound.createPod(`${id}-half`, { ...spec, volumes: spec.volumes.slice(0, 1) }, options);
          throw thrown;
        }),
    }),
  },
  "disks/attachments-are-told": showingVolumes("told", () => ({ attachments: [] })),
  "disks/free-once-nothing-runs": {
    provider: (sound) => {
      const held = new Map<string, string>();
      return {
        createPod: (id, spec, options) => {
          const [volume] = spec.volumes ?? [];
          if (volume?.type === "persistent" && isCase(spec, "free")) held.set(volume.volume, id);
          return sound.createPod(id, spec, options);
        },
        volumes: {
          ...sound.volumes,
          get: async (id, options) => {
            const volume = await sound.volumes.get(id, options);
            const machine = held.get(id);
            return machine === undefined
              ? volume
              : { ...volume, attachments: [{ machine, read_only: false, state: "attached" }] };
          },
        },
      };
    },
  },
  "disks/not-deleted-while-attached": saying("attached", "delete", "in_use"),
  "disks/deleted-ids-stay-deleted": saying("deleted", "create", "gone"),
  "disks/deletion-of-what-never-was": storing((volumes) => ({
    delete: async (id, options) => {
      await volumes.get(id, options).catch((thrown: unknown) => {
        if (!isProviderError(thrown, "not_found")) throw thrown;
        return undefined;
      });
      const isThere = await volumes.get(id, options).then(
        () => true,
        () => false,
      );
      if (isThere) await volumes.delete(id, options);
    },
  })),
  "disks/absent-is-said-only-of-absent-ones": storing((volumes) => ({
    get: (id, options) =>
      volumes.get(id, options).catch((thrown: unknown) => {
        if (isProviderError(thrown, "not_found") && !wanted.has(id))
          throw new ProviderError("unavailable", "no idea", { cause: thrown });
        throw thrown;
      }),
    create: (id, spec, options) => {
      wanted.add(id);
      return volumes.create(id, spec, options);
    },
  })),
  "disks/no-machine-of-a-volume-that-never-was": making("absent-volume", "not_found"),
  "disks/grow-and-never-shrink": storing((volumes) => ({
    resize: async (id, bytes, options) => {
      const volume = await volumes.resize(id, bytes, options);
      return isCase(volume, "grow") ? { ...volume, size_bytes: bytes } : volume;
    },
  })),
  "disks/what-is-on-them-survives-their-growth": forgetting("growth"),
  "disks/too-large-is-told-and-leaves-nothing": storing((volumes) => ({
    create: (id, spec, options) =>
      volumes.create(id, isCase(spec, "large") ? { ...spec, size_bytes: 1 } : spec, options),
  })),
  "disks/are-listed-by-labels": storing((volumes) => ({
    list: (options) =>
      volumes.list({ ...options, labels: isCase(options, "listed") ? withoutCase(options.labels) : options.labels }),
  })),
  "disks/reservations-keep-others-out": making("reserved", "in_use"),
  "disks/one-reservation-at-a-time": saying("one-reservation", "reserve", "in_use"),
  "disks/released-only-when-nothing-runs": saying("released", "release", "in_use"),
  "disks/force-releases-when-nothing-runs": storing((volumes) => ({
    release: (id, name, { force, ...options }) =>
      volumes.release(id, name, options).catch((thrown: unknown) => {
        if (force !== true) throw thrown;
      }),
  })),
  "disks/force-stops-nobody-else": storing((volumes, sound) => ({
    release: async (id, name, options) => {
      if (options.force === true)
        for (const { machine } of (await volumes.get(id, options)).attachments)
          await sound.stopPod(machine, { ...options, graceSeconds: 0 });
      return await volumes.release(id, name, options);
    },
  })),
  "disks/a-late-machine-does-not-get-what-was-released": making("late", "in_use"),
  "disks/not-deleted-while-reserved": saying("kept", "delete", "in_use"),
  "disks/read-only-is-kept": creating((spec) =>
    isCase(spec, "read-only")
      ? {
          ...spec,
          volumes: (spec.volumes ?? []).map((volume) =>
            volume.type === "persistent" ? { ...volume, read_only: false } : volume,
          ),
        }
      : spec,
  ),
  "disks/sub-paths-are-parts-of-them": creating((spec) =>
    isCase(spec, "sub-path")
      ? {
          ...spec,
          containers: spec.containers.map((container) => ({
            ...container,
            mounts: (container.mounts ?? []).map(({ sub_path: _part, ...mount }) => mount),
          })),
        }
      : spec,
  ),
  "disks/room-is-told": storing(() => ({ getCapacity: () => Promise.resolve({ available_bytes: 0 }) })),
  "disks/no-device-of-a-file-system": {
    provider: (sound) => ({
      updatePod: (id, patch, options) =>
        sound.updatePod(
          id,
          {
            ...patch,
            ...(patch.ephemeral_containers !== undefined && {
              ephemeral_containers: patch.ephemeral_containers.map(({ devices: _unseen, ...rest }) => rest),
            }),
          },
          options,
        ),
    }),
  },
  "disks/writers-share-what-their-class-shares": forgetting("shared"),
  "disks/exclusive-reservations-are-alone": storing((volumes) => ({
    reserve: async (id, name, { exclusive, ...options }) =>
      volumes.reserve(
        id,
        name,
        isCase(await volumes.get(id, options), "exclusive") ? options : { ...options, exclusive },
      ),
  })),
  "disks/stats-tell-of-them": {
    provider: (sound) => ({
      getStats: async (options) => (await sound.getStats(options)).map(({ volumes: _untold, ...sample }) => sample),
    }),
  },
  "disks/copies-have-what-was-there": storing((volumes) => ({
    create: (id, { source, ...spec }, options) =>
      volumes.create(id, isCase(spec, "copied") || source === undefined ? spec : { ...spec, source }, options),
  })),
  "disks/copies-of-what-is-in-use-are-whole": storing((volumes) => ({
    create: (id, { source, ...spec }, options) =>
      volumes.create(id, isCase(spec, "in-use") || source === undefined ? spec : { ...spec, source }, options),
  })),
  "disks/copies-go-their-own-way": {
    provider: (sound) => {
      const sources = new Map<string, string>();
      const isOne = (volume: Volume): volume is VolumeClaim =>
        volume.type === "persistent" && sources.has(volume.volume);
      return {
        volumes: {
          ...sound.volumes,
          create: (id, spec, options) => {
            if (isCase(spec, "own-way") && spec.source !== undefined) sources.set(id, spec.source.volume);
            return sound.volumes.create(id, spec, options);
          },
          delete: async (id, options) => {
            if (![...sources.values()].includes(id)) await sound.volumes.delete(id, options);
          },
        },
        createPod: (id, spec, options) =>
          sound.createPod(
            id,
            {
              ...spec,
              volumes: (spec.volumes ?? []).map((volume) =>
                isOne(volume) ? { ...volume, volume: sources.get(volume.volume)! } : volume,
              ),
            },
            options,
          ),
      };
    },
  },
  "disks/no-copy-of-what-never-was": storing((volumes) => ({
    create: (id, spec, options) =>
      volumes.create(id, spec, options).catch((thrown: unknown) => {
        if (!isCase(spec, "no-source") || !isProviderError(thrown, "not_found")) throw thrown;
        const { source: _source, ...rest } = spec;
        return volumes.create(id, rest, options);
      }),
  })),
  "disks/survive-a-restart": {
    provider: (sound, world) => ({
      volumes: {
        ...sound.volumes,
        get: async (id, options) => {
          const volume = await sound.volumes.get(id, options);
          return world.isRestarted && isCase(volume, "restart") ? { ...volume, attachments: [] } : volume;
        },
      },
    }),
  },
};

/** Ids that were asked for. */
const wanted = new Set<string>();

function withoutCase(labels: Record<string, string>): Record<string, string> {
  const { case: _name, ...rest } = labels;
  return rest;
}
