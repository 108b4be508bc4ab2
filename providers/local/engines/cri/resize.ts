/** New limits of a container that runs, as a kubelet brings them about: the sandbox first, where it has a size. */
import type { ContainerResources } from "../../../../src/provider/kit/index.ts";
import type { LinuxContainerResources } from "./api.gen.js";
import { type CriClient, isUnimplemented, runtimeMessage, unavailable } from "./client.ts";
import { criResources, sandboxResources } from "./container-config.ts";

const QUICK_CALL_MS = 10_000;

interface Resize {
  podSandboxId: string;
  containerId: string;
  name: string;
  resources: ContainerResources;
}

/** @throws ProviderError unavailable when the runtime cannot give the sandbox what the container is to have */
export async function resizeContainer(
  client: Pick<CriClient, "runtime" | "within">,
  { podSandboxId, containerId, name, resources }: Resize,
  { host, signal }: { host: Parameters<typeof criResources>[1]; signal: AbortSignal },
): Promise<void> {
  const linux = told(criResources({ name, resources }, host));
  const sandbox = told(sandboxResources(host.machine, host.cgroupVersion, { name, resources }));
  try {
    await client.runtime.updatePodSandboxResources(
      { podSandboxId, resources: sandbox },
      client.within(QUICK_CALL_MS, signal),
    );
  } catch (thrown) {
    // Only a machine with a kernel of its own needs it; containerd 2.2 says that it has it not by its message alone.
    if (!isUnimplemented(thrown) && !/not implemented/.test(runtimeMessage(thrown)))
      throw unavailable("the runtime cannot change the machine's size", thrown);
  }
  await client.runtime.updateContainerResources({ containerId, linux }, client.within(QUICK_CALL_MS, signal));
}

/** What has no limit any more has to be told so. */
function told(resources: LinuxContainerResources): LinuxContainerResources {
  if (resources.cpuQuota === 0n) resources.cpuQuota = -1n;
  if (resources.memoryLimitInBytes === 0n) resources.memoryLimitInBytes = -1n;
  return resources;
}
