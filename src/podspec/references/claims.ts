/**
 * The ResourceClaims of a pod (Dynamic Resource Allocation): from their names to what its machine is told, once a
 * kubelet would have them made ready: allocated, and reserved for this very pod. Read by name alone, when a pod is to
 * be made, and never listed or watched: the Node authorizer allows no more.
 */
import { isForbidden, saysNotFound } from "../../kube/errors.ts";
import type { Kube } from "../../kube/kube.ts";
import { resourcePath } from "../../kube/paths.ts";
import { controllerOf, uidOf } from "../../kube/pod.ts";
import type { Pod, ResourceClaim } from "../../kube/wire.ts";
import type { Clock } from "../../util/clock.ts";
import { toError } from "../../util/errors.ts";
import type { Random } from "../../util/random.ts";
import { failure, type Result, success } from "../../util/result.ts";
import { OverBudgetError, POD_LIMITS } from "../budget.ts";
import type { ClaimsLookup, PodClaim } from "../types.ts";
import { Looks } from "./looks.ts";

interface PodClaimsOptions {
  kube: Kube;
  clock: Clock;
  random: Random;
  /** The pod with this UID may have its claims now. */
  onChange: (podUid: string) => void;
}

type ClaimOfPod = NonNullable<NonNullable<Pod["spec"]>["resourceClaims"]>[number];

export class PodClaims {
  readonly #kube: Kube;
  readonly #looks: Looks;

  constructor(options: PodClaimsOptions) {
    this.#kube = options.kube;
    this.#looks = new Looks(options);
  }

  /**
   * All that the pod claims, or why it cannot have that yet; then it is called for again.
   *
   * @throws OverBudgetError when it has too many
   */
  async read(pod: Pod, signal: AbortSignal): Promise<ClaimsLookup> {
    const wanted = pod.spec?.resourceClaims ?? [];
    if (wanted.length === 0) return { kind: "found", claims: [] };
    if (wanted.length > POD_LIMITS.claims)
      throw new OverBudgetError(`the pod has ${wanted.length} resource claims, more than ${POD_LIMITS.claims}`);
    const uid = uidOf(pod);
    const found = await Promise.all(wanted.map((each) => this.#claim(pod, each, signal)));
    const wrong = found.find((each) => !each.ok);
    if (wrong === undefined) {
      this.#looks.forget(uid);
      return { kind: "found", claims: found.flatMap((each) => (each.ok ? (each.value ?? []) : [])) };
    }
    this.#looks.again(uid);
    return { kind: "waiting", ...(wrong.message !== "" && { message: wrong.message }) };
  }

  /** Forgets a pod that is over or gone. */
  release(podUid: string): void {
    this.#looks.forget(podUid);
  }

  close(): void {
    this.#looks.close();
  }

  /** Undefined: none was made, on purpose. Not ok in a kubelet's words, or with an empty text: nothing is wrong yet. */
  async #claim(pod: Pod, wanted: ClaimOfPod, signal: AbortSignal): Promise<Result<PodClaim | undefined>> {
    const { namespace = "", name: podName = "" } = pod.metadata ?? {};
    const named = claimName(pod, wanted);
    if (!named.ok) return named;
    const { name, isOwn } = named.value;
    if (name === undefined) return success(undefined);
    const read = await this.#get(pod, { namespace, name }, signal);
    if (!read.ok) return read;
    const { metadata, status } = read.value;
    const { uid = "" } = metadata ?? {};
    if (isOwn && controllerOf(read.value)?.uid !== uidOf(pod))
      return failure(
        `ResourceClaim ${namespace}/${name} was not created for Pod ${namespace}/${podName} (Pod is not owner)`,
      );
    if (!(status?.reservedFor ?? []).some((each) => each.uid === uidOf(pod)))
      return failure(`pod ${podName} (${uidOf(pod)}) is not allowed to use ResourceClaim ${name} (${uid})`);
    if (status?.allocation === undefined) return failure(`ResourceClaim ${name}: not allocated`);
    const drivers = (status.allocation.devices?.results ?? []).map(({ driver }) => driver);
    return success({ name: wanted.name, namespace, claim: name, uid, drivers: [...new Set(drivers)] });
  }

  async #get(
    pod: Pod,
    { namespace, name }: { namespace: string; name: string },
    signal: AbortSignal,
  ): Promise<Result<ResourceClaim>> {
    const resource = "resourceclaims";
    try {
      const path = resourcePath({ group: "resource.k8s.io", resource, namespace, name });
      return success(await this.#kube.request<ResourceClaim>({ method: "GET", path, signal }));
    } catch (thrown) {
      signal.throwIfAborted();
      if (isForbidden(thrown) && this.#looks.isEarly(uidOf(pod))) return failure("");
      const why = saysNotFound(thrown, { resource, name })
        ? `resourceclaims.resource.k8s.io "${name}" not found`
        : toError(thrown).message;
      return failure(`fetch ResourceClaim ${name}: ${why}`);
    }
  }
}

/** kubelet: resourceclaim.Name. `isOwn`: it was made for this pod. */
function claimName(pod: Pod, wanted: ClaimOfPod): Result<{ name: string | undefined; isOwn: boolean }> {
  const { namespace, name: podName } = pod.metadata ?? {};
  if (wanted.resourceClaimName) return success({ name: wanted.resourceClaimName, isOwn: false });
  if (!wanted.resourceClaimTemplateName)
    return failure(
      `pod "${namespace}/${podName}", spec.resourceClaim "${wanted.name}": none of the supported fields are set`,
    );
  const status = pod.status?.resourceClaimStatuses?.find(({ name }) => name === wanted.name);
  if (status === undefined) return failure(`pod "${namespace}/${podName}": ResourceClaim not created yet`);
  return success({ name: status.resourceClaimName, isOwn: true });
}
