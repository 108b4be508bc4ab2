/** Volumes of a provider that keeps them by itself: what of them a kill, a full disk or a second caller may find. */
import { describe, expect, test } from "vitest";
import { ProviderError } from "../../../src/provider/errors.ts";
import type { ContainerSpec, MachineSpec } from "../../../src/provider/machine.ts";
import type {
  PersistentVolume,
  PersistentVolumeSpec,
  VolumeAttachment,
  VolumeClaim,
  VolumeClass,
} from "../../../src/provider/volume.ts";
import { VolumeBook, type VolumeBookOptions, type VolumeRecord } from "../../../src/provider/volume-book.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { settle, VirtualClock } from "../../support/virtual-clock.ts";

const options = { signal: new AbortController().signal };
const GIB = 2 ** 30;

const spec = (rest: Partial<PersistentVolumeSpec> = {}): PersistentVolumeSpec => ({
  labels: { team: "a" },
  size_bytes: GIB,
  mode: "filesystem",
  ...rest,
});

const machine = (...claims: Partial<VolumeClaim>[]): MachineSpec => ({
  labels: {},
  restart_policy: "never",
  containers: [{ name: "c", image: "i" }],
  volumes: claims.map((claim, index) => ({ name: `v${index}`, type: "persistent", volume: "disk", ...claim })),
});

/** A book whose disk is a list of what was done, and what of its records outlives it. */
function setup(rest: Partial<VolumeBookOptions> & { room?: number } = {}) {
  const done: string[] = [];
  const saved = new Map<string, VolumeRecord>();
  const holders: (VolumeAttachment & { volume: string })[] = [];
  const open = (more: Partial<VolumeBookOptions> = {}) =>
    new VolumeBook({
      clock: systemClock,
      fsTypes: ["ext4"],
      attachments: (id) => holders.filter(({ volume }) => volume === id).map(({ volume: _id, ...each }) => each),
      save: (record) => {
        done.push(`save ${record.volume.state}`);
        saved.set(record.volume.id, structuredClone(record));
      },
      forget: (id) => {
        done.push("forget");
        saved.delete(id);
      },
      contents: {
        make: ({ volume }) => {
          done.push("make");
          return Promise.resolve({ size_bytes: volume.size_bytes, fs_type: "ext4" });
        },
        grow: (_record, bytes) => {
          done.push(`grow ${bytes}`);
          return Promise.resolve(bytes);
        },
        remove: () => {
          done.push("remove");
          return Promise.resolve();
        },
        room: () => Promise.resolve(rest.room ?? 100 * GIB),
      },
      ...rest,
      ...more,
      records: structuredClone([...saved.values()]),
    });
  const attach = (volume: string, more: Partial<VolumeAttachment> = {}) =>
    holders.push({ volume, machine: "m", read_only: false, state: "attached", ...more });
  return { done, saved, holders, open, attach, book: open() };
}

const code = (expected: string) => expect.objectContaining({ code: expected }) as ProviderError;

