/** Whether this host's guests run under KVM, or emulated. */
import { readFileSync, statSync } from "node:fs";
import { mkdir, mkdtemp, rm } from "node:fs/promises";
import { join } from "node:path";
import { findTool } from "../../host/command.ts";
import { readFileIfExists, writeFileAtomic } from "../../host/files.ts";
import { bootId } from "../../host/proc.ts";
import { qemuIdentity } from "./host-version.ts";
import { type Accelerator, killVm, Qemu, QEMU, type QemuOptions, scratchPlace } from "./qemu.ts";
import { findVm } from "./vm-processes.ts";

const KVM_PROBE_MS = 10_000;

/**
 * Whether a guest really boots under KVM: a device node that opens proves nothing. The verdict is kept in a file, for
 * this boot of the host and this device.
 */
export async function probeAccelerator(
  options: Omit<QemuOptions, "accelerator">,
  verdictFile: string,
  device = "/dev/kvm",
): Promise<Accelerator> {
  const node = statSync(device, { throwIfNoEntry: false });
  if (node === undefined) return "tcg";
  const version = readFileSync(join(options.guestDir, "version"), "utf8").trim();
  const key = `${version} ${qemuIdentity(findTool(QEMU))} ${bootId()} ${node.rdev}`;
  const verdict = await readFileIfExists(verdictFile);
  if (verdict?.startsWith(`${key}\n`) === true) return verdict.trim().endsWith("kvm") ? "kvm" : "tcg";
  const accelerator = (await bootsUnderKvm(options)) ? "kvm" : "tcg";
  await writeFileAtomic(verdictFile, `${key}\n${accelerator}\n`);
  return accelerator;
}

async function bootsUnderKvm(options: Omit<QemuOptions, "accelerator">): Promise<boolean> {
  await mkdir(options.templatesDir, { recursive: true, mode: 0o700 });
  const work = await mkdtemp(join(options.templatesDir, "p-"));
  const place = scratchPlace(work);
  const qemu = new Qemu({ ...options, accelerator: "kvm" });
  try {
    const { control } = await qemu.boot({ memoryMib: 192, cpus: 1 }, place, AbortSignal.timeout(KVM_PROBE_MS));
    control.close();
    return true;
  } catch {
    return false; // whatever went wrong, this host's KVM is not for us
  } finally {
    const vm = await findVm(place);
    if (vm !== undefined) await killVm(vm, options.clock);
    await rm(work, { recursive: true, force: true });
    await qemu.forget(work);
  }
}
