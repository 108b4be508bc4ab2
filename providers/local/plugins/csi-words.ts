/** What is said of a CSI driver that fails, in a kubelet's words and its own, without the secrets that it was given. */
import { Code, ConnectError } from "@connectrpc/connect";
import { isProviderError, ProviderError, toError } from "../../../src/provider/kit/index.ts";
import { type CsiVolume, VolumesNotReady } from "../csi-volumes.ts";

const MAX_MESSAGE_CHARS = 1024;
/** Shorter secrets are words of everyday texts: `true`, `admin`. */
const MIN_SECRET_CHARS = 8;

/**
 * What a kubelet says first of a step that fails, of a mount and of a device (operationexecutor, operation_generator:
 * GenerateMountVolumeFunc, GenerateMapVolumeFunc, and what undoes them).
 */
const STEPS = {
  stage: ["MountVolume.MountDevice failed", "MapVolume.SetUpDevice failed"],
  publish: ["MountVolume.SetUp failed", "MapVolume.MapPodDevice failed"],
  // Of a device alone.
  hold: ["MapVolume.MapBlockVolume failed", "MapVolume.MapBlockVolume failed"],
  expand: [
    "MountVolume.Setup failed while expanding volume",
    "MapVolume.MarkVolumeAsMounted failed while expanding volume",
  ],
  letGo: ["UnmapVolume.UnmapBlockVolume failed", "UnmapVolume.UnmapBlockVolume failed"],
  unpublish: ["UnmountVolume.TearDown failed", "UnmapVolume.UnmapPodDevice failed"],
  unstage: ["UnmountDevice failed", "UnmapDevice.TearDownDevice failed"],
} as const;

export type Step = keyof typeof STEPS;

const stepWords = (step: Step, isBlock: boolean): string => STEPS[step][isBlock ? 1 : 0];

/** @returns what is said of a volume that is not taken back */
export function notTakenBack(
  name: string,
  thrown: unknown,
  { step, isBlock }: { step: Step; isBlock: boolean },
): Error {
  const words = `${stepWords(step, isBlock)} for volume "${name}" : ${wordsOf(thrown)}`;
  return new Error(words.slice(0, MAX_MESSAGE_CHARS), { cause: thrown });
}

/** @param step the one that failed, unless what was thrown says it */
export function notReady(volume: CsiVolume, thrown: unknown, step: Step = "publish"): VolumesNotReady {
  if (thrown instanceof VolumesNotReady) return thrown;
  const { name, persistent } = volume;
  const words = withoutSecrets(wordsOf(thrown), volume);
  const failed = stepWords(step, persistent?.mode === "block");
  return new VolumesNotReady(`${failed} for volume "${persistent?.pv ?? name}" : ${words}`.slice(0, MAX_MESSAGE_CHARS));
}

/** kubelet: expander, isInfeasibleError: nothing that is tried again helps. */
const INFEASIBLE: ReadonlySet<Code> = new Set([Code.InvalidArgument, Code.OutOfRange, Code.NotFound]);

/** Of a volume that a machine has, and that does not grow (kubelet: expander, GenerateExpandInUseVolumeFunc). */
export function notGrown(volume: CsiVolume, thrown: unknown): ProviderError {
  if (isProviderError(thrown)) return thrown;
  const why = thrown instanceof ConnectError ? "Expander.NodeExpand failed to expand the volume : " : "";
  const words = withoutSecrets(`${why}${wordsOf(thrown)}`, volume);
  const name = volume.persistent?.pv ?? volume.name;
  const message = `NodeExpandVolume.NodeExpandVolume failed for volume "${name}" : ${words}`.slice(
    0,
    MAX_MESSAGE_CHARS,
  );
  const code = thrown instanceof ConnectError ? thrown.code : undefined;
  // The cause may have secrets in it.
  if (code === Code.FailedPrecondition) return new ProviderError("in_use", message);
  if (code !== undefined && INFEASIBLE.has(code))
    return new ProviderError("invalid", message, { field: "csi_volumes.size_bytes" });
  return new ProviderError("unavailable", message);
}

/** As Go's gRPC has it. */
function wordsOf(thrown: unknown): string {
  return thrown instanceof ConnectError
    ? `rpc error: code = ${Code[thrown.code]} desc = ${thrown.rawMessage}`
    : toError(thrown).message;
}

/** A driver's error often repeats what it was given. */
function withoutSecrets(text: string, { secrets, secret_attributes, persistent }: CsiVolume): string {
  const all = [secrets, secret_attributes, persistent?.stage_secrets, persistent?.expand_secrets];
  const values = all.flatMap((each) => Object.values(each ?? {})).filter(({ length }) => length >= MIN_SECRET_CHARS);
  // The longest first: one may be a part of another.
  return values
    .toSorted((a, b) => b.length - a.length)
    .reduce((told, value) => told.replaceAll(value, "[redacted]"), text);
}