describe("a create", () => {
  test("writes down what it will make before it makes it, and tells of it afterwards", async () => {
    const { book, done } = setup();
    expect(await book.create("disk", spec(), options)).toMatchObject({ state: "available", fs_type: "ext4" });
    expect(done).toEqual(["save creating", "make", "save available"]);
  });

  test("that a kill broke off is done again by who repeats it", async () => {
    const { open, done, saved } = setup();
    const killed = open({ contents: { ...contentsThat(() => new Promise(() => {})) } });
    void killed.create("disk", spec(), options);
    await expect.poll(() => saved.get("disk")?.volume.state).toBe("creating");
    const next = open();
    expect(() => next.assertClaimable(machine({}))).toThrow(code("unavailable"));
    expect(await next.create("disk", spec(), options)).toMatchObject({ state: "available" });
    expect(done).toEqual(["save creating", "make", "save available"]);
  });

  test("for which the disk has no room leaves nothing, and can be tried again", async () => {
    const { open, done, saved } = setup();
    const full = open({
      contents: contentsThat(() => Promise.reject(new ProviderError("quota", "no space left on device")), done),
    });
    await expect(full.create("disk", spec(), options)).rejects.toEqual(code("quota"));
    expect(done.slice(1)).toEqual(["remove", "forget"]);
    expect(saved.size).toBe(0);
    await expect(full.get("disk", options)).rejects.toEqual(code("not_found"));
  });

  test("that cannot be written down is not there", async () => {
    const { open } = setup();
    const broken = open({
      save: () => {
        throw new Error("EIO");
      },
    });
    await expect(broken.create("disk", spec(), options)).rejects.toThrow("EIO");
    await expect(broken.get("disk", options)).rejects.toEqual(code("not_found"));
  });

  test.each<[string, Partial<PersistentVolumeSpec>, string]>([
    ["of an unknown class", { class: "gold" }, "invalid"],
    ["of a file system that is not there", { fs_type: "zfs" }, "invalid"],
    ["of a block device where there are none", { mode: "block" }, "invalid"],
    ["in another zone", { zone: "north" }, "out_of_zone"],
    ["larger than the room", { size_bytes: 101 * GIB }, "quota"],
  ])("%s is refused", async (_what, rest, expected) => {
    const { book, done } = setup();
    await expect(book.create("disk", spec(rest), options)).rejects.toEqual(code(expected));
    expect(done).toEqual([]);
  });
});

describe("a copy", () => {
  const copy = { ...spec(), source: { volume: "disk" } };

  test("is of a volume that is there, of its mode, and no smaller", async () => {
    const { book } = setup();
    await expect(book.create("copy", copy, options)).rejects.toEqual(code("not_found"));
    await book.create("disk", spec(), options);
    await expect(book.create("copy", { ...copy, size_bytes: GIB - 1 }, options)).rejects.toEqual(code("invalid"));
    expect(await book.create("copy", copy, options)).toMatchObject({ state: "available", fs_type: "ext4" });
  });

  test("is not made while a machine may write, and nothing of it is left", async () => {
    const { book, attach, saved } = setup();
    await book.create("disk", spec(), options);
    attach("disk");
    await expect(book.create("copy", copy, options)).rejects.toEqual(code("in_use"));
    expect([...saved.keys()]).toEqual(["disk"]);
  });

  test("is made of what was taken, while a machine writes and the source changes", async () => {
    const { book, open, attach } = setup();
    await book.create("disk", spec(), options);
    attach("disk");
    const copying = Promise.withResolvers<void>();
    const taken: string[] = [];
    const taking = open({
      contents: {
        ...contentsThat(),
        make: async ({ volume: { size_bytes } }) => {
          expect(taken).toEqual(["disk for copy"]);
          await copying.promise;
          return { size_bytes };
        },
        take: ({ volume }, source) => Promise.resolve(taken.push(`${source.volume.id} for ${volume.id}`) > 0),
      },
    });
    const made = taking.create("copy", copy, options);
    // It waits for no copy.
    expect(await taking.resize("disk", 2 * GIB, options)).toMatchObject({ size_bytes: 2 * GIB });
    copying.resolve();
    expect(await made).toMatchObject({ state: "available", size_bytes: GIB });
  });

  test("of which nothing could be taken is not made while a machine may write, and nothing of it is left", async () => {
    const { book, open, attach, saved } = setup();
    await book.create("disk", spec(), options);
    attach("disk");
    const taking = open({ contents: { ...contentsThat(), take: () => Promise.resolve(false) } });
    await expect(taking.create("copy", copy, options)).rejects.toEqual(code("in_use"));
    expect([...saved.keys()]).toEqual(["disk"]);
  });

  test("that a kill broke off is made of the same volume by the next life", async () => {
    const { book, open } = setup();
    await book.create("disk", spec(), options);
    const killed = open({ contents: { ...contentsThat(), make: () => new Promise(() => {}) } });
    void killed.create("copy", copy, options);
    await expect.poll(() => killed.record("copy")?.volume.state).toBe("creating");
    const made: (string | undefined)[] = [];
    const next = open({
      contents: {
        ...contentsThat(),
        make: ({ volume }, source) => {
          made.push(source?.volume.id);
          return Promise.resolve({ size_bytes: volume.size_bytes });
        },
      },
    });
    await next.create("copy", copy, options);
    expect(made).toEqual(["disk"]);
  });
});

