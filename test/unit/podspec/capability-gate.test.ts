import { describe, expect, test } from "vitest";
import { ALL_CAPABILITIES, type Capability } from "../../../src/provider/capabilities.ts";
import type { ReservedCapabilities } from "../../../src/provider/machine.ts";
import type { Pod } from "../../../src/kube/wire.ts";
import {
  capabilityWarnings,
  checkCapabilities,
  checkEphemeralContainer,
  GATED_FEATURES,
  IGNORED_FEATURES,
  REFUSED_FEATURES,
  supportTable,
} from "../../../src/podspec/admission/capability-gate.ts";
import { podWith, podWithContainer, type PodSpec } from "./fixtures.ts";

function check(
  pod: Pod,
  lacking: Capability[] = [],
  options: { allowHostPath?: boolean; agentProbes?: boolean; reserved?: ReservedCapabilities } = {},
) {
  const capabilities = new Set(ALL_CAPABILITIES.filter((capability) => !lacking.includes(capability)));
  return checkCapabilities(pod, { backend: "b", capabilities, allowHostPath: true, agentProbes: false, ...options });
}

const withMount = (mount: object): Pod =>
  podWithContainer(
    { volumeMounts: [{ name: "v", mountPath: "/v", ...mount }] },
    { volumes: [{ name: "v", emptyDir: {} }] },
  );

const mounted = (volume: object): Pod =>
  podWithContainer({ volumeMounts: [{ name: "v", mountPath: "/v" }] }, { volumes: [{ name: "v", ...volume }] });

