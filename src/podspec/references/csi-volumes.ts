/**
 * Inline volumes of CSI drivers (`spec.volumes[].csi`): from the pod and its driver's CSIDriver to what the machine's
 * driver is told, as a kubelet does it (pkg/volume/csi/csi_mounter.go), whose words the refusals have. The CSIDriver is
 * read by name, when a pod is to be made (csi-driver.ts).
 */
import type { Kube } from "../../kube/kube.ts";
import { uidOf } from "../../kube/pod.ts";
import type { Pod } from "../../kube/wire.ts";
import type { Clock } from "../../util/clock.ts";
import type { Random } from "../../util/random.ts";
import { failure, type Result, success } from "../../util/result.ts";
import { OverBudgetError, POD_LIMITS } from "../budget.ts";
import { type PodVolume, usedVolumes } from "../pod-volumes.ts";
import type { CsiLookup, References } from "../types.ts";
import { CsiDrivers, podInfo, secretTexts, some } from "./csi-driver.ts";
import { Looks } from "./looks.ts";
import type { TokenManager } from "./tokens.ts";

interface PodCsiVolumesOptions {
  kube: Kube;
  tokens: Pick<TokenManager, "issueOne">;
  clock: Clock;
  random: Random;
  /** The pod with this UID may have its volumes now. */
  onChange: (podUid: string) => void;
}

type CsiSource = NonNullable<PodVolume["csi"]>;
type Found = Extract<CsiLookup, { kind: "found" }>;

export class PodCsiVolumes {
  readonly #looks: Looks;
  readonly #drivers: CsiDrivers;

  constructor(options: PodCsiVolumesOptions) {
    this.#looks = new Looks(options);
    this.#drivers = new CsiDrivers({ ...options, looks: this.#looks });
  }

  /**
   * The pod's, by their names in it. When one cannot be had yet, the pod is called for again.
   *
   * @param references the Secrets that the pod refers to
   * @throws OverBudgetError when it has too many
   */
  async read(
    pod: Pod,
    references: Pick<References, "secrets">,
    signal: AbortSignal,
  ): Promise<ReadonlyMap<string, CsiLookup>> {
    const volumes = usedVolumes(pod).flatMap(({ volume: { name, csi } }) => (csi ? [{ name, csi }] : []));
    if (volumes.length === 0) return new Map();
    if (volumes.length > POD_LIMITS.csiVolumes)
      throw new OverBudgetError(`the pod has ${volumes.length} inline CSI volumes, more than ${POD_LIMITS.csiVolumes}`);
    const uid = uidOf(pod);
    const lookups = new Map<string, CsiLookup>();
    let isAll = true;
    for (const { name, csi } of volumes) {
      const found = await this.#volume(pod, csi, references, signal);
      isAll &&= found.ok;
      const waiting = {
        kind: "waiting" as const,
        ...(!found.ok && found.message !== "" && { message: found.message }),
      };
      lookups.set(name, found.ok ? found.value : waiting);
    }
    if (isAll) this.#looks.forget(uid);
    else this.#looks.again(uid);
    return lookups;
  }

  /** Forgets a pod that is over or gone. */
  release(podUid: string): void {
    this.#looks.forget(podUid);
  }

  close(): void {
    this.#looks.close();
  }

  /** Not ok in a kubelet's words, or with an empty text: nothing is wrong yet. */
  async #volume(
    pod: Pod,
    source: CsiSource,
    { secrets }: Pick<References, "secrets">,
    signal: AbortSignal,
  ): Promise<Result<Found>> {
    const driver = await this.#drivers.find(pod, source.driver, "Ephemeral", signal);
    if (!driver.ok) return driver;
    const { fsGroupPolicy, requiresRepublish } = driver.value;
    const own = secretsOf(pod, source, secrets);
    if (!own.ok) return own;
    const tokens = await this.#drivers.tokens(pod, driver.value, signal);
    if (!tokens.ok) return tokens;
    const given = tokens.value;
    return success({
      kind: "found",
      tokens: given.tokens,
      isStale: requiresRepublish === true,
      volume: {
        type: "csi",
        driver: source.driver,
        ...(source.fsType && { fs_type: source.fsType }),
        ...(source.readOnly === true && { read_only: true }),
        ...some("attributes", { ...source.volumeAttributes, ...podInfo(driver.value, pod, "Ephemeral") }),
        ...some("secrets", { ...own.value, ...given.secrets }),
        ...some("secret_attributes", given.attributes),
        ...(isGroupApplied(fsGroupPolicy, source) && { apply_group: true }),
      },
    });
  }
}

/** kubelet: supportsFSGroup, for an inline volume. */
function isGroupApplied(policy: string | undefined, { fsType, readOnly }: CsiSource): boolean {
  if (policy === "None" || readOnly === true) return false;
  return policy === "File" || Boolean(fsType);
}

function secretsOf(
  { metadata }: Pod,
  { nodePublishSecretRef }: CsiSource,
  secrets: References["secrets"],
): Result<Record<string, string>> {
  const name = nodePublishSecretRef?.name;
  if (!name) return success({});
  const found = secrets.get(name);
  const fetching = `fetching NodePublishSecretRef ${metadata?.namespace}/${name} failed`;
  if (found?.kind === "absent") return failure(`${fetching}: secrets "${name}" not found`);
  if (found?.kind !== "found") return failure(`${fetching}: ${found?.message ?? "not read yet"}`);
  return success(secretTexts(found.object));
}