describe("a deletion", () => {
  test("that a kill broke off gives the volume to nobody, and is finished by the next life", async () => {
    const { open, done, saved, book } = setup();
    await book.create("disk", spec(), options);
    const killed = open({ contents: { ...contentsThat(), remove: () => new Promise(() => {}) } });
    void killed.delete("disk", options);
    await expect.poll(() => saved.get("disk")?.volume.state).toBe("deleting");
    const next = open();
    expect(() => next.assertClaimable(machine({}))).toThrow(code("not_found"));
    await expect(next.create("disk", spec(), options)).rejects.toEqual(code("gone"));
    done.splice(0);
    await next.finish();
    expect(done).toEqual(["remove", "save deleted"]);
  });

  test("leaves a tombstone, which is forgotten when it is old", async () => {
    const { book, saved } = setup();
    await book.delete("disk", options);
    expect((await book.list({ labels: {} })).items).toEqual([]);
    expect((await book.list({ labels: {}, includeDeleted: true })).items).toHaveLength(1);
    book.prune(60_000);
    expect(saved.size).toBe(1);
    book.prune(-1);
    expect(saved.size).toBe(0);
  });

  test("leaves a tombstone that a clock which is a day ahead does not take", async () => {
    const clock = new VirtualClock();
    const { book, saved } = setup({ clock });
    await book.delete("disk", options);
    clock.step(2 * 24 * 3_600_000);
    book.prune(24 * 3_600_000);
    const atFirst = saved.size;
    await clock.advance(3_600_000);
    book.prune(24 * 3_600_000);
    expect([atFirst, saved.size]).toEqual([1, 0]);
  });

  test.each(["attached", "unknown"] as const)("waits for a machine that has it: %s", async (state) => {
    const { book, attach, holders } = setup();
    await book.create("disk", spec(), options);
    attach("disk", { state });
    await expect(book.delete("disk", options)).rejects.toEqual(code("in_use"));
    holders.splice(0);
    await book.delete("disk", options);
  });
});