/** One pod for every capability that a pod can need, and the path that the refusal must name. */
const NEEDS: Record<string, readonly (readonly [pod: Pod, path: string])[]> = {
  multi_container: [[podWith({ containers: [{ name: "a" }, { name: "b" }] }), "spec.containers[1]"]],
  init_containers: [[podWith({ initContainers: [{ name: "i" }] }), "spec.initContainers[0]"]],
  sidecars: [
    [podWith({ initContainers: [{ name: "i", restartPolicy: "Always" }] }), "spec.initContainers[0].restartPolicy"],
  ],
  restart_rules: [
    [podWithContainer({ restartPolicy: "Never" }), "spec.containers[0].restartPolicy"],
    [podWithContainer({ restartPolicyRules: [{ action: "Restart" }] }), "spec.containers[0].restartPolicyRules"],
  ],
  probes: [[podWithContainer({ livenessProbe: { tcpSocket: { port: 1 } } }), "spec.containers[0].livenessProbe"]],
  hooks: [[podWithContainer({ lifecycle: { preStop: { sleep: { seconds: 1 } } } }), "spec.containers[0].lifecycle"]],
  termination_message: [
    [podWithContainer({ terminationMessagePath: "/x" }), "spec.containers[0].terminationMessagePath"],
    [
      podWithContainer({ terminationMessagePolicy: "FallbackToLogsOnError" }),
      "spec.containers[0].terminationMessagePolicy",
    ],
  ],
  tty: [[podWithContainer({ tty: true }), "spec.containers[0].tty"]],
  host_ports: [
    [podWithContainer({ ports: [{ containerPort: 1, hostPort: 80 }] }), "spec.containers[0].ports[0].hostPort"],
  ],
  privileged: [
    [podWithContainer({ securityContext: { privileged: true } }), "spec.containers[0].securityContext.privileged"],
  ],
  security_context: [
    [podWithContainer({ securityContext: { runAsUser: 1 } }), "spec.containers[0].securityContext"],
    [podWith({ securityContext: { runAsNonRoot: true } }), "spec.securityContext"],
    [podWith({ securityContext: { fsGroup: 1 } }), "spec.securityContext.fsGroup"],
  ],
  sysctls: [
    [podWith({ securityContext: { sysctls: [{ name: "a", value: "1" }] } }), "spec.securityContext.sysctls[0]"],
  ],
  share_process_namespace: [[podWith({ shareProcessNamespace: true }), "spec.shareProcessNamespace"]],
  user_namespace: [[podWith({ hostUsers: false }), "spec.hostUsers"]],
  hostname: [[podWith({ subdomain: "x" }), "spec.subdomain"]],
  "volumes.csi": [[mounted({ csi: { driver: "d" } }), "spec.volumes[0].csi"]],
  resource_claims: [[podWith({ resourceClaims: [{ name: "gpu", resourceClaimName: "gpu" }] }), "spec.resourceClaims"]],
  hosts: [[podWith({ hostAliases: [{ ip: "1.1.1.1" }] }), "spec.hostAliases"]],
  dns: [
    [podWith({ dnsPolicy: "None" }), "spec.dnsPolicy"],
    [podWith({ dnsConfig: {} }), "spec.dnsConfig"],
  ],
  pod_ip: [
    [
      podWithContainer({ env: [{ name: "A", valueFrom: { fieldRef: { fieldPath: "status.podIP" } } }] }),
      "spec.containers[0].env[0]",
    ],
  ],
  ephemeral_storage_limits: [
    [
      podWithContainer({ resources: { limits: { "ephemeral-storage": "1" } } }),
      "spec.containers[0].resources.limits.ephemeral-storage",
    ],
  ],
  "volumes.nfs": [[mounted({ nfs: { server: "s", path: "/" } }), "spec.volumes[0].nfs"]],
  "volumes.empty_dir": [[mounted({ emptyDir: {} }), "spec.volumes[0].emptyDir"]],
  "volumes.empty_dir.size_limit": [[mounted({ emptyDir: { sizeLimit: "1" } }), "spec.volumes[0].emptyDir.sizeLimit"]],
  env_files: [
    [
      podWithContainer({ env: [{ name: "A", valueFrom: { fileKeyRef: { key: "k", path: "p", volumeName: "v" } } }] }),
      "spec.containers[0].env[0].valueFrom.fileKeyRef",
    ],
  ],
  "volumes.files": [
    [mounted({ configMap: { name: "c" } }), "spec.volumes[0].configMap"],
    [mounted({ projected: { sources: [] } }), "spec.volumes[0].projected"],
  ],
  "volumes.image": [[mounted({ image: { reference: "r" } }), "spec.volumes[0].image"]],
  "volumes.persistent": [
    [mounted({ persistentVolumeClaim: { claimName: "c" } }), "spec.volumes[0].persistentVolumeClaim"],
    [mounted({ ephemeral: {} }), "spec.volumes[0].ephemeral"],
  ],
  "volumes.block": [
    [podWithContainer({ volumeDevices: [{ name: "d", devicePath: "/dev/x" }] }), "spec.containers[0].volumeDevices"],
  ],
  mount_propagation: [
    [withMount({ mountPropagation: "Bidirectional" }), "spec.containers[0].volumeMounts[0].mountPropagation"],
  ],
  host_network: [[podWith({ hostNetwork: true }), "spec.hostNetwork"]],
  host_pid: [[podWith({ hostPID: true }), "spec.hostPID"]],
  host_ipc: [[podWith({ hostIPC: true }), "spec.hostIPC"]],
};

/** Likewise, for capabilities without which a pod still runs, and how its author is told. */
function limited(spec: Partial<PodSpec>): Pod {
  const pod = podWith(spec);
  return { ...pod, metadata: { ...pod.metadata, annotations: { "kubernetes.io/egress-bandwidth": "1M" } } };
}

