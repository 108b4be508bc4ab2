/** A machine as a pod sandbox, in the words of CRI: pure, and the same for the same machine each time. */
import { dirname } from "node:path";
import { containersOf } from "../../../../src/provider/kit/index.ts";
import { cgroupVersion } from "../../bundle/cgroup.ts";
import { kernelHostname } from "../../bundle/host-files.ts";
import type { MachineHome } from "../../engine.ts";
import { containerPorts } from "../../network/host-ports.ts";
import { Protocol, SecurityProfile_ProfileType, type UserNamespace } from "./api.gen.js";
import { namespaces, sandboxResources } from "./container-config.ts";
import type { CriContext } from "./context.ts";
import { LABEL_BACKEND, LABEL_MACHINE } from "./labels.ts";

/** Of all sandboxes: other users of the runtime see whose they are. */
const NAMESPACE = "vmlet";
const PROTOCOLS = { tcp: Protocol.TCP, udp: Protocol.UDP, sctp: Protocol.SCTP };

/** The labels of all that belongs to a machine. */
export function machineLabels({ backend }: Pick<CriContext, "backend">, id: string): Record<string, string> {
  return { [LABEL_BACKEND]: backend, [LABEL_MACHINE]: id };
}

/** @param users of the machine, when they are not the host's */
export function sandboxConfig(context: CriContext, { id, spec, dir }: MachineHome, users: UserNamespace | undefined) {
  const { groups, network } = context;
  return {
    metadata: { name: id, uid: id, namespace: NAMESPACE, attempt: 0 },
    // On the host's network it has the host's.
    hostname: spec.host?.network === true ? "" : kernelHostname(spec, id),
    logDirectory: dirname(dir),
    labels: machineLabels(context, id),
    ...(spec.dns === undefined
      ? {}
      : { dnsConfig: { servers: spec.dns.nameservers, searches: spec.dns.searches, options: spec.dns.options } }),
    // On a bridge of ours host ports are ours as well.
    portMappings:
      network !== undefined || spec.host?.network === true
        ? []
        : containerPorts(spec).flatMap(({ protocol, port, host_port, host_ip }) =>
            host_port === undefined
              ? []
              : [{ protocol: PROTOCOLS[protocol], containerPort: port, hostPort: host_port, hostIp: host_ip ?? "" }],
          ),
    linux: {
      cgroupParent: groups.parentOf(id),
      resources: sandboxResources(spec, cgroupVersion()),
      sysctls: Object.fromEntries((spec.security?.sysctls ?? []).map(({ name, value }) => [name, value])),
      securityContext: {
        // The runtime admits privileged containers to such a sandbox only.
        privileged: containersOf(spec).some((container) => container.spec.security?.privileged === true),
        namespaceOptions: namespaces(spec, { users }),
        seccomp: { profileType: SecurityProfile_ProfileType.RuntimeDefault },
      },
    },
  };
}