describe("a machine", () => {
  test("gets no volume that another may still write to, though nobody sees it", async () => {
    const { book, attach } = setup();
    await book.create("disk", spec(), options);
    attach("disk", { state: "unknown" });
    expect(() => book.assertClaimable(machine({}))).toThrow(/may still be written by machine m, which is out of sight/);
  });

  test("gets a volume that is read by others only if its class is for that", async () => {
    const classes = [
      { name: "plain", sharing: "one" },
      { name: "library", sharing: "readers" },
      { name: "share", sharing: "writers" },
    ] as const;
    const { book, attach } = setup({ classes });
    const outcomes: Record<string, string[]> = {};
    for (const { name } of classes) {
      await book.create(name, spec({ class: name }), options);
      attach(name, { read_only: true });
      outcomes[name] = [true, false].map((read_only) => {
        try {
          book.assertClaimable(machine({ volume: name, read_only }));
          return "taken";
        } catch (thrown) {
          return (thrown as ProviderError).code;
        }
      });
    }
    expect(outcomes).toEqual({
      plain: ["in_use", "in_use"],
      library: ["taken", "in_use"],
      share: ["taken", "taken"],
    });
  });

  test("shares no volume whose class the configuration has no more", async () => {
    const { open, book, attach } = setup({ classes: [{ name: "share", sharing: "writers" }] });
    await book.create("disk", spec({ class: "share" }), options);
    attach("disk");
    const next = open({ classes: [{ name: "other", sharing: "writers" }] });
    expect(() => next.assertClaimable(machine({}))).toThrow(code("in_use"));
  });

  test.each<[string, MachineSpec]>([
    ["names a volume twice", machine({}, {})],
    [
      "shows a file system as a device",
      { ...machine({}), containers: [{ name: "c", image: "i", devices: [{ volume: "v0", path: "/dev/x" }] }] },
    ],
  ])("that %s is invalid", async (_what, wrong) => {
    const { book } = setup();
    await book.create("disk", spec(), options);
    expect(() => book.assertClaimable(wrong)).toThrow(code("invalid"));
  });

  test.each<["filesystem" | "block", Partial<ContainerSpec>]>([
    ["filesystem", { devices: [{ volume: "v0", path: "/dev/x" }] }],
    ["block", { mounts: [{ volume: "v0", path: "/x" }] }],
  ])("that has a volume of mode %s gets no container that has it as the other", async (mode, use) => {
    const { book, attach } = setup({ classes: [{ name: "local", sharing: "one", modes: ["filesystem", "block"] }] });
    await book.create("disk", spec({ mode }), options);
    attach("disk");
    const joined = (rest: Partial<ContainerSpec>): MachineSpec => ({
      ...machine({}),
      ephemeral_containers: [{ name: "debug", image: "i", ...rest }],
    });
    expect(() => book.assertJoinable(joined({}))).not.toThrow();
    expect(() => book.assertJoinable(joined(use))).toThrow(
      expect.objectContaining({ code: "invalid", field: "ephemeral_containers" }) as Error,
    );
  });

  test("has a volume only to read where it is reserved for that", async () => {
    const { book } = setup();
    await book.create("disk", spec(), options);
    await book.reserve("disk", "node-a", { ...options, readOnly: true });
    const claim = (read_only: boolean) => () => book.assertClaimable(machine({ reservation: "node-a", read_only }));
    expect(claim(false)).toThrow(code("in_use"));
    expect(claim(true)).not.toThrow();
  });
});