const WARNINGS: Record<string, readonly (readonly [pod: Pod, path: string, reason: string, effect: string])[]> = {
  bandwidth: [
    [limited({}), "metadata.annotations[kubernetes.io/egress-bandwidth]", "BandwidthNotLimited", "not enforced"],
  ],
  resource_limits: [
    [
      podWithContainer({ resources: { limits: { cpu: "1" } } }),
      "spec.containers[0].resources.limits.cpu",
      "ResourceLimitsNotEnforced",
      "not enforced",
    ],
    [
      podWith({ resources: { limits: { memory: "1" } } }),
      "spec.resources.limits.memory",
      "ResourceLimitsNotEnforced",
      "not enforced",
    ],
  ],
  registry_auth: [
    [podWith({ imagePullSecrets: [{ name: "s" }] }), "spec.imagePullSecrets", "ImagePullSecretsNotUsed", "not used"],
  ],
  instance_types: [
    [
      { ...podWith({}), metadata: { annotations: { "vmlet.dev/instance-type": "large" } } },
      "metadata.annotations[vmlet.dev/instance-type]",
      "InstanceTypeNotUsed",
      "not used",
    ],
  ],
};

/** What a backend lacks that cannot give a pod what it asks for. */
const lacking = (capability: Capability): Capability[] =>
  capability === "volumes.persistent" ? [capability, "volumes.csi_persistent"] : [capability];

