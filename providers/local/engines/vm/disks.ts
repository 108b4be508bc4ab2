/**
 * Disks that outlive machines, in the guests of those that have them: plugged in by descriptor while the VM runs, for a
 * copy of a template begins without; mounted by the guest, or shown to its containers as devices. Before a VM is ended
 * its guest writes back what it has of them.
 */
import { createHash } from "node:crypto";
import { spawn } from "node:child_process";
import { statSync } from "node:fs";
import { join } from "node:path";
import { Duplex } from "node:stream";
import {
  type Clock,
  type ContainerSpec,
  type Logger,
  type MachineSpec,
  ProviderError,
  toError,
  volumeClaims,
  type VolumeMode,
} from "../../../../src/provider/kit/index.ts";
import type { BundleInput } from "../../bundle/bundle.ts";
import { ContainerError } from "../../engine.ts";
import { patienceFor } from "../../host/patience.ts";
import { fileSystemState } from "../../volumes/image-files.ts";
import { hostOptions } from "../../volumes/mount-options.ts";
import { attachLasting, detachLasting } from "./blocks.ts";
import type { GuestCommand, GuestControl } from "./control.ts";
import { RELEASE } from "./patience.ts";
import { Qmp } from "./qmp.ts";

/** Below are sets of descriptors of the VM's own. */
const FIRST_SET = 1_000;
const RECOVERY_SETS = 1_000;
const MAX_COMPLAINT_CHARS = 1_000;
const NUMBERS = /^(\d{1,9}):(\d{1,9})\s*$/;

type OciDevices = NonNullable<BundleInput["devices"]>["nodes"];

/** A volume of a machine, as its specification names it. */
interface Claim {
  readonly name: string;
  readonly volume: string;
  readonly readOnly: boolean;
  readonly mountOptions: readonly string[];
}

/** As a VM gets it. */
interface Disk {
  readonly serial: string;
  readonly file: string;
  /** Of the descriptors by which QEMU has it. */
  readonly set: number;
  readonly readOnly: boolean;
}

/** The VM that is to have them. */
interface DiskVm {
  readonly qmp: string;
  readonly control: Pick<GuestControl, "run">;
}

/** Which VMs have which disks of this host. */
export class GuestDisks {
  readonly #guestDir: string;
  readonly #clock: Clock;
  readonly #diskOf: (id: string) => { file: string; mode: VolumeMode };
  readonly #holders = new Map<string, { vm: DiskVm; name: string }>();

  /** @param options.diskOf what a volume is. @throws HostError for one that is not attached */
  constructor({
    guestDir,
    clock,
    diskOf,
  }: {
    guestDir: string;
    clock: Clock;
    diskOf: (id: string) => { file: string; mode: VolumeMode };
  }) {
    this.#guestDir = guestDir;
    this.#clock = clock;
    this.#diskOf = diskOf;
  }

  /**
   * Plugs in all that the machine claims.
   * @returns what has them mounted in the guest
   * @throws Error when a VM that still runs has one of them
   */
  async plug(vm: DiskVm, spec: MachineSpec, signal: AbortSignal): Promise<GuestCommand[]> {
    const { fs_group: group, fs_group_change_policy: policy } = spec.security ?? {};
    const commands: GuestCommand[] = [];
    for (const [index, { name, volume, readOnly, mountOptions }] of claimsOf(spec).entries()) {
      const { file, mode } = this.#diskOf(volume);
      const serial = serialOf(volume);
      const disk = { serial, file, set: FIRST_SET + index };
      this.#holders.set(volume, { vm, name });
      if (mode === "block") {
        await this.#plug(vm, { ...disk, readOnly }, signal);
        continue;
      }
      const { bytes, blockBytes, needsRecovery } = await fileSystemState(file);
      if (readOnly && needsRecovery) await this.#recover(vm, volume, disk, signal);
      await this.#plug(vm, { ...disk, readOnly }, signal);
      commands.push([
        "disk",
        name,
        volume,
        serial,
        readOnly ? "ro" : "rw",
        hostOptions(mountOptions, { readOnly, fsType: "ext4" }),
        group === undefined || readOnly ? "-" : String(group),
        policy === "on_root_mismatch" ? "mismatch" : "always",
        !readOnly && bytes + blockBytes <= statSync(file).size ? "grow" : "-",
      ]);
    }
    return commands;
  }

  /** After a restart of the backend: they are where they were. */
  resume(vm: DiskVm, spec: MachineSpec): void {
    for (const { name, volume } of claimsOf(spec)) this.#holders.set(volume, { vm, name });
  }

  /** @throws ProviderError unavailable when it is not known which VM has it; Error when its guest does not follow */
  async grow(id: string, sizeBytes: number, signal: AbortSignal): Promise<void> {
    const holder = this.#holders.get(id);
    if (holder === undefined)
      throw new ProviderError("unavailable", `volume ${id} is being attached or detached`, { retryAfterMs: 1_000 });
    const { vm, name } = holder;
    const serial = serialOf(id);
    using qmp = await Qmp.open(vm.qmp, signal);
    await qmp.execute("block_resize", { "node-name": serial, size: sizeBytes });
    await vm.control.run([["grow", name, serial]], signal);
  }

