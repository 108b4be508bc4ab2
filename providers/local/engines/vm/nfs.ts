/**
 * Folders of NFS servers, which a guest mounts itself: its kernel speaks with the server, from the machine's address
 * and under the rules of its network, and a server that falls silent holds up this machine alone.
 */
import { Resolver } from "node:dns/promises";
import { isIP } from "node:net";
import { type MachineSpec, onAbort, ProviderError, toError, type Volume } from "../../../../src/provider/kit/index.ts";
import type { GuestCommand } from "./control.ts";

type NfsVolume = Extract<Volume, { type: "nfs" }>;

/** Newest first: a server says which one it does not have. */
const VERSIONS = ["4.2", "4.1", "4.0"];
/** What mount.nfs keeps for itself, and what is told here in any case. */
const NOT_THE_KERNELS =
  /^(?:bg|fg|defaults|nofail|auto|noauto|_netdev|users?|group|owner|ro|rw|(?:retry|addr|clientaddr)=.*)$/;
/** Version 3 wants programs for locks, Kerberos one for its tickets, which a guest does not have. */
const REFUSED =
  /^(?:(?:nfs)?vers=(?!4(?:\.[0-2])?$)|v[23]$|mount(?:addr|host|port|proto|vers)=|sec=(?!sys$|none$)|(?:proto=rdma|rdma)\b)/;
const VERSION = /^(?:nfs)?vers=(4(?:\.[0-2])?)$/;
const LOOKUP = { timeout: 3_000, tries: 2 };

/** @throws ProviderError invalid for an option that a guest does not have */
export function assertNfsOptions(spec: Pick<MachineSpec, "volumes">): void {
  for (const [index, volume] of (spec.volumes ?? []).entries())
    for (const option of (volume.type === "nfs" && volume.mount_options) || [])
      if (REFUSED.test(option))
        throw new ProviderError(
          "invalid",
          `the mount option ${option} is not to be had: guests have NFS 4.0 to 4.2 over TCP, with sec=sys`,
          { field: `volumes.${index}.mount_options` },
        );
}

/**
 * @param address the machine's own
 * @throws Error that names the volume whose server is not known
 */
export async function nfsCommands(
  { volumes = [] }: Pick<MachineSpec, "volumes">,
  address: string,
  signal: AbortSignal,
): Promise<GuestCommand[]> {
  const shares = volumes.filter((volume) => volume.type === "nfs");
  const servers = new Map<string, Promise<string>>();
  for (const { server } of shares) servers.set(server, servers.get(server) ?? addressOf(server, signal));
  return await Promise.all(
    shares.map(async (share) => {
      try {
        return nfsCommand(share, await servers.get(share.server)!, address);
      } catch (thrown) {
        const why = `the NFS server ${share.server} is not known: ${toError(thrown).message}`;
        throw new Error(`volume ${share.name}: ${why}`, { cause: thrown });
      }
    }),
  );
}

/** @internal */
export function nfsCommand(
  { name, server, path, read_only, mount_options = [] }: NfsVolume,
  serverAddress: string,
  address: string,
): GuestCommand {
  const asked = mount_options.flatMap((option) => VERSION.exec(option)?.[1] ?? []).at(-1);
  const versions = asked === undefined ? VERSIONS : asked === "4" ? VERSIONS : [asked];
  const rest = mount_options.filter((option) => !NOT_THE_KERNELS.test(option) && !VERSION.test(option));
  const isReadOnly = read_only === true || mount_options.includes("ro");
  const options = [
    ...[isReadOnly ? "ro" : "rw", "nosuid", "nodev", ...rest],
    ...[`addr=${serverAddress}`, ...(isIP(serverAddress) === 4 ? [`clientaddr=${address}`] : [])],
  ];
  const host = isIP(server) === 6 ? `[${server}]` : server;
  return ["nfs", name, `${host}:${path}`, options.join(","), ...versions];
}

/** By the host's name servers, as a kubelet's mount has it; no thread of this process waits for them. */
async function addressOf(server: string, signal: AbortSignal): Promise<string> {
  const bare = server.replace(/^\[(.*)\]$/, "$1");
  if (isIP(bare) !== 0) return bare;
  const resolver = new Resolver(LOOKUP);
  using _ = onAbort(signal, () => resolver.cancel());
  const addresses = await resolver.resolve4(server).catch(() => []);
  const [found] = addresses.length > 0 ? addresses : await resolver.resolve6(server);
  if (found === undefined) throw new Error("it has no address");
  return found;
}
