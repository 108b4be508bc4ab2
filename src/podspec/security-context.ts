/** The security context that holds for a container: its own merged with its pod's (pkg/securitycontext). */
import type { Container, Pod } from "../kube/wire.ts";

type SecurityContext = NonNullable<Container["securityContext"]>;

type AppArmorProfile = NonNullable<SecurityContext["appArmorProfile"]>;

/** What pods said before there was a field, which a pod from a file of a kubelet's may still say. */
const ANNOTATION_APPARMOR = "container.apparmor.security.beta.kubernetes.io/";
const LOCALHOST = "localhost/";

/** The container's own settings win over the pod's, field by field. */
export function effectiveSecurityContext(
  pod: Pod,
  container: Pick<Container, "name" | "securityContext">,
): SecurityContext {
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
      // In a kubelet's order (pkg/security/apparmor).
      appArmorProfile: own.appArmorProfile ?? annotatedProfile(pod, container.name) ?? fromPod?.appArmorProfile,
    }),
  };
}

function annotatedProfile(pod: Pod, container: string): AppArmorProfile | undefined {
  const value = pod.metadata?.annotations?.[ANNOTATION_APPARMOR + container];
  if (value === "runtime/default") return { type: "RuntimeDefault" };
  if (value === "unconfined") return { type: "Unconfined" };
  return value?.startsWith(LOCALHOST)
    ? { type: "Localhost", localhostProfile: value.slice(LOCALHOST.length) }
    : undefined;
}

/** Where a pod asks for more than no profile, as a kubelet sees it: also where each container has another wish. */
export function appArmorPaths(pod: Pod): string[] {
  const wants = (context: { appArmorProfile?: { type: string } | undefined } | undefined) =>
    context?.appArmorProfile !== undefined && context.appArmorProfile.type !== "Unconfined";
  const { initContainers = [], containers = [] } = pod.spec ?? {};
  const own = Object.entries({ initContainers, containers }).flatMap(([key, list]) =>
    list.flatMap((container, index) =>
      wants(container.securityContext) ? [`spec.${key}[${index}].securityContext.appArmorProfile`] : [],
    ),
  );
  const annotated = Object.entries(pod.metadata?.annotations ?? {}).filter(
    ([name, value]) => name.startsWith(ANNOTATION_APPARMOR) && value !== "unconfined",
  );
  return [
    ...(wants(pod.spec?.securityContext) ? ["spec.securityContext.appArmorProfile"] : []),
    ...own,
    ...annotated.map(([name]) => `metadata.annotations[${name}]`),
  ];
}

/** Drops the keys whose value is undefined or null: absent fields stay absent in the machine's spec. */
export function pickDefined<T extends object>(fields: T): { [K in keyof T]?: Exclude<T[K], undefined | null> } {
  const picked: Record<string, unknown> = {};
  for (const key of Object.keys(fields)) {
    const value = (fields as Record<string, unknown>)[key];
    if (value !== undefined && value !== null) picked[key] = value;
  }
  return picked as { [K in keyof T]?: Exclude<T[K], undefined | null> };
}
