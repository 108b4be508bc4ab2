/**
 * What is asked of the API server for a volume of a CSI driver of others, and what its driver is told of the pod: as a
 * kubelet does it (pkg/volume/csi), whose words the refusals have. A CSIDriver is read by name, when a pod is to be
 * made.
 */
import { isForbidden, saysNotFound } from "../../kube/errors.ts";
import type { Kube } from "../../kube/kube.ts";
import { resourcePath } from "../../kube/paths.ts";
import { uidOf } from "../../kube/pod.ts";
import type { CsiDriver, Pod, Secret } from "../../kube/wire.ts";
import { toError } from "../../util/errors.ts";
import { failure, type Result, success } from "../../util/result.ts";
import { POD_LIMITS } from "../budget.ts";
import type { Looks } from "./looks.ts";
import type { TokenManager } from "./tokens.ts";

export type DriverSpec = NonNullable<CsiDriver["spec"]>;
type LifecycleMode = "Ephemeral" | "Persistent";

interface CsiDriversOptions {
  kube: Kube;
  tokens: Pick<TokenManager, "issueOne">;
  looks: Pick<Looks, "isEarly">;
}

/** The tokens that a driver asks for, and where it is told of them. */
interface DriverTokens {
  tokens: string[];
  /** Of the call's attributes, or of its secrets. */
  attributes: Record<string, string>;
  secrets: Record<string, string>;
}

const DEFAULT_TOKEN_SECONDS = 3600;

export class CsiDrivers {
  readonly #options: CsiDriversOptions;

  constructor(options: CsiDriversOptions) {
    this.#options = options;
  }

  /**
   * The driver's CSIDriver. One that has none is as a kubelet takes it: for persistent volumes alone. Not ok in a
   * kubelet's words, or with an empty text: nothing is wrong yet.
   */
  async find(pod: Pod, name: string, mode: LifecycleMode, signal: AbortSignal): Promise<Result<DriverSpec>> {
    const resource = "csidrivers";
    const refuse = (why: string) => failure(`volume mode "${mode}" not supported by driver ${name} (${why})`);
    try {
      const path = resourcePath({ group: "storage.k8s.io", resource, name });
      const { spec } = await this.#options.kube.request<CsiDriver>({ method: "GET", path, signal });
      const modes = spec.volumeLifecycleModes ?? [];
      // The API server fills it in; without, it is of before there was a choice.
      const isFit = modes.includes(mode) || (mode === "Persistent" && modes.length === 0);
      return isFit ? success(spec) : refuse(`only supports ${JSON.stringify(modes)}`);
    } catch (thrown) {
      signal.throwIfAborted();
      if (this.#isNothingYet(pod, thrown)) return failure("");
      if (saysNotFound(thrown, { resource, name }))
        return mode === "Persistent" ? success({}) : refuse("no CSIDriver object");
      return failure(`failed to check volume lifecycle mode: ${toError(thrown).message}`);
    }
  }

  /** What a Secret that a PersistentVolume names has, as texts; as `find`. */
  async secret(
    pod: Pod,
    { what, namespace = "", name = "" }: { what: string; namespace?: string | undefined; name?: string | undefined },
    signal: AbortSignal,
  ): Promise<Result<Record<string, string>>> {
    const resource = "secrets";
    try {
      const path = resourcePath({ resource, namespace, name });
      return success(secretTexts(await this.#options.kube.request<Secret>({ method: "GET", path, signal })));
    } catch (thrown) {
      signal.throwIfAborted();
      if (this.#isNothingYet(pod, thrown)) return failure("");
      const why = saysNotFound(thrown, { resource, name }) ? `secrets "${name}" not found` : toError(thrown).message;
      return failure(`fetching ${what} ${namespace}/${name} failed: ${why}`);
    }
  }

  /** Those that the driver asks for, as a kubelet gives them to it. */
  async tokens(
    pod: Pod,
    { tokenRequests = [], serviceAccountTokenInSecrets }: DriverSpec,
    signal: AbortSignal,
  ): Promise<Result<DriverTokens>> {
    if (tokenRequests.length === 0) return success({ tokens: [], attributes: {}, secrets: {} });
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
    const told = { "csi.storage.k8s.io/serviceAccount.tokens": JSON.stringify(issued) };
    const tokens = Object.values(issued).map(({ token }) => token);
    const inSecrets = serviceAccountTokenInSecrets === true;
    return success({ tokens, attributes: inSecrets ? {} : told, secrets: inSecrets ? told : {} });
  }

  /** A refusal may be for no other reason than that the authorizer does not know of the pod yet. */
  #isNothingYet(pod: Pod, thrown: unknown): boolean {
    return isForbidden(thrown) && this.#options.looks.isEarly(uidOf(pod));
  }
}

/** kubelet: getPodInfoAttrs; nothing where the driver does not want it. */
export function podInfo(
  { podInfoOnMount }: DriverSpec,
  { metadata, spec }: Pod,
  mode: LifecycleMode,
): Record<string, string> {
  if (podInfoOnMount !== true) return {};
  return {
    "csi.storage.k8s.io/pod.name": metadata?.name ?? "",
    "csi.storage.k8s.io/pod.namespace": metadata?.namespace ?? "",
    "csi.storage.k8s.io/pod.uid": metadata?.uid ?? "",
    "csi.storage.k8s.io/serviceAccount.name": spec?.serviceAccountName ?? "",
    "csi.storage.k8s.io/ephemeral": String(mode === "Ephemeral"),
  };
}

export function secretTexts({ data = {} }: Pick<Secret, "data">): Record<string, string> {
  const text = ([key, value]: [string, string]) => [key, Buffer.from(value, "base64").toString("utf8")] as const;
  return Object.fromEntries(Object.entries(data).map(text));
}

/** Left out when there is nothing in it. */
export function some<K extends string>(
  key: K,
  values: Readonly<Record<string, string>>,
): { [key in K]?: Record<string, string> } {
  return Object.keys(values).length === 0 ? {} : ({ [key]: values } as { [key in K]: Record<string, string> });
}