describe("a reservation", () => {
  test("waits for a machine that has the volume without it", async () => {
    const { book, attach } = setup();
    await book.create("disk", spec(), options);
    attach("disk");
    await expect(book.reserve("disk", "node-a", options)).rejects.toEqual(code("in_use"));
  });

  test("of the same name to write, where there is one to read, is a conflict", async () => {
    const { book } = setup();
    await book.create("disk", spec(), options);
    await book.reserve("disk", "node-a", { ...options, readOnly: true });
    await expect(book.reserve("disk", "node-a", options)).rejects.toEqual(code("conflict"));
  });

  describe("that is exclusive, of a volume of a shared class,", () => {
    const classes: VolumeClass[] = [{ name: "shared", sharing: "writers" }];
    const namesIn = ({ reservations }: PersistentVolume) => reservations.map(({ name }) => name);

    test("is the only one, whichever of two comes first", async () => {
      for (const [first, second] of [
        [true, true],
        [true, false],
        [false, true],
      ]) {
        const { book } = setup({ classes });
        await book.create("disk", spec(), options);
        await book.reserve("disk", "a", { ...options, exclusive: first });
        await expect(book.reserve("disk", "b", { ...options, exclusive: second })).rejects.toEqual(code("in_use"));
        expect(namesIn(await book.get("disk", options))).toEqual(["a"]);
        await book.release("disk", "a", options);
        expect(namesIn(await book.reserve("disk", "b", { ...options, exclusive: second }))).toEqual(["b"]);
      }
    });

    test("is not had while a machine has the volume without it", async () => {
      const { book, attach, holders } = setup({ classes });
      await book.create("disk", spec(), options);
      attach("disk");
      const reserve = () => book.reserve("disk", "a", { ...options, exclusive: true });
      await expect(reserve()).rejects.toEqual(code("in_use"));
      holders.length = 0;
      await reserve();
    });

    test("lets several machines that name it have the volume, as pods of one node do", async () => {
      const { book, attach } = setup({ classes });
      await book.create("disk", spec(), options);
      await book.reserve("disk", "a", { ...options, exclusive: true });
      attach("disk", { reservation: "a" });
      book.assertClaimable(machine({ reservation: "a" }));
      expect(() => book.assertClaimable(machine({ reservation: "b" }))).toThrow(code("in_use"));
    });

    test("is what one becomes that is there alone, for later lives too, and no late call makes it less", async () => {
      const { book, open } = setup({ classes });
      await book.create("disk", spec(), options);
      for (const exclusive of [false, true, true, false]) await book.reserve("disk", "a", { ...options, exclusive });
      const next = open({ classes });
      expect((await next.get("disk", options)).reservations).toEqual([
        { name: "a", read_only: false, exclusive: true },
      ]);
      await expect(next.reserve("disk", "b", options)).rejects.toEqual(code("in_use"));
    });

    test("is not what one becomes that is there beside another", async () => {
      const { book } = setup({ classes });
      await book.create("disk", spec(), options);
      for (const name of ["a", "b"]) await book.reserve("disk", name, options);
      await expect(book.reserve("disk", "a", { ...options, exclusive: true })).rejects.toEqual(code("in_use"));
      expect(namesIn(await book.get("disk", options))).toEqual(["a", "b"]);
    });
  });

  test("that is given back by force stops the machines that have the volume by it, and no others", async () => {
    const stopped: string[] = [];
    const { open, attach } = setup();
    const book = open({
      classes: [{ name: "shared", sharing: "writers" }],
      stop: (machine) => stopped.push(machine),
    });
    await book.create("disk", spec(), options);
    for (const name of ["node-a", "node-b"]) {
      await book.reserve("disk", name, options);
      attach("disk", { machine: `of-${name}`, reservation: name });
    }
    // Nothing says yet that the machine is over.
    await expect(book.release("disk", "node-a", { ...options, force: true })).rejects.toEqual(code("in_use"));
    expect(stopped).toEqual(["of-node-a"]);
  });

  test("that is given back by force stops the others though one cannot be told to", async () => {
    const asked: string[] = [];
    const { open, attach } = setup();
    const book = open({
      classes: [{ name: "shared", sharing: "writers" }],
      stop: (machine) => {
        asked.push(machine);
        throw new ProviderError("unavailable", "the disk is full");
      },
    });
    await book.create("disk", spec(), options);
    await book.reserve("disk", "node-a", options);
    for (const machine of ["one", "two"]) attach("disk", { machine, reservation: "node-a" });
    await expect(book.release("disk", "node-a", { ...options, force: true })).rejects.toThrow("the disk is full");
    expect(asked).toEqual(["one", "two"]);
    expect(await book.get("disk", options)).toMatchObject({ reservations: [{ name: "node-a" }] });
  });

  test("is given back by force once the machine is over that was stopped for it", async () => {
    const { open, attach, holders } = setup();
    const book = open({ stop: () => holders.splice(0) });
    await book.create("disk", spec(), options);
    await book.reserve("disk", "node-a", options);
    attach("disk", { reservation: "node-a" });
    await book.release("disk", "node-a", { ...options, force: true });
    expect(await book.get("disk", options)).toMatchObject({ reservations: [] });
  });

  test("stays, whatever is said, while the machine that has the volume by it cannot be stopped", async () => {
    const { book, attach } = setup();
    await book.create("disk", spec(), options);
    await book.reserve("disk", "node-a", options);
    attach("disk", { reservation: "node-a", state: "unknown" });
    await expect(book.release("disk", "node-a", { ...options, force: true })).rejects.toEqual(code("in_use"));
  });

  test("of a volume that is gone is given back all the same", async () => {
    const { book } = setup();
    await book.release("disk", "node-a", options);
    await book.delete("disk", options);
    await book.release("disk", "node-a", options);
  });
});