describe("the capability gate", () => {
  test.each(
    Object.entries(NEEDS).flatMap(([capability, cases]) =>
      cases.map(([pod, path]) => [capability, path, pod] as const),
    ),
  )("refuses a pod for want of %s and names %s", (capability, path, pod) => {
    expect(check(pod)).toEqual({ ok: true });
    expect(check(pod, lacking(capability as Capability))).toEqual({
      ok: false,
      reason: "UnsupportedFeature",
      message: `${path}: backend "b" lacks capability ${capability}`,
      missing: [capability],
    });
  });

  test("has a case above for each of its rows", () => {
    const tested = [...Object.keys(NEEDS), ...Object.keys(WARNINGS), "apparmor", "supplemental_groups_policy"];
    // What else may stand in for it, is below.
    expect(GATED_FEATURES.map(({ capability }) => capability).sort()).toEqual([...tested, "volumes.host"].sort());
  });

  test.each(
    Object.entries(WARNINGS).flatMap(([capability, cases]) =>
      cases.map(([pod, path, reason, effect]) => [capability, path, reason, effect, pod] as const),
    ),
  )("lets a pod run without %s and warns of %s by %s", (capability, path, reason, effect, pod) => {
    expect(check(pod, [capability as Capability])).toEqual({ ok: true });
    const warnings = capabilityWarnings(pod, { backend: "b", capabilities: new Set() });
    expect(warnings).toEqual([
      {
        type: "Warning",
        reason,
        message: `${path}: ${effect}, backend "b" lacks capability ${capability}`,
      },
    ]);
    expect(capabilityWarnings(pod, { backend: "b", capabilities: new Set(ALL_CAPABILITIES) })).toEqual([]);
  });

  test("lets a pod say that it needs no user namespace", () => {
    expect(check(podWith({ hostUsers: true }), ["user_namespace"])).toEqual({ ok: true });
  });

  test("refuses strict groups in a kubelet's words where the backend cannot leave an image's out", () => {
    const pod = podWith({ securityContext: { supplementalGroupsPolicy: "Strict" } });
    expect(check(pod, ["supplemental_groups_policy"])).toEqual({
      ok: false,
      reason: "SupplementalGroupsPolicyNotSupported",
      message: "SupplementalGroupsPolicy=Strict is not supported in this node",
      missing: ["supplemental_groups_policy"],
    });
    expect(check(pod)).toEqual({ ok: true });
    const merging = podWith({ securityContext: { supplementalGroupsPolicy: "Merge" } });
    expect(check(merging, ["supplemental_groups_policy"])).toEqual({ ok: true });
  });

  test("lets a plain pod run on a backend without any capability", () => {
    const pod = podWithContainer({
      terminationMessagePath: "/dev/termination-log",
      terminationMessagePolicy: "File",
      resources: { requests: { cpu: "1" } },
    });
    expect(check(pod, [...ALL_CAPABILITIES])).toEqual({ ok: true });
  });

  test("lets the service account's volume pass without volumes.files", () => {
    const pod = podWithContainer(
      { volumeMounts: [{ name: "kube-api-access-x1", mountPath: "/s" }] },
      {
        volumes: [{ name: "kube-api-access-x1", projected: { sources: [{ serviceAccountToken: { path: "token" } }] } }],
      },
    );
    expect(check(pod, ["volumes.files"])).toEqual({ ok: true });
  });

  test("does not look at volumes that nothing mounts", () => {
    expect(check(podWith({ volumes: [{ name: "v", persistentVolumeClaim: { claimName: "c" } }] }))).toEqual({
      ok: true,
    });
  });

  test("lets probes pass when the agent runs them", () => {
    const pod = podWithContainer({ readinessProbe: { tcpSocket: { port: 1 } } });
    expect(check(pod, ["probes"], { agentProbes: true })).toEqual({ ok: true });
  });

  test.each(["livenessProbe", "startupProbe"] as const)(
    "refuses %s when the agent runs the probes, because it cannot restart a container",
    (field) => {
      const pod = podWithContainer({ [field]: { tcpSocket: { port: 1 } } });
      const result = check(pod, ["probes"], { agentProbes: true });
      expect(result).toMatchObject({ ok: false, message: expect.stringContaining(`spec.containers[0].${field}: `) });
    },
  );

  describe("hostPath", () => {
    const pod = mounted({ hostPath: { path: "/" } });

    test("is the host's where the backend has that, and the pod's own machine's where the configuration says so", () => {
      expect(check(pod, ["volumes.host_path"], { allowHostPath: false })).toEqual({ ok: true });
      expect(check(pod, ["volumes.host"])).toEqual({ ok: true });
    });

    test("is refused where the node's configuration does not allow it", () => {
      expect(check(pod, ["volumes.host"], { allowHostPath: false })).toMatchObject({
        message: "spec.volumes[0].hostPath: hostPath is not allowed on this node (allowHostPath)",
      });
    });

    test("is refused where the backend has neither", () => {
      expect(check(pod, ["volumes.host", "volumes.host_path"])).toMatchObject({
        message: 'spec.volumes[0].hostPath: backend "b" lacks capability volumes.host',
        missing: ["volumes.host"],
      });
    });
  });

  describe("what the backend reserves for some namespaces", () => {
    const reserved = { capabilities: ["host_network", "volumes.host"], namespaces: ["kube-system"] };
    const within = (namespace: string, spec: Partial<PodSpec>) =>
      check(podWith(spec, { namespace }), ["volumes.host_path"], { reserved });

    test("is had by pods of those alone", () => {
      expect(within("kube-system", { hostNetwork: true })).toEqual({ ok: true });
      expect(within("shop", { hostNetwork: true })).toEqual({
        ok: false,
        reason: "UnsupportedFeature",
        message: 'spec.hostNetwork: backend "b" has host_network for other namespaces than "shop"',
        missing: [],
      });
      expect(within("shop", { hostPID: true })).toEqual({ ok: true });
    });

    test("is had by all pods where it is for every namespace", () => {
      const everywhere = { ...reserved, namespaces: ["*"] };
      const pod = podWith({ hostNetwork: true }, { namespace: "shop" });
      expect(check(pod, ["volumes.host_path"], { reserved: everywhere })).toEqual({ ok: true });
    });

    test("leaves hostPath of the others to their own machines, where those have it", () => {
      const pod = mounted({ hostPath: { path: "/" } });
      expect(check(pod, ["volumes.host_path"], { reserved })).toMatchObject({ ok: false });
      expect(check(pod, [], { reserved })).toEqual({ ok: true });
      expect(check(pod, [], { reserved, allowHostPath: false })).toMatchObject({ ok: false });
    });
  });

  test("needs no forwarding of ports on the host's network", () => {
    const ports = [{ containerPort: 80, hostPort: 80 }];
    expect(check(podWithContainer({ ports }, { hostNetwork: true }), ["host_ports"])).toEqual({ ok: true });
  });

  test("names every field at fault", () => {
    const pod = podWithContainer({ tty: true }, { hostAliases: [{ ip: "1.1.1.1" }] });
    const result = check(pod, ["tty", "hosts"]);
    expect(result.ok ? [] : result.message.split("; ")).toHaveLength(2);
  });
});

