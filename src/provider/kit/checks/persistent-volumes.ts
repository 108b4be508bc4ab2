/** Volumes that outlive machines: none is lost, doubled, or written by two machines. */
import { isProviderError } from "../../errors.ts";
import type { VolumeClaim } from "../../volume.ts";
import type { Check } from "../check.ts";
import { FOREVER, outputOf, type CheckContext } from "../context.ts";
import { copied, made, MIB, mounting, NEEDS, PLACE, sharedClassOf, volumesOf } from "./disk-cases.ts";

/** What a machine of this volume reads in the file that another has written. */
async function shownBy(context: CheckContext, name: string, claim: Partial<VolumeClaim>): Promise<string> {
  const { id } = await context.over("", mounting(context, name, `cat ${PLACE}/said`, [claim]));
  return await outputOf(context, id);
}

const RULES: readonly Omit<Check, "needs">[] = [
  {
    name: "disks/replays-make-one-volume",
    why: "A provisioner repeats what was not answered, and what it does not know of is never removed.",
    async run(context: CheckContext) {
      const { id, created_at } = await made(context, "replays");
      const again = await volumesOf(context).create(
        id,
        { labels: context.labelsOf("replays"), size_bytes: 64 * MIB, mode: "filesystem" },
        { signal: context.signal },
      );
      context.expect(again.created_at === created_at, `the volume of ${created_at} again`, `it is ${again.created_at}`);
      const { items } = await volumesOf(context).list({ signal: context.signal, labels: context.labelsOf("replays") });
      context.expect(items.length === 1, "one volume in the list", `there are ${items.length}`);
    },
  },
  {
    name: "disks/another-specification-is-a-conflict",
    why: "Somebody would be given a volume that is not what was asked for.",
    async run(context: CheckContext) {
      const { id } = await made(context, "another");
      await context.expectCode(
        volumesOf(context).create(
          id,
          { labels: context.labelsOf("another"), size_bytes: 128 * MIB, mode: "filesystem" },
          { signal: context.signal },
        ),
        "conflict",
        "a create of the same id with another size",
      );
    },
  },
  {
    name: "disks/have-what-was-asked-for",
    why: "A claim is bound to what the volume says of itself.",
    async run(context: CheckContext) {
      const { id } = await made(context, "asked-for");
      const volume = await volumesOf(context).get(id, { signal: context.signal });
      context.expect(volume.size_bytes >= 64 * MIB, "at least 64 MiB", `it has ${volume.size_bytes} bytes`);
      context.expect(volume.mode === "filesystem", "a file system", `it is a ${volume.mode}`);
      context.expect(volume.state === "available", "it to be available", `it is ${volume.state}`);
    },
  },
  {
    name: "disks/outlive-their-machine",
    why: "It is what they are for.",
    async run(context: CheckContext) {
      const { id: volume } = await made(context, "outlive");
      const first = await context.over("", mounting(context, "outlive", `echo kept > ${PLACE}/said`, [{ volume }]));
      await context.delete(first.id);
      const shown = await shownBy(context, "outlive", { volume });
      context.expect(shown === "kept", "what the machine before has written", `it is ${JSON.stringify(shown)}`);
    },
  },
  {
    name: "disks/are-empty-at-first",
    why: "What another has left on a disk is not for the next owner.",
    async run(context: CheckContext) {
      const { id: before } = await made(context, "empty");
      await context.over("", mounting(context, "empty", `echo secret > ${PLACE}/said`, [{ volume: before }]));
      await volumesOf(context).delete(before, { signal: context.signal });
      const { id: volume } = await made(context, "empty");
      const shown = await shownBy(context, "empty", { volume });
      context.expect(!shown.includes("secret"), "a new volume to be empty", `it shows ${JSON.stringify(shown)}`);
    },
  },
  {
    name: "disks/a-second-machine-is-refused",
    why: "Two machines that write to one file system destroy it.",
    async run(context: CheckContext) {
      const { id: volume } = await made(context, "second");
      await context.running("", mounting(context, "second", FOREVER, [{ volume }]));
      const second = context.id();
      const spec = context.spec(FOREVER, mounting(context, "second", FOREVER, [{ volume }]));
      await context.expectCode(
        context.provider.createPod(second, spec, { signal: context.signal }),
        "in_use",
        "a second machine of a volume",
      );
      const { items } = await context.list({ labels: context.labelsOf("second") });
      context.expect(
        !items.some(({ id }) => id === second),
        "no machine to be made of what was refused",
        "it is listed",
      );
    },
  },
  {
    name: "disks/one-of-two-at-once-gets-it",
    why: "Who asks first is not known when both ask at once; that only one gets it is what counts.",
    async run(context: CheckContext) {
      const { id: volume } = await made(context, "at-once");
      const spec = context.spec(FOREVER, mounting(context, "at-once", FOREVER, [{ volume }]));
      const calls = [1, 2, 3].map(() => context.provider.createPod(context.id(), spec, { signal: context.signal }));
      const outcomes = await Promise.allSettled(calls);
      const got = outcomes.filter(({ status }) => status === "fulfilled").length;
      context.expect(got === 1, "one of three machines to get the volume", `${got} got it`);
    },
  },
  {
    name: "disks/all-of-a-machine-or-none",
    why: "Two machines that each hold what the other waits for would wait for ever.",
    async run(context: CheckContext) {
      const { id: taken } = await made(context, "all-or-none");
      const { id: free } = await made(context, "all-or-none");
      await context.running("", mounting(context, "all-or-none", FOREVER, [{ volume: taken }]));
      const claims = [{ volume: free }, { volume: taken }];
      const spec = context.spec(FOREVER, mounting(context, "all-or-none", FOREVER, claims));
      await context.expectCode(
        context.provider.createPod(context.id(), spec, { signal: context.signal }),
        "in_use",
        "a machine of a free volume and one that is taken",
      );
      const { attachments } = await volumesOf(context).get(free, { signal: context.signal });
      context.expect(
        attachments.length === 0,
        "the other volume to be free still",
        `${attachments[0]?.machine} has it`,
      );
    },
  },
  {
    name: "disks/attachments-are-told",
    why: "Who has a volume has to be known before it is detached by force.",
    async run(context: CheckContext) {
      const { id: volume } = await made(context, "told");
      const { id } = await context.running("", mounting(context, "told", FOREVER, [{ volume }]));
      const { attachments } = await volumesOf(context).get(volume, { signal: context.signal });
      const [only] = attachments;
      context.expect(
        attachments.length === 1 && only?.machine === id && !only.read_only,
        `an attachment to machine ${id}`,
        `they are ${JSON.stringify(attachments)}`,
      );
    },
  },
  {
    name: "disks/free-once-nothing-runs",
    why: "A pod that is over keeps its object, and its StatefulSet makes the next one of the same volume.",
    async run(context: CheckContext) {
      const { id: volume } = await made(context, "free");
      const { id } = await context.running("", mounting(context, "free", FOREVER, [{ volume }]));
      await context.stop(id, 0);
      await context.untilOver(id);
      const { attachments } = await volumesOf(context).get(volume, { signal: context.signal });
      context.expect(attachments.length === 0, "no attachment to a machine that is over", `it is still told`);
      await context.running("", mounting(context, "free", FOREVER, [{ volume }]));
    },
  },
  {
    name: "disks/not-deleted-while-attached",
    why: "A program would write into nothing, or into another's disk.",
    async run(context: CheckContext) {
      const { id: volume } = await made(context, "attached");
      await context.running("", mounting(context, "attached", FOREVER, [{ volume }]));
      await context.expectCode(
        volumesOf(context).delete(volume, { signal: context.signal }),
        "in_use",
        "a deletion of a volume that a machine has",
      );
    },
  },
  {
    name: "disks/deleted-ids-stay-deleted",
    why: "A create that arrives late would make a volume that nobody ever removes.",
    async run(context: CheckContext) {
      const { id, labels: own } = await made(context, "deleted");
      await volumesOf(context).delete(id, { signal: context.signal });
      const { state } = await volumesOf(context).get(id, { signal: context.signal });
      context.expect(state === "deleted", "its tombstone", `it is ${state}`);
      await context.expectCode(
        volumesOf(context).create(
          id,
          { labels: own, size_bytes: 64 * MIB, mode: "filesystem" },
          { signal: context.signal },
        ),
        "gone",
        "a create of a deleted id",
      );
      await volumesOf(context).delete(id, { signal: context.signal });
    },
  },
  {
    name: "disks/deletion-of-what-never-was",
    why: "The create that it overtakes must find it.",
    async run(context: CheckContext) {
      const id = context.volumeId();
      await volumesOf(context).delete(id, { signal: context.signal });
      await context.expectCode(
        volumesOf(context).create(
          id,
          { labels: context.labelsOf("never"), size_bytes: 64 * MIB, mode: "filesystem" },
          { signal: context.signal },
        ),
        "gone",
        "a create after the deletion",
      );
    },
  },
  {
    name: "disks/absent-is-said-only-of-absent-ones",
    why: "What is absent is made anew.",
    async run(context: CheckContext) {
      await context.expectCode(
        volumesOf(context).get(context.volumeId(), { signal: context.signal }),
        "not_found",
        "a look at a volume that never was",
      );
    },
  },
  {
    name: "disks/no-machine-of-a-volume-that-never-was",
    why: "A pod whose volume is not there must not run on an empty one.",
    async run(context: CheckContext) {
      const machine = context.id();
      const claims = [{ volume: context.volumeId() }];
      const spec = context.spec(FOREVER, mounting(context, "absent-volume", FOREVER, claims));
      const error = await context.expectCode(
        context.provider.createPod(machine, spec, { signal: context.signal }),
        "not_found",
        "a machine of a volume that never was",
      );
      context.expect(
        error.field === "volumes.0.volume",
        "the field volumes.0.volume to be named",
        `it is ${error.field}`,
      );
    },
  },
  {
    name: "disks/grow-and-never-shrink",
    why: "An expansion is asked for again and again until it is done, also late.",
    async run(context: CheckContext) {
      const { id } = await made(context, "grow");
      const grown = await volumesOf(context).resize(id, 128 * MIB, { signal: context.signal });
      context.expect(grown.size_bytes >= 128 * MIB, "at least 128 MiB", `it has ${grown.size_bytes} bytes`);
      const late = await volumesOf(context).resize(id, 96 * MIB, { signal: context.signal });
      context.expect(
        late.size_bytes === grown.size_bytes,
        "a smaller size to change nothing",
        `it has ${late.size_bytes} bytes`,
      );
    },
  },
  {
    name: "disks/what-is-on-them-survives-their-growth",
    why: "A database grows because it has data.",
    async run(context: CheckContext) {
      const { id: volume } = await made(context, "growth");
      await context.over("", mounting(context, "growth", `echo kept > ${PLACE}/said`, [{ volume }]));
      await volumesOf(context).resize(volume, 96 * MIB, { signal: context.signal });
      const shown = await shownBy(context, "growth", { volume });
      context.expect(shown === "kept", "what was written before", `it is ${JSON.stringify(shown)}`);
    },
  },
  {
    name: "disks/too-large-is-told-and-leaves-nothing",
    why: "A claim that no disk can hold must say so, and not fill the disk.",
    async run(context: CheckContext) {
      const id = context.volumeId();
      const spec = {
        labels: context.labelsOf("large"),
        size_bytes: Number.MAX_SAFE_INTEGER,
        mode: "filesystem",
      } as const;
      await context.expectCode(
        volumesOf(context).create(id, spec, { signal: context.signal }),
        "quota",
        "a volume of 8 PiB",
      );
      await context.expectCode(
        volumesOf(context).get(id, { signal: context.signal }),
        "not_found",
        "a look at the volume for which there was no room",
      );
    },
  },
  {
    name: "disks/are-listed-by-labels",
    why: "Clusters that share a backend must not see each other's.",
    async run(context: CheckContext) {
      const { id } = await made(context, "listed");
      await made(context, "listed-too");
      const { items } = await volumesOf(context).list({ signal: context.signal, labels: context.labelsOf("listed") });
      const ids = items.map((volume) => volume.id);
      context.expect(ids.join() === id, `only ${id}`, `there are ${ids.join(", ") || "none"}`);
    },
  },
  {
    name: "disks/reservations-keep-others-out",
    why: "A volume that was attached to one node must not come up on another.",
    async run(context: CheckContext) {
      const { id: volume } = await made(context, "reserved");
      await volumesOf(context).reserve(volume, "node-a", { signal: context.signal });
      for (const claim of [{ volume }, { volume, reservation: "node-b" }])
        await context.expectCode(
          context.create("", mounting(context, "reserved", FOREVER, [claim])),
          "in_use",
          `a machine that names the reservation ${claim.reservation ?? "(none)"} of a volume reserved for node-a`,
        );
      await context.running("", mounting(context, "reserved", FOREVER, [{ volume, reservation: "node-a" }]));
    },
  },
  {
    name: "disks/one-reservation-at-a-time",
    why: "Two nodes would both be told that they have the volume.",
    async run(context: CheckContext) {
      const { id: volume } = await made(context, "one-reservation");
      await volumesOf(context).reserve(volume, "node-a", { signal: context.signal });
      await volumesOf(context).reserve(volume, "node-a", { signal: context.signal });
      await context.expectCode(
        volumesOf(context).reserve(volume, "node-b", { signal: context.signal }),
        "in_use",
        "a second reservation",
      );
    },
  },
  {
    name: "disks/released-only-when-nothing-runs",
    why: "Whoever is told that it is detached gives it to the next node.",
    async run(context: CheckContext) {
      const { id: volume } = await made(context, "released");
      await volumesOf(context).reserve(volume, "node-a", { signal: context.signal });
      const claim = { volume, reservation: "node-a" };
      const { id } = await context.running("", mounting(context, "released", FOREVER, [claim]));
      await context.expectCode(
        volumesOf(context).release(volume, "node-a", { signal: context.signal }),
        "in_use",
        "a release while a machine has the volume",
      );
      await context.stop(id, 0);
      await context.untilOver(id);
      await volumesOf(context).release(volume, "node-a", { signal: context.signal });
      const { reservations } = await volumesOf(context).get(volume, { signal: context.signal });
      context.expect(reservations.length === 0, "no reservation", `there is ${reservations[0]?.name}`);
    },
  },
  {
    name: "disks/a-late-machine-does-not-get-what-was-released",
    why: "Its node was told to let go, and another may have the volume by now.",
    async run(context: CheckContext) {
      const { id: volume } = await made(context, "late");
      await volumesOf(context).reserve(volume, "node-a", { signal: context.signal });
      await volumesOf(context).release(volume, "node-a", { signal: context.signal });
      await context.expectCode(
        context.create("", mounting(context, "late", FOREVER, [{ volume, reservation: "node-a" }])),
        "in_use",
        "a machine that names a reservation which was released",
      );
    },
  },
  {
    name: "disks/not-deleted-while-reserved",
    why: "A node is about to use it.",
    async run(context: CheckContext) {
      const { id: volume } = await made(context, "kept");
      await volumesOf(context).reserve(volume, "node-a", { signal: context.signal });
      await context.expectCode(
        volumesOf(context).delete(volume, { signal: context.signal }),
        "in_use",
        "a deletion of a volume that is reserved",
      );
    },
  },
  {
    name: "disks/read-only-is-kept",
    why: "Who may only read must not change what others rely on.",
    async run(context: CheckContext) {
      const { id: volume } = await made(context, "read-only");
      await context.over("", mounting(context, "read-only", `echo first > ${PLACE}/said`, [{ volume }]));
      const script = `echo second > ${PLACE}/said`;
      await context.over("", mounting(context, "read-only", script, [{ volume, read_only: true }]));
      const shown = await shownBy(context, "read-only", { volume });
      context.expect(shown === "first", "what was there before", `it is ${JSON.stringify(shown)}`);
    },
  },
  {
    name: "disks/sub-paths-are-parts-of-them",
    why: "Several programs share one volume, each with a folder of its own.",
    async run(context: CheckContext) {
      const { id: volume } = await made(context, "sub-path");
      await context.over("", mounting(context, "sub-path", `echo part > ${PLACE}/said`, [{ volume }], "part"));
      const whole = mounting(context, "sub-path", `cat ${PLACE}/part/said`, [{ volume }]);
      const { id } = await context.over("", whole);
      const shown = await outputOf(context, id);
      context.expect(shown === "part", "what was written by the sub path", `it is ${JSON.stringify(shown)}`);
    },
  },
  {
    name: "disks/room-is-told",
    why: "The scheduler chooses by it where a volume can be made.",
    async run(context: CheckContext) {
      const { available_bytes: room } = await volumesOf(context).getCapacity({ signal: context.signal });
      context.expect(room > 0, "room for some bytes", `there is none`);
    },
  },
];

