/**
 * Machines of which a loss of power, or a broken disk, has left a part: they are told of, as failed, with what is still
 * known in the place of what is lost, and what is left of them is removed.
 */
import { type ContainerState, isOver, type Logger, type MachineSpec } from "../../../src/provider/kit/index.ts";
import { askedClaims } from "../claims.ts";
import { askedVolumes, type PublishedVolumes } from "../csi-volumes.ts";
import type { KeptMachine } from "./machine-store.ts";
import { type Ending, MACHINE_LOST, type MachineRecord, newRecord } from "./record.ts";

/** What stands of a machine outside its own folder. */
interface KnownElsewhere {
  labels: Readonly<Record<string, string>>;
  published: PublishedVolumes;
}

interface Surroundings {
  host: string;
  /** Wall-clock milliseconds. */
  now: number;
  /** Of the store: no version of this machine was above it. */
  revision: number;
  /** Specifications are kept in the host's memory. */
  areSpecsInMemory: boolean;
  /** Of one of which nothing is left in its own folder. */
  elsewhere: (id: string) => KnownElsewhere | undefined;
  logger: Logger;
}

/** What is lost is filled in: a machine that was acknowledged never vanishes. */
export function wholeMachine(
  { id, spec, record }: KeptMachine,
  surroundings: Surroundings,
): { spec: MachineSpec; record: MachineRecord } {
  if (spec !== undefined && record !== undefined) return { spec, record };
  const { logger, areSpecsInMemory, elsewhere } = surroundings;
  const what = record === undefined ? "What became of this machine" : "What this machine was made of";
  const where =
    record === undefined || !areSpecsInMemory
      ? "was torn on its host's disk: the host has lost power, or the disk is broken"
      : "was kept in its host's memory, and is lost: the host has restarted";
  const why = `${what} ${where}`;
  logger.warn({ machine: id, why }, "A machine's record or specification is lost: the machine fails");
  const known = record ?? recordOfLost(id, spec ?? elsewhere(id), { ...surroundings, why });
  return { spec: spec ?? whatIsKnown(known, why), record: known };
}

/**
 * What is still known of a machine whose spec is lost: enough to find it, end it and tell of it. If it is not over yet,
 * it fails, for it cannot go on: no restart of it would be what was asked for.
 * @param why it is lost
 */
function whatIsKnown(record: MachineRecord, why: string): MachineSpec {
  const { machine } = record;
  if (!isOver(machine)) record.ending ??= lostEnding(why);
  const ofKind = (kind: ContainerState["kind"]) =>
    machine.containers.filter((container) => container.kind === kind).map(({ name, image }) => ({ name, image }));
  return {
    labels: machine.labels,
    restart_policy: record.restartPolicy ?? "never",
    containers: ofKind("main"),
    init_containers: ofKind("init"),
    ephemeral_containers: ofKind("ephemeral"),
  };
}

/**
 * The record of a machine whose own is lost: it was created, so it is told of, as failed. What the engine has of it is
 * removed.
 * @param made its specification; what is known elsewhere when that is lost as well, or nothing
 */
function recordOfLost(
  id: string,
  made: MachineSpec | KnownElsewhere | undefined,
  { host, now, revision, why }: Pick<Surroundings, "host" | "now" | "revision"> & { why: string },
): MachineRecord {
  const spec = made !== undefined && "containers" in made ? made : undefined;
  const labels = { ...made?.labels };
  const record = newRecord(id, spec ?? { labels, restart_policy: "never", containers: [] }, host, now);
  const { machine } = record;
  Object.assign(machine, { version: revision, revision, state: "stopping" });
  // Any of them may be ready; to take back one that is not changes nothing.
  const prepared = askedClaims(spec ?? {});
  const published = made !== undefined && "published" in made ? made.published : askedVolumes(id, { labels, ...spec });
  const outliving = Object.values(published).flatMap(({ driver, volume }) => (volume ? [{ driver, volume }] : []));
  if (outliving.length > 0) machine.csi_volumes = outliving;
  return {
    ...record,
    sandbox: "opening",
    ending: lostEnding(why),
    devices: "lost",
    ...(Object.keys(prepared).length > 0 && { prepared }),
    ...(Object.keys(published).length > 0 && { published }),
  };
}

function lostEnding(message: string): Ending {
  return { deadline: 0, force: true, state: "failed", reason: MACHINE_LOST, message };
}
