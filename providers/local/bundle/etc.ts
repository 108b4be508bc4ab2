/**
 * The small files of a machine that its containers write to: /etc/hosts, hostname and resolv.conf, which all share, and
 * a termination message per container. They lie on a small tmpfs: no limit of storage is measured there, and memory
 * that a container fills it with counts as that container's own (CVE-2020-8557).
 */
import { chmod, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { ContainerSpec, MachineSpec } from "../../../src/provider/kit/index.ts";
import { bind, type OciMount } from "./bundle.ts";
import { hostResolvConf } from "./host-resolv.ts";
import { hostsFile, resolvConf } from "./host-files.ts";
import { readTextInRoot } from "./root-path.ts";
import type { ContainerRef } from "../engine.ts";
import { readFileIfExists } from "../host/files.ts";
import { mountTmpfs } from "../host/mounts.ts";

/** Besides what is in the files when they are made. */
const SPARE_BYTES = 8 * 1024 * 1024;
const LONGEST_ADDRESSES = ["255.255.255.255", `${"ffff:".repeat(7)}ffff`];
const DEFAULT_MESSAGE_PATH = "/dev/termination-log";
const MAX_MESSAGE_BYTES = 4096;

/**
 * @param dir an empty folder, which is made a mount
 * @param addresses undefined while the machine has none: `writeHosts` follows
 */
export async function makeEtc(
  dir: string,
  spec: MachineSpec,
  { hostname, addresses }: { hostname: string; addresses: readonly string[] | undefined },
): Promise<void> {
  const files = {
    hosts: hostsFile(spec, addresses ?? LONGEST_ADDRESSES, await hostsOfHost(spec)),
    hostname: `${hostname}\n`,
    "resolv.conf": resolvConf(spec.dns) ?? (await hostResolvConf()),
  };
  const bytes = Object.values(files).reduce((sum, text) => sum + Buffer.byteLength(text), 0);
  await mountTmpfs(dir, { sizeBytes: bytes + SPARE_BYTES, mode: "755" });
  for (const [name, text] of Object.entries(files))
    if (name !== "hosts" || addresses !== undefined) await writeFile(join(dir, name), text);
}

/** Once the machine has an address, or is known to have none of its own. */
export async function writeHosts(dir: string, spec: MachineSpec, addresses: readonly string[]): Promise<void> {
  await writeFile(join(dir, "hosts"), hostsFile(spec, addresses, await hostsOfHost(spec)));
}

/** Undefined for a machine with a network of its own. */
async function hostsOfHost({ host }: MachineSpec): Promise<string | undefined> {
  return host?.network === true ? ((await readFileIfExists("/etc/hosts")) ?? "") : undefined;
}

/** Makes the container's message file, and says how that and the shared files are mounted. */
export async function etcMounts(
  dir: string,
  container: Pick<ContainerRef, "id">,
  spec: ContainerSpec,
): Promise<OciMount[]> {
  const message = join(dir, messageFile(container));
  await writeFile(message, "");
  await chmod(message, 0o666);
  return [
    ...["hosts", "hostname", "resolv.conf"].map((name) =>
      bind(join(dir, name), `/etc/${name}`, spec.security?.read_only_root === true),
    ),
    bind(message, spec.termination_message?.path || DEFAULT_MESSAGE_PATH, false),
  ];
}

/** A container's last words: of a long message kubelet keeps the end. */
export function readMessage(dir: string, container: Pick<ContainerRef, "id">): string {
  return readTextInRoot(dir, messageFile(container), { maxBytes: MAX_MESSAGE_BYTES, part: "last" });
}

export async function removeMessage(dir: string, container: Pick<ContainerRef, "id">): Promise<void> {
  await rm(join(dir, messageFile(container)), { force: true });
}

function messageFile({ id }: Pick<ContainerRef, "id">): string {
  return `message-${id}`;
}