describe("growth", () => {
  test("for which there is no room changes nothing", async () => {
    const { book, done } = setup();
    await book.create("disk", spec(), options);
    await expect(book.resize("disk", 200 * GIB, options)).rejects.toEqual(code("quota"));
    expect(done).not.toContain(`grow ${200 * GIB}`);
    expect(await book.get("disk", options)).toMatchObject({ size_bytes: GIB });
  });

  test("is told once it is written down, and asked for again until then", async () => {
    const { open, done, book } = setup();
    await book.create("disk", spec(), options);
    let isBroken = true;
    const next = open({
      save: () => {
        if (isBroken) throw new Error("EIO");
      },
    });
    await expect(next.resize("disk", 2 * GIB, options)).rejects.toThrow("EIO");
    expect(await next.get("disk", options)).toMatchObject({ size_bytes: GIB });
    isBroken = false;
    expect(await next.resize("disk", 2 * GIB, options)).toMatchObject({ size_bytes: 2 * GIB });
    expect(done.filter((each) => each.startsWith("grow"))).toHaveLength(2);
  });
});

describe("room", () => {
  /** A disk of so many bytes, of which a volume takes its own bit by bit, and all of it before it is there. */
  function diskOf(total: number, more: Partial<VolumeBookOptions["contents"]> = {}) {
    let used = 0;
    const take = async (bytes: number) => {
      for (const part of [Math.floor(bytes / 2), Math.ceil(bytes / 2)]) {
        await settle();
        used += part;
      }
    };
    const disk = {
      free: () => total - used,
      contents: {
        make: async ({ volume }: VolumeRecord) => {
          await take(volume.size_bytes);
          return { size_bytes: volume.size_bytes };
        },
        grow: async ({ volume }: VolumeRecord, bytes: number) => {
          await take(bytes - volume.size_bytes);
          return bytes;
        },
        remove: () => Promise.resolve(),
        room: async () => {
          const free = total - used;
          await settle();
          return free;
        },
        ...more,
      },
    };
    return disk;
  }
  const ten = Array.from({ length: 10 }, (_, index) => `disk${index}`);
  const outcomes = async (calls: Promise<unknown>[]) =>
    (await Promise.allSettled(calls)).map((each) =>
      each.status === "fulfilled" ? "ok" : (each.reason as ProviderError).code,
    );

  test("is not given twice to volumes that are made at the same time", async () => {
    const { free, contents } = diskOf(900);
    const book = setup().open({ contents });
    const made = await outcomes(ten.map((id) => book.create(id, spec({ size_bytes: 100 }), options)));
    expect(made.filter((each) => each === "quota").length).toBeGreaterThan(0);
    expect(free()).toBeGreaterThanOrEqual(0);
    // What was refused while others were being made may have had room.
    for (const id of ten) await book.create(id, spec({ size_bytes: 100 }), options).catch(() => {});
    expect(free()).toBe(0);
  });

  test("is not given twice to copies and to growth", async () => {
    const { free, contents } = diskOf(1000);
    const book = setup().open({ contents });
    await book.create("disk", spec({ size_bytes: 100 }), options);
    const source = { volume: "disk" };
    const calls = ten.map((id) => book.create(id, spec({ size_bytes: 100, source }), options));
    await outcomes([...calls, book.resize("disk", 800, options)]);
    expect(free()).toBeGreaterThanOrEqual(0);
  });

  test("that is promised is not offered, and is had again when nothing comes of it", async () => {
    const { contents } = diskOf(900);
    const making = Promise.withResolvers<never>();
    const book = setup().open({ contents: { ...contents, make: () => making.promise } });
    const made = book.create("disk", spec({ size_bytes: 600 }), options);
    await settle(20);
    expect(await book.getCapacity({})).toMatchObject({ available_bytes: 300 });
    making.reject(new Error("EIO"));
    await expect(made).rejects.toThrow("EIO");
    expect(await book.getCapacity({})).toMatchObject({ available_bytes: 900 });
  });

  test("is asked for anew by who repeats a create that a kill broke off", async () => {
    const { contents } = diskOf(900);
    const { open, saved } = setup();
    void open({ contents: { ...contents, make: () => new Promise(() => {}) } }).create(
      "disk",
      spec({ size_bytes: 600 }),
      options,
    );
    await expect.poll(() => saved.get("disk")?.volume.state).toBe("creating");
    const next = open({ contents });
    await next.create("other", spec({ size_bytes: 600 }), options);
    await expect(next.create("disk", spec({ size_bytes: 600 }), options)).rejects.toEqual(code("quota"));
    expect([...saved.keys()]).toEqual(["other"]);
  });

  test("is what a volume takes, which may be more than it asks for", async () => {
    const { contents } = diskOf(900, { taken: (bytes) => Math.max(500, bytes) });
    const book = setup().open({ contents });
    const making = [
      book.create("one", spec({ size_bytes: 1 }), options),
      book.create("two", spec({ size_bytes: 1 }), options),
    ];
    expect(await outcomes(making)).toEqual(["ok", "quota"]);
  });
});