/** One pod for everything that no backend can have, and the path that the refusal must name. */
const REFUSED: readonly (readonly [path: string, pod: Pod])[] = [
  ["spec.volumes[0].iscsi", mounted({ iscsi: { targetPortal: "t", iqn: "i", lun: 0 } })],
  ["spec.volumes[0].iscsi", mounted({ iscsi: { targetPortal: "s", iqn: "i", lun: 0 } })],
  ["spec.volumes[0].emptyDir.medium", mounted({ emptyDir: { medium: "HugePages" } })],
  ["spec.containers[0].volumeMounts[0].recursiveReadOnly", withMount({ recursiveReadOnly: "Enabled" })],
  ["spec.securityContext.seccompProfile", podWith({ securityContext: { seccompProfile: { type: "Localhost" } } })],
];

describe("what no machine can have", () => {
  test.each(REFUSED)("%s is refused whatever the backend can do", (path, pod) => {
    const result = check(pod);
    expect(result).toMatchObject({ ok: false, reason: "UnsupportedFeature" });
    expect(result.ok ? "" : result.message).toContain(`${path}: `);
  });

  test("is refused with the kubelet's reason where there is one", () => {
    const appArmorProfile = { type: "Localhost", localhostProfile: " " };
    expect(check(podWithContainer({ securityContext: { appArmorProfile } }))).toEqual({
      ok: false,
      reason: "AppArmor",
      message: "Cannot enforce AppArmor: invalid empty AppArmor profile name",
      missing: [],
    });
  });

  test("has a case above for each of its rows", () => {
    const unseen = REFUSED_FEATURES.filter(
      ({ reason, find }) => reason === undefined && !REFUSED.some(([, pod]) => find(pod).length > 0),
    );
    expect(unseen.map(({ field }) => field)).toEqual([]);
  });
});

describe("a pod with AppArmor profiles", () => {
  const annotated = (value: string): Pod => {
    const pod = podWithContainer({ name: "main" });
    const annotations = { "container.apparmor.security.beta.kubernetes.io/main": value };
    return { ...pod, metadata: { ...pod.metadata, annotations } };
  };
  const withProfile = (type: string, of?: string): Pod =>
    podWithContainer(
      { securityContext: { appArmorProfile: { type } } },
      of ? { securityContext: { appArmorProfile: { type: of } } } : {},
    );
  const REQUIRING: [string, Pod][] = [
    ["a container's RuntimeDefault", withProfile("RuntimeDefault")],
    ["the pod's", podWith({ securityContext: { appArmorProfile: { type: "Localhost", localhostProfile: "p" } } })],
    ["the pod's, though each container wants none", withProfile("Unconfined", "RuntimeDefault")],
    ["an annotation", annotated("localhost/p")],
    ["an annotation for the usual one", annotated("runtime/default")],
  ];

  test.each(REQUIRING)(
    "is refused in the kubelet's words where the backend's host has no AppArmor: %s",
    (_title, pod) => {
      expect(check(pod)).toEqual({ ok: true });
      expect(check(pod, ["apparmor"])).toEqual({
        ok: false,
        reason: "AppArmor",
        message: "Cannot enforce AppArmor: AppArmor is not enabled on the host",
        missing: ["apparmor"],
      });
    },
  );

  test.each([
    ["field", withProfile("Unconfined")],
    ["annotation", annotated("unconfined")],
  ])("that wants none by %s runs on any host", (_title, pod) => {
    expect(check(pod, ["apparmor"])).toEqual({ ok: true });
  });
});

