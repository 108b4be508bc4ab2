/** What the runtime says of a sandbox beyond CRI; containerd and CRI-O have it, in part. */
import { ProviderError } from "../../../../src/provider/kit/index.ts";
import { PodSandboxState } from "./api.gen.js";
import { type CriClient, isNotFound } from "./client.ts";

const QUICK_CALL_MS = 10_000;

interface SandboxInfo {
  /** Of its first process, as it is now. */
  status?: string;
  cniResult?: { Interfaces?: Record<string, { Mac?: string; Sandbox?: string }> };
  /** In OCI terms, as it was made. */
  runtimeSpec?: { linux?: { namespaces?: { type?: string; path?: string }[] } };
}

export function sandboxInfo(info: Record<string, string>): SandboxInfo {
  return JSON.parse(info["info"] ?? "{}") as SandboxInfo;
}

/** The two ends of the link that the network's plugin has made. */
export function interfacesOf({ cniResult }: SandboxInfo): { link: string; mac: string } {
  const all = Object.entries(cniResult?.Interfaces ?? {});
  const mac = all.find(([name]) => name === "eth0")?.[1].Mac;
  const link = all.find(([name, { Sandbox = "" }]) => Sandbox === "" && name.startsWith("veth"))?.[0];
  if (mac === undefined || link === undefined)
    throw new Error("the runtime does not say what its network plugin has made: containerd 2.0 or newer is needed");
  return { link, mac };
}

/** Path of the sandbox's network namespace. @throws ProviderError unavailable */
export function networkNamespace({ runtimeSpec }: SandboxInfo): string {
  const path = runtimeSpec?.linux?.namespaces?.find(({ type }) => type === "network")?.path;
  if (path === undefined)
    throw new ProviderError("unavailable", "the runtime does not say which network namespace the machine has");
  return path;
}

/**
 * Whether a sandbox is there. containerd 2.2 says "not ready" also of one whose shim it could not ask while it started
 * (podsandbox/recover.go: StateUnknown), and says so from then on; what it is now, is in the information beside it.
 * @throws what the runtime says: then nothing is known
 */
export async function isRunning(client: CriClient, podSandboxId: string, signal?: AbortSignal): Promise<boolean> {
  try {
    const asked = { podSandboxId, verbose: true };
    const { status, info } = await client.runtime.podSandboxStatus(asked, client.within(QUICK_CALL_MS, signal));
    if (status?.state === PodSandboxState.SANDBOX_READY) return true;
    return sandboxInfo(info).status === "running";
  } catch (thrown) {
    if (isNotFound(thrown)) return false;
    throw thrown;
  }
}