  /**
   * The devices that a container has of its machine's volumes, by the numbers that they have in the guest.
   * @throws ContainerError for a volume that is none, or a guest that tells no numbers
   */
  async devices(
    spec: MachineSpec,
    { name, devices = [] }: Pick<ContainerSpec, "name" | "devices">,
    ask: (command: GuestCommand) => Promise<string>,
  ): Promise<OciDevices> {
    const nodes = [];
    for (const { volume, path } of devices) {
      const claim = claimsOf(spec).find((each) => each.name === volume);
      if (claim === undefined || this.#diskOf(claim.volume).mode !== "block")
        throw new ContainerError(
          "CreateContainerConfigError",
          `container ${name}: volume ${JSON.stringify(volume)} is no block device`,
        );
      const [, major, minor] = NUMBERS.exec(await ask(["device", serialOf(claim.volume)])) ?? [];
      if (major === undefined || minor === undefined)
        throw new ContainerError("CreateContainerError", `container ${name}: the guest does not tell of its disks`);
      const numbers = { type: "b", major: Number(major), minor: Number(minor) } as const;
      const access = claim.readOnly ? "r" : "rw";
      nodes.push({ ...numbers, fileMode: 0o660, uid: 0, gid: 0, path, hostPath: path, access });
    }
    return nodes;
  }

  /** Their VM is no more. */
  forget(spec: MachineSpec): void {
    for (const { volume } of claimsOf(spec)) this.#holders.delete(volume);
  }

  async #plug({ qmp: socket }: Pick<DiskVm, "qmp">, disk: Disk, signal: AbortSignal): Promise<void> {
    using connection = await this.#give(socket, disk, signal);
    await attachLasting(connection.qmp, disk);
  }

  /**
   * What its last machine has left in the journal is put in place. Nothing of a container runs in this guest yet, so
   * nobody writes anything else.
   */
  async #recover(
    vm: DiskVm,
    volume: string,
    { serial, file, set }: Omit<Disk, "readOnly">,
    signal: AbortSignal,
  ): Promise<void> {
    const disk = { serial: `r${serial.slice(1)}`, file, set: set + RECOVERY_SETS, readOnly: false };
    await this.#plug(vm, disk, signal);
    await vm.control.run([["check", volume, disk.serial]], signal);
    using qmp = await Qmp.open(vm.qmp, signal);
    await detachLasting(qmp, disk.serial, this.#clock, signal);
  }

  /** A connection to QEMU's control socket that has brought the file. */
  async #give(
    socket: string,
    { file, readOnly }: Pick<Disk, "file" | "readOnly">,
    signal: AbortSignal,
  ): Promise<{ qmp: Qmp } & Disposable> {
    const child = spawn(join(this.#guestDir, "give"), [socket, file, readOnly ? "read" : "write"], { env: {} });
    let complaint = "";
    child.stderr.setEncoding("utf8").on("data", (text: string) => {
      if (complaint.length < MAX_COMPLAINT_CHARS) complaint += text;
    });
    child.stdin.on("error", () => undefined);
    const failed = new Promise<never>((_, reject) => child.once("error", reject));
    failed.catch(() => undefined);
    const stream = Duplex.from({ writable: child.stdin, readable: child.stdout });
    stream.on("error", () => undefined);
    try {
      const qmp = await Promise.race([Qmp.over(stream, signal), failed]);
      return { qmp, [Symbol.dispose]: () => (qmp.close(), void child.kill("SIGKILL")) };
    } catch (thrown) {
      stream.destroy();
      child.kill("SIGKILL");
      throw new Error(`a disk cannot be given to QEMU: ${complaint.trim() || toError(thrown).message}`, {
        cause: thrown,
      });
    }
  }
}

/** Whether the machine may write to what outlives it: disks, and folders of NFS servers. */
export const writesOutside = ({ volumes = [] }: Pick<MachineSpec, "volumes">): boolean =>
  volumes.some((volume) => (volume.type === "persistent" || volume.type === "nfs") && volume.read_only !== true);

/**
 * Ends all that runs in the guest, and has it write back what it has of disks and folders that outlive it. A guest that
 * does not, has lost what it had not written, as by a loss of power. Never rejects.
 */
export async function releaseDisks(
  vm: Pick<DiskVm, "control"> & { readonly processorMs: number | undefined; readonly alive: boolean },
  { spec, clock, logger, id }: { spec: MachineSpec; clock: Clock; logger: Logger; id: string },
): Promise<void> {
  if (!writesOutside(spec) || !vm.alive) return;
  using patience = patienceFor(() => vm.processorMs, RELEASE, clock);
  try {
    await vm.control.run([["release"]], patience.signal);
  } catch (thrown) {
    logger.warn(
      { machine: id, err: thrown },
      "A guest has not given back the machine's volumes: what it had not written to them yet is lost",
    );
  }
}

const claimsOf = (spec: MachineSpec): Claim[] =>
  volumeClaims(spec).map(({ claim: { name, volume, read_only, mount_options = [] } }) => ({
    name,
    volume,
    readOnly: read_only === true,
    mountOptions: mount_options,
  }));

/** Of the disk that a volume is; two have not the same. */
function serialOf(volume: string): string {
  return `v${createHash("sha256").update(volume).digest("hex").slice(0, 18)}`;
}
