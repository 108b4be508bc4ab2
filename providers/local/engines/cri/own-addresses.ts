/** Where a machine is reached, and what it is told of that. */
import type { MachineSpec } from "../../../../src/provider/kit/index.ts";
import type { PodSandboxStatus } from "./api.gen.js";
import type { CriContext } from "./context.ts";
import { networkNamespace, sandboxInfo } from "./sandbox-info.ts";

export interface OwnAddresses {
  /** Where the host reaches it; none on the host's own network. */
  inner: string | undefined;
  /** What it is told, and others are. */
  shown: readonly string[];
}

interface RuntimeWord {
  status: PodSandboxStatus | undefined;
  /** What the runtime says beyond CRI. */
  info: Record<string, string>;
  signal?: AbortSignal;
}

/** Whether what the runtime says beyond CRI is needed of a sandbox. */
export const wantsInfo = ({ network, frontDoor }: Pick<CriContext, "network" | "frontDoor">): boolean =>
  network !== undefined || frontDoor !== undefined;

export async function ownAddresses(
  { frontDoor, network }: Pick<CriContext, "frontDoor" | "network">,
  spec: MachineSpec,
  { status, info, signal }: RuntimeWord,
): Promise<OwnAddresses> {
  const own = onItsNetwork(spec, status);
  const [inner] = own;
  if (inner === undefined) return { inner, shown: own };
  if (frontDoor === undefined)
    return { inner, shown: network === undefined || inner === "" ? own : network.addressesOf(inner) };
  return {
    inner,
    shown: [await frontDoor.lead({ address: inner, netns: networkNamespace(sandboxInfo(info)) }, signal)],
  };
}

/** On the runtime's network; none on the host's, and none when the runtime has given it none. */
export function addressOnNetwork(spec: MachineSpec, status: PodSandboxStatus | undefined): string | undefined {
  return onItsNetwork(spec, status).find((each) => each !== "");
}

/** None on the host's. */
function onItsNetwork({ host }: MachineSpec, status: PodSandboxStatus | undefined): string[] {
  if (host?.network === true) return [];
  return [status?.network?.ip ?? "", ...(status?.network?.additionalIps ?? []).map(({ ip }) => ip)];
}