test("calls for one volume follow each other, whatever became of the one before", async () => {
  const { book } = setup();
  const calls = await Promise.allSettled([
    book.create("disk", spec(), options),
    book.create("disk", spec({ size_bytes: 2 }), options),
    book.create("disk", spec(), options),
    book.delete("disk", options),
    book.create("disk", spec(), options),
  ]);
  expect(calls.map((each) => (each.status === "fulfilled" ? "ok" : (each.reason as ProviderError).code))).toEqual([
    "ok",
    "conflict",
    "ok",
    "ok",
    "gone",
  ]);
});

function contentsThat(
  make: () => Promise<never> = () => Promise.reject(new Error("not asked for")),
  done: string[] = [],
): VolumeBookOptions["contents"] {
  return {
    make,
    grow: (_record, bytes) => Promise.resolve(bytes),
    remove: () => {
      done.push("remove");
      return Promise.resolve();
    },
    room: () => Promise.resolve(100 * GIB),
  };
}

describe("a change that cannot be saved, though it may have been written", () => {
  /** Saves fail when they have written, so long as `isBroken`. */
  function setupUnsure() {
    const world = setup();
    const disk = { isBroken: false };
    const book = world.open({
      save: (record) => {
        world.saved.set(record.volume.id, structuredClone(record));
        if (disk.isBroken) throw new Error("EIO");
      },
    });
    return { ...world, disk, book };
  }

  test("is taken back before anybody gets the volume", async () => {
    const { book, disk, open } = setupUnsure();
    await book.create("disk", spec(), options);
    disk.isBroken = true;
    await expect(book.delete("disk", options)).rejects.toThrow("EIO");
    expect(() => book.assertClaimable(machine({}))).toThrow("EIO");
    disk.isBroken = false;
    book.assertClaimable(machine({}));
    const next = open();
    expect(await next.get("disk", options)).toMatchObject({ state: "available" });
    next.assertClaimable(machine({}));
  });

  test("is told under a version that no later life gives to something else", async () => {
    const { book, disk, saved } = setupUnsure();
    await book.create("disk", spec(), options);
    disk.isBroken = true;
    await expect(book.reserve("disk", "one", options)).rejects.toThrow("EIO");
    const written = saved.get("disk")!.volume.version;
    disk.isBroken = false;
    const { version, reservations } = await book.reserve("disk", "two", options);
    expect(reservations.map(({ name }) => name)).toEqual(["two"]);
    expect(version).toBeGreaterThan(written);
  });
});

describe("a volume's zone", () => {
  const claims = machine({ volume: "disk" });

  test("is that of its backend, and machines of another have it not", async () => {
    const { book, open } = setup({ zone: "north" });
    expect(await book.create("disk", spec(), options)).toMatchObject({ zone: "north" });
    book.assertClaimable(claims);
    expect(() => open({ zone: "south" }).assertClaimable(claims)).toThrow(code("out_of_zone"));
  });

  test("is nowhere else when the backend had none yet: it is still on this host", async () => {
    const { book, open } = setup();
    await book.create("disk", spec(), options);
    open({ zone: "north" }).assertClaimable(claims);
  });
});
