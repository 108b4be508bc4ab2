/** Persistent volumes, claims and certificates of pods in tests that are about something else: read from the same API server, always told of. */
import type { Kube } from "../../src/kube/kube.ts";
import { PodClaims } from "../../src/podspec/references/claims.ts";
import { PodCsiVolumes } from "../../src/podspec/references/csi-volumes.ts";
import { PodDisks } from "../../src/podspec/references/disks.ts";
import { PodCertificates } from "../../src/podspec/references/pod-certificates.ts";
import { silentLogger } from "../../src/telemetry/logger.ts";
import type { Clock } from "../../src/util/clock.ts";

export function disksFrom(parts: { kube: Kube; clock: Clock; onChange?: (podUid: string) => void }): PodDisks {
  return new PodDisks({
    onChange: () => undefined,
    ...parts,
    nodeName: "burst-0",
    reservation: "cluster.burst-0",
    tokens: { issueOne: () => Promise.reject(new Error("no tokens are issued here")) },
    use: {
      claim: () => true,
      isOthers: () => false,
      isHeldByOthers: () => Promise.resolve(false),
      release: () => undefined,
    },
    random: () => 0,
  });
}

/** The same for claims. */
export function claimsFrom(parts: { kube: Kube; clock: Clock; onChange?: (podUid: string) => void }): PodClaims {
  return new PodClaims({ onChange: () => undefined, ...parts, random: () => 0 });
}

/** And for inline volumes of CSI drivers, which get no tokens. */
export function csiFrom(parts: { kube: Kube; clock: Clock; onChange?: (podUid: string) => void }): PodCsiVolumes {
  const tokens = { issueOne: () => Promise.reject(new Error("no tokens are issued here")) };
  return new PodCsiVolumes({ onChange: () => undefined, tokens, ...parts, random: () => 0 });
}

/** And for certificates of pods. */
export function certificatesFrom(parts: {
  kube: Kube;
  clock: Clock;
  onChange?: (podUid: string) => void;
}): PodCertificates {
  const none = { node: () => undefined, onChange: () => undefined, event: () => undefined };
  return new PodCertificates({ ...none, ...parts, nodeName: "n", random: () => 0, logger: silentLogger });
}
