/**
 * The default seccomp profile, from the file that container tools install (containers-common: /usr/share/containers/
 * seccomp.json). Its conditions on capabilities and processors are resolved here; the runtime gets plain rules.
 */
import { goArchitecture } from "../../../src/provider/kit/index.ts";

export interface SeccompSource {
  defaultAction: string;
  defaultErrnoRet?: number;
  archMap?: { architecture: string; subArchitectures?: string[] }[];
  syscalls: {
    names: string[];
    action: string;
    args?: object[] | null;
    errnoRet?: number;
    includes?: { caps?: string[]; arches?: string[] };
    excludes?: { caps?: string[]; arches?: string[] };
  }[];
}

/** The `linux.seccomp` of an OCI configuration for a container with these capabilities. */
export function seccompProfile(source: SeccompSource, capabilities: readonly string[], nodeArch: string): object {
  const arch = goArchitecture(nodeArch);
  const applies = (rule: SeccompSource["syscalls"][number]) => {
    const { includes = {}, excludes = {} } = rule;
    if (includes.arches !== undefined && !includes.arches.includes(arch)) return false;
    if (includes.caps !== undefined && !includes.caps.every((capability) => capabilities.includes(capability)))
      return false;
    if (excludes.arches?.includes(arch)) return false;
    return !(excludes.caps ?? []).some((capability) => capabilities.includes(capability));
  };
  const native = { amd64: "SCMP_ARCH_X86_64", arm64: "SCMP_ARCH_AARCH64", s390x: "SCMP_ARCH_S390X" }[arch];
  const family = source.archMap?.find(({ architecture }) => architecture === native);
  return {
    defaultAction: source.defaultAction,
    ...(source.defaultErrnoRet === undefined ? {} : { defaultErrnoRet: source.defaultErrnoRet }),
    ...(family === undefined ? {} : { architectures: [family.architecture, ...(family.subArchitectures ?? [])] }),
    syscalls: source.syscalls.filter(applies).map(({ names, action, args, errnoRet }) => ({
      names,
      action,
      ...(args === undefined || args === null || args.length === 0 ? {} : { args }),
      ...(errnoRet === undefined ? {} : { errnoRet }),
    })),
  };
}
