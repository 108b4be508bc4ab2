/**
 * The container that runs once in each template: what a container's start loads is then in memory, and the runtime has
 * compiled the usual seccomp profile, which takes it a fifth of a second in an emulated processor. No container of a
 * pod has run there, so the filter can be trusted.
 */
import { randomUUID } from "node:crypto";
import { bind, ociConfig } from "../../bundle/bundle.ts";
import { DEFAULT_CAPABILITIES } from "../../bundle/container-policy.ts";
import { seccompProfile, type SeccompSource } from "../../bundle/seccomp.ts";
import type { GuestCommand } from "./control.ts";

export interface Warming {
  command: GuestCommand;
  /** The profile of containers with the usual capabilities, as JSON. */
  seccomp: string;
}

const DIR = "/run/warm";
/** crun: the filter itself, in base64, in place of a profile. */
const FILTER = "run.oci.seccomp_bpf_data";
/** No other program's text contains it. */
const HERE = randomUUID();

export function warming(source: SeccompSource, pidsLimit: number): Warming {
  const config = ociConfig({
    spec: { name: "warm", image: "", command: ["/bin/true"] },
    image: {},
    user: { uid: 0, gid: 0, supplementalGroups: [], home: "/" },
    hostname: "",
    rootfs: `${DIR}/rootfs`,
    namespaces: [{ type: "pid" }],
    mounts: [bind("/bin", "/bin", true)],
    cgroupsPath: "/pod/warm/ctr",
    cgroupVersion: 2,
    sysctls: [],
    seccomp: (capabilities) => seccompProfile(source, capabilities, process.arch),
    pidsLimit,
    // It reads what the runtime tells it, or the runtime would meet a broken pipe.
    poststart: ["/bin/busybox", "sh", "-c", `cat > /dev/null; cp /run/crun/warm/seccomp.bpf ${DIR}/seccomp.bpf`],
  });
  return {
    command: ["warm", JSON.stringify(config)],
    seccomp: JSON.stringify(seccompProfile(source, DEFAULT_CAPABILITIES, process.arch)),
  };
}

interface OciConfig {
  linux: { seccomp?: object };
}

/**
 * A container's configuration as the arguments of the guest's `launch`: one, or what comes before the compiled filter
 * and what comes after it, when the container has the usual profile.
 */
export function configParts(config: OciConfig, warm: Warming | undefined): string[] {
  const { seccomp, ...linux } = config.linux;
  if (warm === undefined || JSON.stringify(seccomp) !== warm.seccomp) return [JSON.stringify(config)];
  return JSON.stringify({ ...config, linux, annotations: { [FILTER]: HERE } }).split(HERE);
}
