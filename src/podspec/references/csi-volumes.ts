/**
 * Inline volumes of CSI drivers (`spec.volumes[].csi`): from the pod and its driver's CSIDriver to what the machine's
 * driver is told, as a kubelet does it (pkg/volume/csi/csi_mounter.go), whose words the refusals have. The CSIDriver is
 * read by name, when a pod is to be made.
 */
import { isForbidden, saysNotFound } from "../../kube/errors.ts";
import type { Kube } from "../../kube/kube.ts";
import { resourcePath } from "../../kube/paths.ts";
import { uidOf } from "../../kube/pod.ts";
import type { CsiDriver, Pod } from "../../kube/wire.ts";
import type { Clock } from "../../util/clock.ts";
import { toError } from "../../util/errors.ts";
import type { Random } from "../../util/random.ts";
import { failure, type Result, success } from "../../util/result.ts";
import { OverBudgetError, POD_LIMITS } from "../budget.ts";
import { type PodVolume, usedVolumes } from "../pod-volumes.ts";
import type { CsiLookup, References } from "../types.ts";
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

const DEFAULT_TOKEN_SECONDS = 3600;

export class PodCsiVolumes {
  readonly #options: PodCsiVolumesOptions;
  readonly #looks: Looks;

  constructor(options: PodCsiVolumesOptions) {
    this.#options = options;
    this.#looks = new Looks(options);
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
    const driver = await this.#driver(pod, source.driver, signal);
    if (!driver.ok) return driver;
    const { podInfoOnMount, fsGroupPolicy, requiresRepublish, serviceAccountTokenInSecrets } = driver.value;
    const own = secretsOf(pod, source, secrets);
    if (!own.ok) return own;
    const tokens = await this.#tokens(pod, driver.value, signal);
    if (!tokens.ok) return tokens;
    const given = tokens.value;
    const attributes = { ...source.volumeAttributes, ...(podInfoOnMount === true && podInfo(pod)) };
    const inSecrets = serviceAccountTokenInSecrets === true ? given.attributes : {};
    return success({
      kind: "found",
      tokens: given.tokens,
      isStale: requiresRepublish === true,
      volume: {
        type: "csi",
        driver: source.driver,
        ...(source.fsType && { fs_type: source.fsType }),
        ...(source.readOnly === true && { read_only: true }),
        ...some("attributes", attributes),
        ...some("secrets", { ...own.value, ...inSecrets }),
        ...(serviceAccountTokenInSecrets !== true && some("secret_attributes", given.attributes)),
        ...(isGroupApplied(fsGroupPolicy, source) && { apply_group: true }),
      },
    });
  }

  async #driver(pod: Pod, name: string, signal: AbortSignal): Promise<Result<NonNullable<CsiDriver["spec"]>>> {
    const resource = "csidrivers";
    const refuse = (why: string) => failure(`volume mode "Ephemeral" not supported by driver ${name} (${why})`);
    try {
      const path = resourcePath({ group: "storage.k8s.io", resource, name });
      const { spec } = await this.#options.kube.request<CsiDriver>({ method: "GET", path, signal });
      const modes = spec.volumeLifecycleModes ?? [];
      return modes.includes("Ephemeral") ? success(spec) : refuse(`only supports ${JSON.stringify(modes)}`);
    } catch (thrown) {
      signal.throwIfAborted();
      if (isForbidden(thrown) && this.#looks.isEarly(uidOf(pod))) return failure("");
      if (saysNotFound(thrown, { resource, name })) return refuse("no CSIDriver object");
      return failure(`failed to check volume lifecycle mode: ${toError(thrown).message}`);
    }
  }

  /** Those that the driver asks for, as a kubelet gives them to it. */
  async #tokens(
    pod: Pod,
    { tokenRequests = [] }: NonNullable<CsiDriver["spec"]>,
    signal: AbortSignal,
  ): Promise<Result<{ tokens: string[]; attributes: Record<string, string> }>> {
    if (tokenRequests.length === 0) return success({ tokens: [], attributes: {} });
    if (tokenRequests.length > POD_LIMITS.tokens)
      return failure(`the driver asks for ${tokenRequests.length} tokens, more than ${POD_LIMITS.tokens}`);
    const issued: Record<string, { token: string; expirationTimestamp: string }> = {};
    try {
      for (const { audience, expirationSeconds = DEFAULT_TOKEN_SECONDS } of tokenRequests) {
        const wish = { audience, expirationSeconds };
        const { token, expirationTimestamp } = await this.#options.tokens.issueOne(pod, wish, signal);
        issued[audience] = { token, expirationTimestamp };
      }
    } catch (thrown) {
      signal.throwIfAborted();
      return failure(`failed to get service account token attributes: ${toError(thrown).message}`);
    }
    const tokens = Object.values(issued).map(({ token }) => token);
    return success({ tokens, attributes: { "csi.storage.k8s.io/serviceAccount.tokens": JSON.stringify(issued) } });
  }
}

/** Left out when there is nothing in it. */
function some<K extends string>(
  key: K,
  values: Readonly<Record<string, string>>,
): { [key in K]?: Record<string, string> } {
  return Object.keys(values).length === 0 ? {} : ({ [key]: values } as { [key in K]: Record<string, string> });
}

/** kubelet: getPodInfoAttrs. */
function podInfo({ metadata, spec }: Pod): Record<string, string> {
  return {
    "csi.storage.k8s.io/pod.name": metadata?.name ?? "",
    "csi.storage.k8s.io/pod.namespace": metadata?.namespace ?? "",
    "csi.storage.k8s.io/pod.uid": metadata?.uid ?? "",
    "csi.storage.k8s.io/serviceAccount.name": spec?.serviceAccountName ?? "",
    "csi.storage.k8s.io/ephemeral": "true",
  };
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
  const text = ([key, value]: [string, string]) => [key, Buffer.from(value, "base64").toString("utf8")] as const;
  return success(Object.fromEntries(Object.entries(found.object.data ?? {}).map(text)));
}