const COPY_RULES: readonly Omit<Check, "needs">[] = [
  {
    name: "disks/copies-have-what-was-there",
    why: "A clone, or a snapshot, without what was on the volume is an empty disk.",
    async run(context: CheckContext) {
      const { id: source } = await made(context, "copied");
      await context.over("", mounting(context, "copied", `echo kept > ${PLACE}/said`, [{ volume: source }]));
      const { id: volume } = await copied(context, "copied", source);
      const shown = await shownBy(context, "copied", { volume });
      context.expect(shown === "kept", "what was on the source", `it is ${JSON.stringify(shown)}`);
    },
  },
  {
    name: "disks/copies-go-their-own-way",
    why: "A snapshot that changes with its volume brings nothing back.",
    async run(context: CheckContext) {
      const { id: source } = await made(context, "own-way");
      await context.over("", mounting(context, "own-way", `echo first > ${PLACE}/said`, [{ volume: source }]));
      const { id: volume } = await copied(context, "own-way", source);
      await context.over("", mounting(context, "own-way", `echo second > ${PLACE}/said`, [{ volume: source }]));
      await volumesOf(context).delete(source, { signal: context.signal });
      const shown = await shownBy(context, "own-way", { volume });
      context.expect(shown === "first", "what the source had when it was copied", `it is ${JSON.stringify(shown)}`);
    },
  },
  {
    name: "disks/copies-of-what-is-in-use-are-whole",
    why: "The snapshot of a database that runs would be an empty disk, or half of one.",
    async run(context: CheckContext) {
      const { id: source } = await made(context, "in-use");
      await context.over("", mounting(context, "in-use", `echo kept > ${PLACE}/said`, [{ volume: source }]));
      await context.running("", mounting(context, "in-use", FOREVER, [{ volume: source }]));
      const copy = await copied(context, "in-use", source).catch((thrown: unknown) => {
        // It cannot, and says so.
        if (isProviderError(thrown, "in_use") && thrown.field === "source.volume") return undefined;
        throw thrown;
      });
      if (copy === undefined) return;
      const shown = await shownBy(context, "in-use", { volume: copy.id });
      context.expect(shown === "kept", "what was on the source", `it is ${JSON.stringify(shown)}`);
    },
  },
  {
    name: "disks/no-copy-of-what-never-was",
    why: "Whoever asked for their data back would be given an empty disk.",
    async run(context: CheckContext) {
      const error = await context.expectCode(
        copied(context, "no-source", context.volumeId()),
        "not_found",
        "a copy of a volume that never was",
      );
      context.expect(error.field === "source.volume", "the field source.volume to be named", `it is ${error.field}`);
    },
  },
];