describe("what a machine runs without", () => {
  const told = (pod: Pod) =>
    capabilityWarnings(pod, { backend: "b", capabilities: new Set(ALL_CAPABILITIES) }).map(({ reason, message }) => [
      reason,
      message,
    ]);

  test("is told for SELinux options, of the pod and of its containers", () => {
    const seLinuxOptions = { level: "s0:c1,c2" };
    const ofPod = podWith({ securityContext: { seLinuxOptions } });
    const ofContainer = podWithContainer({ securityContext: { seLinuxOptions } });
    expect(told(ofPod)).toEqual([
      ["SELinuxNotUsed", "spec.securityContext.seLinuxOptions: not used, machines have no SELinux"],
    ]);
    expect(told(ofContainer)).toEqual([
      ["SELinuxNotUsed", "spec.containers[0].securityContext.seLinuxOptions: not used, machines have no SELinux"],
    ]);
  });

  test("is told for limits of bandwidth on the host's network, each by its annotation", () => {
    expect(told(limited({}))).toEqual([]);
    expect(told(limited({ hostNetwork: true }))).toEqual([
      [
        "BandwidthNotLimited",
        "metadata.annotations[kubernetes.io/egress-bandwidth]: not enforced, the pod is on its host's network",
      ],
    ]);
  });

  test("refuses no pod", () => {
    const seLinuxOptions = { level: "s0" };
    expect(check(podWith({ securityContext: { seLinuxOptions } })).ok).toBe(true);
  });
});

describe("an ephemeral container", () => {
  const refusal = (fields: object, lacking: Capability[] = []) => {
    const ephemeralContainers = [{ name: "plain" }, { name: "debug", ...fields }];
    const capabilities = new Set(ALL_CAPABILITIES.filter((capability) => !lacking.includes(capability)));
    const context = { backend: "b", capabilities, allowHostPath: true, agentProbes: false };
    const result = checkEphemeralContainer(podWith({ ephemeralContainers }), 1, context);
    return result.ok ? undefined : [result.reason, result.message];
  };

  test("runs on a backend that has what it asks for", () => {
    expect(refusal({ tty: true, securityContext: { capabilities: { add: ["SYS_PTRACE"] } } })).toBeUndefined();
  });

  test("needs ephemeral_containers", () => {
    const message = 'spec.ephemeralContainers[1]: backend "b" lacks capability ephemeral_containers';
    expect(refusal({ tty: true }, ["ephemeral_containers", "tty"])).toEqual(["UnsupportedFeature", message]);
  });

  test.each([
    ["tty", { tty: true }, ".tty"],
    ["privileged", { securityContext: { privileged: true } }, ".securityContext.privileged"],
    ["security_context", { securityContext: { runAsUser: 1 } }, ".securityContext"],
    ["termination_message", { terminationMessagePath: "/x" }, ".terminationMessagePath"],
  ] as const)("needs %s like any container", (capability, fields, path) => {
    const message = `spec.ephemeralContainers[1]${path}: backend "b" lacks capability ${capability}`;
    expect(refusal(fields, [capability])).toEqual(["UnsupportedFeature", message]);
  });

  test("cannot have what no machine can have", () => {
    const [reason, message] = refusal({ securityContext: { seccompProfile: { type: "Localhost" } } }) ?? [];
    expect(reason).toBe("UnsupportedFeature");
    expect(message).toBe(
      "spec.ephemeralContainers[1].securityContext.seccompProfile: profiles of the host do not exist in a machine",
    );
    expect(refusal({ securityContext: { appArmorProfile: { type: "RuntimeDefault" } } }, ["apparmor"])?.[0]).toBe(
      "AppArmor",
    );
  });

  test("is not refused for what its pod was let run with", () => {
    expect(refusal({}, ["multi_container", "init_containers", "sidecars"])).toBeUndefined();
  });
});

describe("supportTable", () => {
  test("has a row of two cells for everything in both tables", () => {
    const rows = supportTable().split("\n").slice(2);
    expect(rows).toHaveLength(GATED_FEATURES.length + 1 + IGNORED_FEATURES.length + REFUSED_FEATURES.length);
    expect(rows.filter((row) => row.split("|").length !== 4)).toEqual([]);
    expect(rows).toContain("| spec.hostAliases | `hosts` |");
  });
});
