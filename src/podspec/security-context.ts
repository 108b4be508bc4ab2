/** The security context that holds for a container: its own merged with its pod's (pkg/securitycontext). */
import type { Container, Pod } from "../kube/wire.ts";

type SecurityContext = NonNullable<Container["securityContext"]>;

/** The container's own settings win over the pod's, field by field. */
export function effectiveSecurityContext(pod: Pod, container: Pick<Container, "securityContext">): SecurityContext {
  const fromPod = pod.spec?.securityContext;
  const own = container.securityContext ?? {};
  return {
    ...own,
    ...pickDefined({
      runAsUser: own.runAsUser ?? fromPod?.runAsUser,
      runAsGroup: own.runAsGroup ?? fromPod?.runAsGroup,
      runAsNonRoot: own.runAsNonRoot ?? fromPod?.runAsNonRoot,
      seLinuxOptions: own.seLinuxOptions ?? fromPod?.seLinuxOptions,
      seccompProfile: own.seccompProfile ?? fromPod?.seccompProfile,
      appArmorProfile: own.appArmorProfile ?? fromPod?.appArmorProfile,
    }),
  };
}

/** Drops the keys whose value is undefined or null: absent fields stay absent in the machine's spec. */
export function pickDefined<T extends object>(fields: T): { [K in keyof T]?: Exclude<T[K], undefined | null> } {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined && value !== null)) as {
    [K in keyof T]?: Exclude<T[K], undefined | null>;
  };
}