export const PERSISTENT_VOLUME_CHECKS: readonly Check[] = [
  ...RULES.map((rule) => ({ ...rule, needs: NEEDS })),
  ...COPY_RULES.map((rule) => ({ ...rule, needs: [...NEEDS, "volumes.clone" as const] })),
  {
    name: "disks/no-device-of-a-file-system",
    needs: [...NEEDS, "ephemeral_containers"],
    why: "Who writes to the device below a mounted file system writes into the kernel that has it mounted.",
    async run(context: CheckContext) {
      const { id: volume } = await made(context, "raw");
      const mounted = mounting(context, "raw", FOREVER, [{ volume }]);
      const use = { mounts: [], devices: [{ volume: "data-0", path: "/dev/conformance" }] };
      await context.expectCode(
        context.create("", { ...mounted, containers: [context.container(FOREVER, use)] }),
        ["invalid", "unsupported"],
        "a machine that has a file system as a block device",
      );
      const { id } = await context.running("", mounted);
      const ephemeral_containers = [context.container("exit 0", { name: "debug", ...use })];
      await context.expectCode(
        context.provider.updatePod!(id, { ephemeral_containers }, { signal: context.signal }),
        ["invalid", "unsupported"],
        "a container that joins a machine, and has its file system as a block device",
      );
      const { containers } = await context.provider.getPod(id, { signal: context.signal });
      context.expect(
        containers.every(({ name }) => name !== "debug"),
        "no container that was refused",
        "the machine has it",
      );
    },
  },
  {
    name: "disks/writers-share-what-their-class-shares",
    needs: NEEDS,
    skip: (context) => (sharedClassOf(context) === undefined ? "no class of volumes has several writers" : undefined),
    why: "Pods of a ReadWriteMany claim talk to each other by its files, from several nodes at once.",
    async run(context: CheckContext) {
      const { id: volume } = await made(context, "shared", { class: sharedClassOf(context)! });
      for (const node of ["node-a", "node-b"]) await volumesOf(context).reserve(volume, node, context);
      const [here, there] = [
        { volume, reservation: "node-a" },
        { volume, reservation: "node-b" },
      ];
      const { id } = await context.running("", mounting(context, "shared", FOREVER, [here]));
      await context.over("", mounting(context, "shared", `echo kept > ${PLACE}/said`, [there]));
      const shown = await shownBy(context, "shared", here);
      context.expect(shown === "kept", "what another machine has written", `it is ${JSON.stringify(shown)}`);
      const { attachments } = await volumesOf(context).get(volume, context);
      context.expect(
        attachments.some(({ machine }) => machine === id),
        `machine ${id}, which runs, to have it still`,
        `attachments are ${JSON.stringify(attachments)}`,
      );
    },
  },
  {
    name: "disks/exclusive-reservations-are-alone",
    needs: [...NEEDS, "volumes.exclusive"],
    skip: (context) => (sharedClassOf(context) === undefined ? "no class of volumes has several writers" : undefined),
    why: "A database whose volume happens to be of a shared class would be started on two nodes.",
    async run(context: CheckContext) {
      const { id: volume } = await made(context, "exclusive", { class: sharedClassOf(context)! });
      const reserve = (name: string, exclusive: boolean) =>
        volumesOf(context).reserve(volume, name, { signal: context.signal, exclusive });
      for (const [first, second] of [
        [true, true],
        [true, false],
        [false, true],
      ] as const) {
        await reserve("node-a", first);
        await context.expectCode(
          reserve("node-b", second),
          "in_use",
          `a reservation (exclusive: ${second}) beside another one (exclusive: ${first})`,
        );
        await volumesOf(context).release(volume, "node-a", { signal: context.signal });
      }
      await reserve("node-a", false);
      await reserve("node-a", true);
      const { reservations } = await reserve("node-a", false);
      context.expect(
        reservations.length === 1 && reservations[0]?.exclusive === true,
        "one reservation, exclusive since it was asked for as such",
        `they are ${JSON.stringify(reservations)}`,
      );
    },
  },
  {
    name: "disks/stats-tell-of-them",
    needs: [...NEEDS, "stats"],
    why: "Whoever is to add room has to see that it runs out.",
    async run(context: CheckContext) {
      const { id: volume } = await made(context, "measured");
      const { id } = await context.running("", mounting(context, "measured", FOREVER, [{ volume }]));
      await context.untilTrue("a sample that tells what its volume has and uses", async () => {
        const all = await context.provider.getStats!({ signal: context.signal, labels: context.labelsOf("measured") });
        const sample = all.find((stats) => stats.id === id)?.volumes?.find(({ name }) => name === "data-0");
        return sample !== undefined && (sample.capacity_bytes ?? 0) > 0;
      });
    },
  },
];

export const DISK_RESTART_CHECKS: readonly Check[] = [
  {
    name: "disks/survive-a-restart",
    needs: NEEDS,
    needsRestart: true,
    why: "A backend that has forgotten who has a volume gives it to somebody else.",
    async run(context: CheckContext) {
      const { id: volume } = await made(context, "restart");
      await volumesOf(context).reserve(volume, "node-a", { signal: context.signal });
      const claim = { volume, reservation: "node-a" };
      const { id } = await context.running("", mounting(context, "restart", FOREVER, [claim]));
      await context.restarted();
      const { attachments, reservations } = await volumesOf(context).get(volume, { signal: context.signal });
      context.expect(
        attachments[0]?.machine === id && reservations[0]?.name === "node-a",
        `the volume to be machine ${id}'s, and reserved for node-a`,
        `attachments are ${JSON.stringify(attachments)}, reservations ${JSON.stringify(reservations)}`,
      );
      await context.expectCode(
        context.create("", mounting(context, "restart", FOREVER, [claim])),
        "in_use",
        "a second machine of a volume, after a restart",
      );
    },
  },
];
