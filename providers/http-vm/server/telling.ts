/**
 * What the server says of machines: nothing that a client would have to refuse, no matter what guests, images or the
 * provider behind it put into it. Texts and figures are cut to what the document allows; a machine that is still too
 * large loses what can be done without.
 */
import { isIP } from "node:net";
import {
  type ContainerState,
  type ContainerStats,
  type ContainerTermination,
  type Machine,
  MACHINE_BYTES,
  MACHINE_GROUPS,
  type MachineStats,
  MAX_GROUPS,
  type PersistentVolume,
  type PodRanges,
  type PrewarmedImage,
  type UnknownMachine,
} from "../../../src/provider/kit/index.ts";

/** As much as a client keeps (validate.ts). */
const MESSAGE_BYTES = 1024;
const REASON_BYTES = 128;
const TERMINATION_MESSAGE_BYTES = 4096;
const NAME_BYTES = 1024;
const HOST_BYTES = 256;
const NOTICES = 1000;
/** Of a volume. */
const HOLDERS = 1000;
/** Room for the event around the machine. */
const WRAPPING_BYTES = 1024;

/** A machine as JSON that is valid and no larger than a client takes. */
export function machineJson(machine: Machine): string {
  let shown = withinLimits(hasTooManyGroups(machine) ? withoutUsers(machine) : machine);
  let text = JSON.stringify(shown);
  for (const shrink of SHRINKING) {
    if (fits(text)) return text;
    shown = shrink(shown);
    text = JSON.stringify(shown);
  }
  return text;
}

const fits = (text: string): boolean => {
  const room = MACHINE_BYTES - WRAPPING_BYTES;
  return text.length * 3 <= room || Buffer.byteLength(text) <= room;
};

/** What a machine can be told of without, the least missed first. The rest is within `specExcess`. */
const SHRINKING: readonly ((machine: Machine) => Machine)[] = [
  ({ notices: _dropped, ...machine }) => machine,
  withoutUsers,
  (machine) => mapContainers(machine, shortMessages),
  (machine) => mapContainers(machine, ({ last: _dropped, message: _too, ...state }) => withoutMessage(state)),
];

/** More than a megabyte of them is not even written down to be measured. */
function hasTooManyGroups({ containers }: Machine): boolean {
  let groups = 0;
  for (const { user } of containers) groups += user?.supplemental_groups.length ?? 0;
  return groups > MACHINE_GROUPS;
}

function withoutUsers(machine: Machine): Machine {
  return mapContainers(machine, ({ user: _dropped, ...state }) => state);
}

const mapContainers = (machine: Machine, change: (state: ContainerState) => ContainerState): Machine => ({
  ...machine,
  containers: machine.containers.map(change),
});

function shortMessages(state: ContainerState): ContainerState {
  const cutEnd = (end: ContainerTermination): ContainerTermination => ({ ...end, ...cutTexts(end, 128, 64) });
  return {
    ...state,
    ...cutTexts(state, 128, 64),
    ...(state.terminated && { terminated: cutEnd(state.terminated) }),
    ...(state.last && { last: cutEnd(state.last) }),
  };
}

function withoutMessage(state: ContainerState): ContainerState {
  if (state.terminated === undefined) return state;
  const { message: _dropped, ...terminated } = state.terminated;
  return { ...state, terminated };
}

function withinLimits(machine: Machine): Machine {
  const { host, notices } = machine;
  return {
    ...machine,
    ...cutTexts(machine, MESSAGE_BYTES),
    ...(host !== undefined && { host: cut(host, HOST_BYTES) }),
    version: count(machine.version),
    revision: count(machine.revision),
    addresses: oneOfEachFamily(machine.addresses),
    containers: machine.containers.map(stateWithinLimits),
    ...(notices !== undefined && {
      notices: notices.slice(-NOTICES).map((notice) => ({ ...notice, ...cutTexts(notice, MESSAGE_BYTES) })),
    }),
  };
}

function oneOfEachFamily(addresses: Machine["addresses"]): Machine["addresses"] {
  return addresses.filter(({ ip }, index) => addresses.findIndex((each) => isIP(each.ip) === isIP(ip)) === index);
}

function stateWithinLimits(state: ContainerState): ContainerState {
  const { id, user, terminated, last } = state;
  return {
    ...state,
    ...cutTexts(state, MESSAGE_BYTES),
    image_id: cut(state.image_id, NAME_BYTES),
    restart_count: Math.min(count(state.restart_count), INT32_MAX),
    ...(id !== undefined && { id: cut(id, NAME_BYTES) }),
    ...(user !== undefined && {
      user: {
        uid: count(user.uid),
        gid: count(user.gid),
        supplemental_groups: user.supplemental_groups.slice(0, MAX_GROUPS).map(count),
      },
    }),
    ...(terminated !== undefined && { terminated: endWithinLimits(terminated) }),
    ...(last !== undefined && { last: endWithinLimits(last) }),
  };
}

