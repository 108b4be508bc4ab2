/** Facts about a pod's volumes that need nothing but the pod: which are used, of which kind, with which tokens. */
import { allContainersOf } from "../kube/pod.ts";
import type { Pod } from "../kube/wire.ts";
import { tokenKey, trustKey, type CertificateWish, type TokenWish, type TrustWish } from "./types.ts";

export type PodVolume = NonNullable<NonNullable<Pod["spec"]>["volumes"]>[number];

const DEFAULT_TOKEN_SECONDS = 3600;

/** The volume kinds that a machine can have. */
export const SUPPORTED_VOLUME_KINDS = [
  "configMap",
  "secret",
  "downwardAPI",
  "projected",
  "emptyDir",
  "image",
  "hostPath",
  "nfs",
  "persistentVolumeClaim",
  "ephemeral",
  "csi",
] as const;
export type VolumeKind = (typeof SUPPORTED_VOLUME_KINDS)[number];

/** The field that is set in a volume besides its name: `configMap`, `persistentVolumeClaim`... */
export function volumeKind(volume: PodVolume): string {
  return (
    Object.entries(volume).find(([key, value]) => key !== "name" && value !== undefined && value !== null)?.[0] ??
    "emptyDir"
  );
}

/** One that outlives machines: it has a claim, be it the pod's own. */
export function isClaimVolume(volume: PodVolume): boolean {
  return volume.persistentVolumeClaim !== undefined || volume.ephemeral !== undefined;
}

interface UsedVolume {
  volume: PodVolume;
  index: number;
}

/** Asked dozens of times of each copy of a pod. */
const used = new WeakMap<Pod, readonly UsedVolume[]>();
const NONE: readonly UsedVolume[] = [];

/** Volumes that a container mounts, uses as a block device or reads env from, with their indexes in the spec. */
export function usedVolumes(pod: Pod): readonly UsedVolume[] {
  const volumes = pod.spec?.volumes;
  if (volumes === undefined || volumes.length === 0) return NONE;
  let known = used.get(pod);
  if (known === undefined) used.set(pod, (known = findUsed(pod, volumes)));
  return known;
}

function findUsed(pod: Pod, volumes: readonly PodVolume[]): readonly UsedVolume[] {
  const names = new Set<string>();
  for (const container of allContainersOf(pod)) {
    for (const mount of container.volumeMounts ?? []) names.add(mount.name);
    for (const device of container.volumeDevices ?? []) names.add(device.name);
    for (const variable of container.env ?? []) {
      if (variable.valueFrom?.fileKeyRef) names.add(variable.valueFrom.fileKeyRef.volumeName);
    }
  }
  return volumes.flatMap((volume, index) => (names.has(volume.name) ? [{ volume, index }] : []));
}

/** The volume that admission adds to every pod: token, CA and namespace of its service account. */
export function isServiceAccountVolume(volume: PodVolume): boolean {
  return (
    volume.name.startsWith("kube-api-access-") &&
    (volume.projected?.sources ?? []).some((source) => source.serviceAccountToken)
  );
}

/** Tokens that the pod's volumes want. */
export function tokenWishes(pod: Pod): TokenWish[] {
  const wishes = new Map<string, TokenWish>();
  for (const { volume } of usedVolumes(pod)) {
    for (const source of volume.projected?.sources ?? []) {
      if (!source.serviceAccountToken) continue;
      const wish = tokenWish(source.serviceAccountToken);
      wishes.set(tokenKey(wish), wish);
    }
  }
  return [...wishes.values()];
}

/** The wish of one projected source, with the API server's defaults. */
export function tokenWish(source: { readonly audience?: string; readonly expirationSeconds?: number }): TokenWish {
  return { audience: source.audience ?? "", expirationSeconds: source.expirationSeconds ?? DEFAULT_TOKEN_SECONDS };
}

type ProjectedSource = NonNullable<NonNullable<PodVolume["projected"]>["sources"]>[number];

/** Trust anchors that the pod's volumes want. */
export function trustWishes(pod: Pod): TrustWish[] {
  const wishes = new Map<string, TrustWish>();
  for (const { volume } of usedVolumes(pod)) {
    for (const { clusterTrustBundle } of volume.projected?.sources ?? []) {
      const wish = clusterTrustBundle && trustWish(clusterTrustBundle);
      if (wish) wishes.set(trustKey(wish), wish);
    }
  }
  return [...wishes.values()];
}

/** Certificates that the pod's volumes want. */
export function certificateWishes(pod: Pod): CertificateWish[] {
  return usedVolumes(pod).flatMap(({ volume }) =>
    (volume.projected?.sources ?? []).flatMap(({ podCertificate }, index) => {
      if (!podCertificate) return [];
      const { signerName, keyType, maxExpirationSeconds, userAnnotations } = podCertificate;
      return [{ key: certificateKey(volume.name, index), signerName, keyType, maxExpirationSeconds, userAnnotations }];
    }),
  );
}

/** What tells the certificate of one source, by its place in the volume, from the pod's others. */
export function certificateKey(volume: string, index: number): string {
  return `${volume}/${index}`;
}

/** The wish of one projected source; the API server lets none pass that names neither. */
export function trustWish(source: NonNullable<ProjectedSource["clusterTrustBundle"]>): TrustWish | undefined {
  const { name, signerName, labelSelector } = source;
  if (name !== undefined) return { name };
  return signerName === undefined ? undefined : { signerName, labelSelector };
}
