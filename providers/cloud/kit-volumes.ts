/** For the author of a `VmCloud` with volumes: what the provider builds on of them. */
import { isProviderError, Violation } from "../../src/provider/kit/index.ts";
import type { CloudVolumes, Vm, VolumeRef } from "./cloud.ts";
import type { Check, Context } from "./kit.ts";
import { SCOPE_LABEL } from "./labels.ts";
import { VOLUME_LABEL } from "./volume-record.ts";

const MIB = 2 ** 20;

const skip = ({ cloud }: Context): string | undefined =>
  cloud.volumes === undefined ? "the cloud has no volumes" : undefined;

const volumesOf = ({ cloud }: Context): CloudVolumes => cloud.volumes!;

async function made(context: Context, source?: VolumeRef): Promise<VolumeRef> {
  const volume = context.volumeRef();
  const labels = { [SCOPE_LABEL]: "kit", [VOLUME_LABEL]: `kit-${volume.name}` };
  await volumesOf(context).create({ ...volume, sizeBytes: 64 * MIB, labels, source }, context.options);
  await context.eventually(`volume ${volume.name} to be ready`, async () => {
    const { state } = await volumesOf(context).get(volume, context.options);
    return state === "ready" ? undefined : `it is ${state}`;
  });
  return volume;
}

async function codeOf(work: Promise<unknown>): Promise<string> {
  return await work.then(
    () => "it succeeded",
    (thrown: unknown) => (isProviderError(thrown) ? thrown.code : String(thrown)),
  );
}

async function refused(what: string, code: string, work: Promise<unknown>): Promise<void> {
  const came = await codeOf(work);
  if (came !== code) throw new Violation(`${what} to fail with ${code}`, came);
}

async function vmWith(volume: VolumeRef, context: Context): Promise<Vm> {
  const request = { ...context.request(), volumes: [{ ...volume, readOnly: false }] };
  const { zone } = volumesOf(context);
  const { zone: typeZone = zone } = request.type;
  if (zone !== undefined && typeZone !== zone)
    throw new Violation(`a type of zone ${zone}, where the volumes are`, `it is of ${typeZone}`);
  await context.cloud.createVm(request, context.options);
  return await context.untilRuns(request.name);
}

export const VOLUME_CHECKS: readonly Check[] = [
  {
    name: "volumes/what-is-absent-is-not-found",
    why: "a volume is deleted when the cloud says that it is not there, and not before",
    skip,
    async run(context) {
      const never = context.volumeRef();
      await refused("`get` of what never was", "not_found", volumesOf(context).get(never, context.options));
      await volumesOf(context).delete(never, context.options);
      const volume = await made(context);
      await volumesOf(context).delete(volume, context.options);
      await context.eventually("a volume to be gone when it was deleted", async () => {
        const came = await codeOf(volumesOf(context).get(volume, context.options));
        return came === "not_found" ? undefined : came;
      });
    },
  },
  {
    name: "volumes/one-name-is-one-volume",
    why: "the order of a volume is sent again when its answer was lost, and must not take what is on it",
    skip,
    async run(context) {
      const volume = await made(context);
      const again = { ...volume, sizeBytes: 64 * MIB, labels: {} };
      await refused("a second order of the name", "conflict", volumesOf(context).create(again, context.options));
      const { labels } = await volumesOf(context).get(volume, context.options);
      const expected = `kit-${volume.name}`;
      if (labels[VOLUME_LABEL] !== expected)
        throw new Violation(`the label ${expected}`, `it is ${labels[VOLUME_LABEL]}`);
      await context.eventually("the volume to be listed by its label", async () => {
        const found = await volumesOf(context).list([VOLUME_LABEL, expected], context.options);
        return found.length === 1 && found[0]!.name === volume.name ? undefined : `${found.length} are`;
      });
    },
  },
  {
    name: "volumes/grow-and-tell-it",
    why: "a claim that has grown is written until it is full",
    skip,
    async run(context) {
      const volume = await made(context);
      await volumesOf(context).grow(volume, 128 * MIB, context.options);
      const { sizeBytes } = await volumesOf(context).get(volume, context.options);
      if (sizeBytes < 128 * MIB) throw new Violation("at least 128 MiB", `${sizeBytes} bytes`);
    },
  },
  {
    name: "volumes/copies-outlive-their-source",
    why: "a snapshot is there when what it was made of is gone",
    skip,
    async run(context) {
      const source = await made(context);
      const copy = await made(context, source);
      await volumesOf(context).delete(source, context.options);
      const { state } = await volumesOf(context).get(copy, context.options);
      if (state !== "ready") throw new Violation("a copy that is ready", `it is ${state}`);
    },
  },
  {
    name: "volumes/are-copied-while-a-vm-has-them",
    why: "a snapshot is asked for of what runs, where the cloud says that it makes such copies (`copiesInUse`)",
    skip: (context) =>
      skip(context) ??
      (volumesOf(context).copiesInUse === undefined ? "the cloud copies only what nobody writes to" : undefined),
    async run(context) {
      const volume = await made(context);
      if ((await volumesOf(context).copiesInUse?.(volume.class, context.options)) !== true) return;
      await vmWith(volume, context);
      await made(context, volume);
    },
  },
  {
    name: "volumes/a-vm-has-them-until-they-are-taken",
    why: "who is told that a VM has a volume no more gives it to another",
    skip,
    async run(context) {
      const { cloud, options } = context;
      const volume = await made(context);
      const vm = await vmWith(volume, context);
      if (vm.volumes?.join() !== volume.name)
        throw new Violation(`the VM to have ${volume.name}`, `it has ${vm.volumes?.join() ?? "nothing to say of it"}`);
      await refused("the deletion of what a VM has", "in_use", volumesOf(context).delete(volume, options));
      await context.untilAnswers(vm);
      await volumesOf(context).detach(vm.name, volume.name, options);
      await context.eventually("the VM to have it no more", async () => {
        const { volumes = [] } = await cloud.getVm(vm.name, options);
        return volumes.length === 0 ? undefined : `it has ${volumes.join()}`;
      });
      await volumesOf(context).delete(volume, options);
    },
  },
];
