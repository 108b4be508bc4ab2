/** A machine as a pod sandbox, in the words of CRI: pure, and the same for the same machine each time. */
import { dirname } from "node:path";
import {
  containersOf,
  LABEL_NAMESPACE,
  LABEL_POD,
  LABEL_UID,
  type MachineSpec,
} from "../../../../src/provider/kit/index.ts";
import { cgroupVersion } from "../../bundle/cgroup.ts";
import { kernelHostname } from "../../bundle/host-files.ts";
import type { MachineHome } from "../../engine.ts";
import { containerPorts } from "../../network/host-ports.ts";
import { Protocol, SecurityProfile_ProfileType, type UserNamespace } from "./api.gen.js";
import { namespaces, sandboxResources } from "./container-config.ts";
import type { CriContext } from "./context.ts";
import { LABEL_BACKEND, LABEL_MACHINE } from "./labels.ts";

/** Of sandboxes that are of no pod. */
const NAMESPACE = "vmlet";
const PROTOCOLS = { tcp: Protocol.TCP, udp: Protocol.UDP, sctp: Protocol.SCTP };

/** The labels of all that belongs to a machine. */
export function machineLabels({ backend }: Pick<CriContext, "backend">, id: string): Record<string, string> {
  return { [LABEL_BACKEND]: backend, [LABEL_MACHINE]: id };
}

/**
 * By the pod's own name, as a kubelet: network plugins look the pod up by it. What is not an agent's machine, whose id
 * ends with its pod's UID, has its id: the runtime makes no two sandboxes of one name.
 */
function sandboxName({ id, spec }: Pick<MachineHome, "id" | "spec">) {
  const { [LABEL_POD]: name, [LABEL_NAMESPACE]: namespace, [LABEL_UID]: uid } = spec.labels;
  if (!name || !namespace || !uid || !id.endsWith(`-${uid}`))
    return { name: id, uid: id, namespace: NAMESPACE, attempt: 0 };
  return { name, uid, namespace, attempt: 0 };
}

/** As plugins of the cluster's network are told of them (containerd: sandbox_run.go `cniNamespaceOpts`). */
function bandwidthAnnotations({ bandwidth }: MachineSpec): Record<string, string> {
  const { ingress_bits_per_second: ingress, egress_bits_per_second: egress } = bandwidth ?? {};
  return {
    ...(ingress === undefined ? {} : { "kubernetes.io/ingress-bandwidth": String(ingress) }),
    ...(egress === undefined ? {} : { "kubernetes.io/egress-bandwidth": String(egress) }),
  };
}

/** @param users of the machine, when they are not the host's */
export function sandboxConfig(context: CriContext, { id, spec, dir }: MachineHome, users: UserNamespace | undefined) {
  const { groups, network } = context;
  return {
    metadata: sandboxName({ id, spec }),
    // On the host's network it has the host's.
    hostname: spec.host?.network === true ? "" : kernelHostname(spec, id),
    logDirectory: dirname(dir),
    labels: machineLabels(context, id),
    // On a bridge of ours the limits are ours as well.
    annotations: network === undefined ? bandwidthAnnotations(spec) : {},
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