function endWithinLimits(end: ContainerTermination): ContainerTermination {
  return {
    ...end,
    ...cutTexts(end, TERMINATION_MESSAGE_BYTES),
    exit_code: int32(end.exit_code),
    ...(end.signal !== undefined && { signal: int32(end.signal) }),
    ...(end.id !== undefined && { id: cut(end.id, NAME_BYTES) }),
  };
}

function cutTexts<T extends { message?: string; reason?: string }>(
  { message, reason }: T,
  messageBytes: number,
  reasonBytes: number = REASON_BYTES,
): Pick<T, "message" | "reason"> {
  return {
    ...(message !== undefined && { message: cut(message, messageBytes) }),
    ...(reason !== undefined && { reason: cut(reason, reasonBytes) }),
  };
}

/** The first `maxBytes` bytes of the text in UTF-8, without half a character at the end or within. */
function cut(text: string, maxBytes: number): string {
  if (text.length * 3 <= maxBytes) return text.toWellFormed();
  const bytes = Buffer.from(text.length > maxBytes ? text.slice(0, maxBytes) : text);
  return bytes.length <= maxBytes
    ? bytes.toString()
    : new TextDecoder().decode(bytes.subarray(0, maxBytes), { stream: true });
}

const INT32_MAX = 2 ** 31 - 1;

const int32 = (value: number): number =>
  Number.isFinite(value) ? Math.max(-INT32_MAX, Math.min(Math.trunc(value), INT32_MAX)) : -1;

/** A counter as the document has them: whole, not below zero, exact in every language. */
function count(value: number): number {
  return Number.isNaN(value) ? 0 : Math.max(0, Math.min(Math.trunc(value), Number.MAX_SAFE_INTEGER));
}

/** A volume as JSON that is valid. */
export function volumeJson(volume: PersistentVolume): string {
  const { size_bytes, version, attachments, reservations } = volume;
  return JSON.stringify({
    ...volume,
    ...cutTexts(volume, MESSAGE_BYTES),
    version: count(version),
    size_bytes: count(size_bytes),
    attachments: attachments.slice(0, HOLDERS),
    reservations: reservations.slice(0, HOLDERS),
  });
}

/** An image that is kept ready, as JSON that is valid. */
export function imageJson(image: PrewarmedImage): string {
  const { image_id, size_bytes } = image;
  return JSON.stringify({
    ...image,
    ...cutTexts(image, MESSAGE_BYTES),
    ...(image_id !== undefined && { image_id: cut(image_id, NAME_BYTES) }),
    ...(size_bytes !== undefined && { size_bytes: count(size_bytes) }),
  });
}

export function podRangesJson(told: PodRanges): string {
  const { message } = told;
  return JSON.stringify({ ...told, ...(message !== undefined && { message: cut(message, MESSAGE_BYTES) }) });
}

/** Samples as JSON; one of the figures that says nothing is left out, and with one that must be there its container. */
export function statsJson(items: readonly MachineStats[]): string {
  return JSON.stringify({ items: items.map(sampleWithinLimits) });
}

const VOLUME_FIGURES = ["capacity_bytes", "available_bytes", "inodes", "inodes_used", "inodes_free"] as const;
const FIGURES = ["memory_usage_bytes", "memory_rss_bytes", "fs_used_bytes", "logs_used_bytes"] as const;

function sampleWithinLimits(sample: MachineStats): MachineStats {
  const { network, volumes } = sample;
  return {
    ...sample,
    containers: sample.containers
      .filter((each) => isFigure(each.cpu_usage_ns_total) && isFigure(each.memory_working_set_bytes))
      .slice(0, 1000)
      .map(figuresWithinLimits),
    ...(network && { network: { rx_bytes: count(network.rx_bytes), tx_bytes: count(network.tx_bytes) } }),
    ...(volumes && {
      volumes: volumes.slice(0, 1000).map((volume) => {
        const shown = { ...volume, used_bytes: count(volume.used_bytes) };
        for (const figure of VOLUME_FIGURES) {
          const value = shown[figure];
          if (isFigure(value)) shown[figure] = count(value);
          else delete shown[figure];
        }
        return shown;
      }),
    }),
  };
}

const isFigure = (value: unknown): value is number => typeof value === "number" && !Number.isNaN(value);

function figuresWithinLimits(container: ContainerStats): ContainerStats {
  const shown: ContainerStats = {
    ...container,
    cpu_usage_ns_total: count(container.cpu_usage_ns_total),
    memory_working_set_bytes: count(container.memory_working_set_bytes),
  };
  for (const figure of FIGURES) {
    const value = shown[figure];
    if (isFigure(value)) shown[figure] = count(value);
    else delete shown[figure];
  }
  if (shown.probes !== undefined) {
    shown.probes = shown.probes.map(({ probe, successful, failed, unknown }) => ({
      probe,
      successful: count(successful),
      failed: count(failed),
      unknown: count(unknown),
    }));
  }
  return shown;
}

/** What is certain of a machine that cannot be told in whole. */
export const sureOf = ({ id, state, version }: UnknownMachine): object => ({ id, state, version });
