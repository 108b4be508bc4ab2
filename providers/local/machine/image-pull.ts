/** From a container's image to files on this host, by its pull policy. */
import {
  type Clock,
  type ContainerSpec,
  type PullPolicy,
  type RegistryAuth,
  toError,
} from "../../../src/provider/kit/index.ts";
import { ContainerError, type ImageStore, type PreparedImage } from "../engine.ts";

type Notify = (type: "Normal" | "Warning", reason: string, message: string) => void;

/**
 * Kubernetes' default: a moving tag is asked for each time.
 * @internal
 */
export function pullPolicy(container: Pick<ContainerSpec, "image" | "pull_policy">): PullPolicy {
  if (container.pull_policy !== undefined) return container.pull_policy;
  const name = container.image.slice(container.image.lastIndexOf("/") + 1);
  if (name.includes("@")) return "if_not_present";
  return !name.includes(":") || name.endsWith(":latest") ? "always" : "if_not_present";
}

/**
 * An image ready for use, by the container's pull policy and with kubelet's events
 * (pkg/kubelet/images/image_manager.go).
 * @throws ContainerError ErrImagePull, ErrImageNeverPull or the store's own reason.
 */
export async function obtainImage(
  images: ImageStore,
  container: Pick<ContainerSpec, "image" | "pull_policy">,
  auth: readonly RegistryAuth[],
  { clock, notify, tenant, signal }: { clock: Clock; notify: Notify; tenant: string; signal: AbortSignal },
): Promise<PreparedImage> {
  const { image } = container;
  const policy = pullPolicy(container);
  if (policy !== "always") {
    const found = await images.find(image, auth);
    if (found !== undefined) {
      const { sizeBytes: _, ...prepared } = found;
      notify(
        "Normal",
        "Pulled",
        `Container image "${image}" already present on machine and can be accessed by the pod`,
      );
      return prepared;
    }
  }
  if (policy === "never") {
    const message = `Container image "${image}" is not present with pull policy of Never`;
    notify("Warning", "ErrImageNeverPull", message);
    throw new ContainerError("ErrImageNeverPull", message);
  }
  notify("Normal", "Pulling", `Pulling image "${image}"`);
  const begun = clock.monotonic();
  try {
    const { sizeBytes, ...pulled } = await images.pull(image, { auth, tenant, signal });
    const seconds = ((clock.monotonic() - begun) / 1000).toFixed(3);
    notify(
      "Normal",
      "Pulled",
      `Successfully pulled image "${image}" in ${seconds}s (${seconds}s including waiting). Image size: ${sizeBytes} bytes.`,
    );
    return pulled;
  } catch (thrown) {
    const cause = toError(thrown);
    const reason = thrown instanceof ContainerError ? thrown.reason : "ErrImagePull";
    notify("Warning", "Failed", `Failed to pull image "${image}": ${cause.message}`);
    throw new ContainerError(reason, cause.message, { cause });
  }
}
