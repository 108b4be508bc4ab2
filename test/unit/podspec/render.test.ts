import { describe, expect, test } from "vitest";
import { ALL_CAPABILITIES } from "../../../src/provider/capabilities.ts";
import type { MachineSpec } from "../../../src/provider/machine.ts";
import type { RenderInput } from "../../../src/podspec/render/context.ts";
import { renderEphemeralContainers, renderMachineSpec } from "../../../src/podspec/render/render.ts";
import type { ClaimsLookup } from "../../../src/podspec/types.ts";
import { configMap, found, inputFor, podWith, podWithContainer, referencesWith, secret } from "./fixtures.ts";

function ready(input: RenderInput): { spec: MachineSpec; reasons: string[] } {
  const result = renderMachineSpec(input);
  if (result.kind !== "ready") throw new Error(`${result.kind}: ${JSON.stringify(result)}`);
  return { spec: result.spec, reasons: result.events.map(({ reason }) => reason) };
}

const rendered = (container: Parameters<typeof podWithContainer>[0], spec?: Parameters<typeof podWithContainer>[1]) =>
  ready(inputFor(podWithContainer(container, spec))).spec.containers[0];

describe("renderMachineSpec", () => {
  test("renders a plain pod", () => {
    expect(ready(inputFor(podWith())).spec).toEqual({
      labels: expect.objectContaining({ "vmlet.dev/uid": "0a1b" }) as unknown,
      containers: [
        { name: "app", image: "nginx", termination_message: { path: "/dev/termination-log", policy: "file" } },
      ],
      restart_policy: "always",
      termination_grace_s: 30,
      hostname: "web",
      dns: {
        nameservers: ["10.96.0.10"],
        searches: ["shop.svc.cluster.local", "svc.cluster.local", "cluster.local", "corp.example"],
        options: ["ndots:5"],
      },
    });
  });

  test("says who stays when the host runs out of something", () => {
    expect(ready(inputFor(podWith({ priority: 1000 }))).spec.priority).toBe(1000);
  });

  test("tells a backend without capabilities nothing that it cannot do", () => {
    expect(ready(inputFor(podWith(), { lacking: [...ALL_CAPABILITIES] })).spec).toEqual({
      labels: expect.anything() as unknown,
      containers: [{ name: "app", image: "nginx" }],
      restart_policy: "always",
      termination_grace_s: 30,
    });
  });

  test("gives the same spec for the same input", () => {
    const input = inputFor(podWithContainer({ env: [{ name: "A", value: "1" }] }));
    expect(renderMachineSpec(input)).toEqual(renderMachineSpec(input));
  });

  test("expands command and args over the final environment", () => {
    expect(
      rendered({
        command: ["run", "$(A)"],
        args: ["$(B)", "$$(A)", "$(NO)"],
        env: [
          { name: "A", value: "1" },
          { name: "B", value: "$(A)2" },
        ],
      }),
    ).toMatchObject({
      command: ["run", "1"],
      args: ["12", "$(A)", "$(NO)"],
    });
  });

  test("marks the machine's address, which is known only later", () => {
    const { spec } = ready(
      inputFor(
        podWithContainer({
          args: ["--ip=$(IP)"],
          env: [{ name: "IP", valueFrom: { fieldRef: { fieldPath: "status.podIP" } } }],
        }),
      ),
    );
    expect(spec.containers[0]?.args).toEqual([`--ip=${spec.address_tokens?.pod_ip}`]);
  });

  test("has no address tokens when nothing uses them", () => {
    expect(ready(inputFor(podWith())).spec.address_tokens).toBeUndefined();
    expect(ready(inputFor(podWith())).spec.containers[0]?.env_tokens).toBeUndefined();
  });

  test("has a variable in a file of a volume read in the machine, whoever mounts the volume", () => {
    const container: Parameters<typeof podWithContainer>[0] = {
      args: ["--key=$(KEY)"],
      env: [{ name: "KEY", valueFrom: { fileKeyRef: { volumeName: "config", path: "app.env", key: "KEY" } } }],
    };
    const volumes = { volumes: [{ name: "config", emptyDir: {} }] };
    const { spec } = ready(inputFor(podWithContainer(container, volumes)));
    expect(spec.volumes).toEqual([{ name: "config", type: "empty_dir", medium: "disk" }]);
    expect(spec.containers[0]).toMatchObject({
      args: [`--key=${spec.containers[0]?.env_tokens?.open}KEY${spec.containers[0]?.env_tokens?.close}`],
      env: [{ name: "KEY", value: "", from_file: { volume: "config", path: "app.env", key: "KEY" } }],
    });
    const volumeMounts = [{ name: "config", mountPath: "/c", subPathExpr: "$(KEY)" }];
    const waiting = renderMachineSpec(inputFor(podWithContainer({ ...container, volumeMounts }, volumes)));
    expect(waiting.kind === "wait" && waiting.waiting.get("app")).toMatchObject({
      reason: "CreateContainerConfigError",
      message: expect.stringContaining("needs a file's value"),
    });
  });

  test("asks no backend for resources that the Node has of somebody else's hand", () => {
    const limits = { cpu: "1", "example.com/slots": "2", "nvidia.com/gpu": "1" };
    const input = inputFor(podWithContainer({ resources: { limits } }));
    const node = { ...input.node, othersResources: new Set(["example.com/slots"]) };
    const { resources, containers } = ready({ ...input, node }).spec;
    const left = { cpu_millis: 1000, extended: [{ name: "nvidia.com/gpu", count: 1 }] };
    expect([resources?.limits, containers[0]?.resources?.limits]).toEqual([left, left]);
  });

  test("mounts a folder of an NFS server that the pod itself names", () => {
    const nfs = { server: "files.example", path: "/share", readOnly: true };
    const pod = podWithContainer({ volumeMounts: [{ name: "v", mountPath: "/v" }] }, { volumes: [{ name: "v", nfs }] });
    const volume = { name: "v", type: "nfs", server: "files.example", path: "/share", read_only: true };
    expect(ready(inputFor(pod)).spec.volumes).toEqual([volume]);
  });

  test("renders what a container may have besides", () => {
    expect(
      rendered({
        imagePullPolicy: "IfNotPresent",
        workingDir: "/w",
        tty: true,
        stdin: true,
        stdinOnce: true,
        ports: [
          { name: "http", containerPort: 80 },
          { containerPort: 53, protocol: "UDP", hostPort: 53, hostIP: "127.0.0.1" },
        ],
        resources: { requests: { cpu: "0.5" }, limits: { memory: "1Mi", "nvidia.com/gpu": "2" } },
        lifecycle: { stopSignal: "SIGINT", postStart: { exec: { command: ["x"] } } },
        livenessProbe: { tcpSocket: { port: "http" } },
        restartPolicy: "OnFailure",
        restartPolicyRules: [{ action: "RestartAllContainers", exitCodes: { operator: "NotIn", values: [42] } }],
        terminationMessagePath: "/t",
        terminationMessagePolicy: "FallbackToLogsOnError",
      }),
    ).toEqual({
      name: "app",
      image: "nginx",
      pull_policy: "if_not_present",
      working_dir: "/w",
      tty: true,
      stdin: true,
      stdin_once: true,
      ports: [
        { name: "http", port: 80, protocol: "tcp" },
        { port: 53, protocol: "udp", host_port: 53, host_ip: "127.0.0.1" },
      ],
      resources: {
        requests: { cpu_millis: 500 },
        limits: { memory_bytes: 1_048_576, extended: [{ name: "nvidia.com/gpu", count: 2 }] },
      },
      stop: { signal: "SIGINT" },
      hooks: { post_start: { exec: { command: ["x"] } } },
      probes: {
        liveness: { tcp: { port: 80 }, initial_delay_s: 0, period_s: 10, timeout_s: 1, success: 1, failure: 3 },
      },
      restart_policy: "on_failure",
      restart_rules: [{ action: "restart_all", exit_codes: { operator: "not_in", values: [42] } }],
      termination_message: { path: "/t", policy: "fallback_to_logs" },
    });
  });

  test("lets a container's security context win over the pod's, field by field", () => {
    expect(
      rendered(
        {
          securityContext: {
            runAsUser: 5,
            capabilities: { add: ["NET_ADMIN"], drop: ["ALL"] },
            readOnlyRootFilesystem: true,
            procMount: "Unmasked",
          },
        },
        { securityContext: { runAsUser: 1, runAsGroup: 2, seccompProfile: { type: "RuntimeDefault" } } },
      )?.security,
    ).toEqual({
      user: 5,
      group: 2,
      capabilities_add: ["NET_ADMIN"],
      capabilities_drop: ["ALL"],
      read_only_root: true,
      seccomp: "runtime_default",
      unmasked_proc: true,
    });
  });

  test.each([
    ["its own", { appArmorProfile: { type: "Unconfined" } }, "runtime/default", "unconfined"],
    ["that of its annotation", {}, "localhost/a/b", "localhost/a/b"],
    ["that of its annotation, the usual one", {}, "runtime/default", "runtime_default"],
    ["its pod's", {}, undefined, "localhost/pods"],
    ["its pod's where its annotation makes no sense", {}, "nonsense", "localhost/pods"],
  ])(
    "gives a container the AppArmor profile that a kubelet would: %s",
    (_title, securityContext, annotation, expected) => {
      const pods = { appArmorProfile: { type: "Localhost", localhostProfile: "pods" } };
      const pod = podWithContainer({ securityContext }, { securityContext: pods });
      const annotations = annotation && { "container.apparmor.security.beta.kubernetes.io/app": annotation };
      const { spec } = ready(inputFor({ ...pod, metadata: { ...pod.metadata, ...(annotations && { annotations }) } }));
      expect(spec.containers[0]?.security).toEqual({ apparmor: expected });
    },
  );

  test("a pod whose limits of bandwidth are no quantities is not made, and its author is told", () => {
    const rendered = renderMachineSpec(
      inputFor(podWith({}, { annotations: { "kubernetes.io/ingress-bandwidth": "10" } })),
    );
    const { events } = rendered as Extract<typeof rendered, { kind: "wait" }>;
    expect(events).toEqual([
      expect.objectContaining({
        reason: "FailedCreatePodSandBox",
        message: expect.stringContaining("kubernetes.io/ingress-bandwidth: resource is unreasonably small (< 1kbit)"),
      }),
    ]);
  });

  test("renders what concerns the pod as a whole", () => {
    const { spec } = ready(
      inputFor(
        podWith(
          {
            restartPolicy: "Never",
            terminationGracePeriodSeconds: 0,
            subdomain: "sub",
            setHostnameAsFQDN: true,
            hostAliases: [{ ip: "10.1.1.1", hostnames: ["db"] }],
            shareProcessNamespace: true,
            securityContext: {
              fsGroup: 7,
              fsGroupChangePolicy: "OnRootMismatch",
              supplementalGroups: [8],
              supplementalGroupsPolicy: "Strict",
              sysctls: [{ name: "kernel/shm_rmid_forced", value: "1" }],
            },
            initContainers: [{ name: "side", image: "s", restartPolicy: "Always" }],
            containers: [{ name: "app", image: "a", resources: { requests: { cpu: "1" }, limits: { cpu: "2" } } }],
            overhead: { cpu: "100m" },
            imagePullSecrets: [{ name: "pull" }],
          },
          { annotations: { "vmlet.dev/instance-type": "large", "kubernetes.io/egress-bandwidth": "8M" } },
        ),
        {
          references: referencesWith({
            secrets: { pull: secret({ ".dockerconfigjson": '{"auths":{"r":{"username":"u","password":"p"}}}' }) },
          }),
        },
      ),
    );
    expect(spec).toMatchObject({
      restart_policy: "never",
      termination_grace_s: 0,
      hostname: "web",
      domain: "sub.shop.svc.cluster.local",
      hostname_is_fqdn: true,
      hosts: [{ ip: "10.1.1.1", names: ["db"] }],
      security: {
        fs_group: 7,
        fs_group_change_policy: "on_root_mismatch",
        supplemental_groups: [8],
        supplemental_groups_policy: "strict",
        sysctls: [{ name: "kernel.shm_rmid_forced", value: "1" }],
        share_process_namespace: true,
      },
      init_containers: [{ name: "side", restart_policy: "always" }],
      resources: { requests: { cpu_millis: 1100 } },
      instance_type: "large",
      bandwidth: { egress_bits_per_second: 8_000_000 },
      registry_auth: [{ registry: "r", username: "u", password: "p" }],
    });
    // The sidecar has no limit, so the machine as a whole has none.
    expect(spec.resources?.limits).toBeUndefined();
  });
});

describe("mounts", () => {
  const volumes = [
    { name: "data", emptyDir: {} },
    { name: "conf", configMap: { name: "c" } },
  ];
  const references = referencesWith({ configMaps: { c: configMap({ k: "v" }) } });
  const mountsOf = (volumeMounts: object[], env: { name: string; value: string }[] = []) =>
    renderMachineSpec(
      inputFor(podWithContainer({ env, volumeMounts: volumeMounts as never }, { volumes }), { references }),
    );

  test("are read-only for files, and clean", () => {
    const result = mountsOf([
      { name: "data", mountPath: "rel", subPath: "a//./b/" },
      { name: "conf", mountPath: "/conf", readOnly: false },
    ]);
    expect(result).toMatchObject({
      spec: {
        containers: [
          {
            mounts: [
              { volume: "data", path: "/rel", sub_path: "a/b" },
              { volume: "conf", path: "/conf", read_only: true },
            ],
          },
        ],
      },
    });
  });

  test("expand subPathExpr over the environment", () => {
    expect(
      mountsOf([{ name: "data", mountPath: "/d", subPathExpr: "x-$(A)" }], [{ name: "A", value: "1" }]),
    ).toMatchObject({
      spec: { containers: [{ mounts: [{ sub_path: "x-1" }] }] },
    });
  });

  test.each([
    [{ subPathExpr: "$(B)/$(A)" }, "missing value for A, B"],
    [{ subPathExpr: "/$(C)" }, "error SubPath `/c` must not be an absolute path"],
    [{ subPath: "../up" }, "unable to provision SubPath `../up`: must not contain '..'"],
  ])("wait with the kubelet's text for %j", (mount, message) => {
    const env = [
      { name: "A", value: "" },
      { name: "C", value: "c" },
    ];
    const result = mountsOf([{ name: "data", mountPath: "/d", ...mount }], env);
    expect(result.kind === "wait" && result.waiting.get("app")).toEqual({
      reason: "CreateContainerConfigError",
      message,
    });
  });

  test("wait for a volume that the pod does not have", () => {
    const result = mountsOf([{ name: "ghost", mountPath: "/d" }]);
    expect(result.kind === "wait" && result.waiting.get("app")?.message).toBe(
      'cannot find volume "ghost" to mount into container "app"',
    );
  });
});

describe("waiting", () => {
  test("names each container at fault, with the kubelet's event", () => {
    const missing = [{ name: "A", valueFrom: { secretKeyRef: { name: "s", key: "k" } } }];
    const pod = podWith({
      initContainers: [{ name: "init", env: missing }],
      containers: [{ name: "app", image: "x" }],
    });
    const result = renderMachineSpec(
      inputFor(pod, { references: referencesWith({ secrets: { s: { kind: "absent" } } }) }),
    );
    if (result.kind !== "wait") throw new Error(result.kind);
    expect(Object.fromEntries(result.waiting)).toEqual({
      init: { reason: "CreateContainerConfigError", message: 'secret "s" not found' },
    });
    expect(result.events).toContainEqual({
      type: "Warning",
      reason: "Failed",
      message: 'Error: secret "s" not found',
      fieldPath: "spec.initContainers{init}",
    });
  });

  test("does not look at containers while a volume is missing", () => {
    const pod = podWithContainer(
      { volumeMounts: [{ name: "v", mountPath: "/v" }] },
      { volumes: [{ name: "v", secret: { secretName: "s" } }] },
    );
    expect(
      renderMachineSpec(
        inputFor(pod, { references: referencesWith({ secrets: { s: { kind: "absent" } }, services: undefined }) }),
      ),
    ).toEqual({
      kind: "wait",
      waiting: new Map(),
      unmountedVolumes: ["v"],
      events: [
        {
          type: "Warning",
          reason: "FailedMount",
          message: 'MountVolume.SetUp failed for volume "v" : secret "s" not found',
        },
      ],
    });
  });

  test("keeps root out where the pod wants it out", () => {
    const result = renderMachineSpec(
      inputFor(podWithContainer({ securityContext: { runAsNonRoot: true, runAsUser: 0 } })),
    );
    expect(result.kind === "wait" && result.waiting.get("app")?.message).toBe(
      `container's runAsUser breaks non-root policy (pod: "web_shop(0a1b)", container: app)`,
    );
  });

  test("keeps a pod Pending whose hostname is too long", () => {
    const pod = podWith({ subdomain: "s".repeat(60), setHostnameAsFQDN: true });
    const result = renderMachineSpec(inputFor(pod));
    expect(result.kind === "wait" && result.events.map(({ reason }) => reason)).toEqual(["FailedCreatePodSandBox"]);
  });

  test("does not fail a pod for a probe that names a port nobody has", () => {
    const result = renderMachineSpec(inputFor(podWithContainer({ readinessProbe: { tcpSocket: { port: "ghost" } } })));
    expect(result.kind === "wait" && result.waiting.get("app")?.message).toBe(
      "readiness probe of container app: port ghost not found",
    );
  });
});

describe("resource claims", () => {
  const claim = { name: "gpu", namespace: "shop", claim: "web-gpu", uid: "u1", drivers: ["gpu.example.com"] };
  const pod = podWithContainer(
    { resources: { claims: [{ name: "gpu", request: "big" }, { name: "left-out" }] } },
    { resourceClaims: [{ name: "gpu", resourceClaimTemplateName: "gpu" }, { name: "left-out" }] },
  );
  const rendered = (claims: ClaimsLookup | undefined) =>
    renderMachineSpec(inputFor(pod, { references: { ...referencesWith({}), claims } }));

  test("are the machine's, and those of them a container's that it names", () => {
    expect(rendered({ kind: "found", claims: [claim] })).toMatchObject({
      kind: "ready",
      spec: { resource_claims: [claim], containers: [{ claims: [{ name: "gpu", request: "big" }] }] },
    });
  });

  test("are waited for in a kubelet's words", () => {
    expect(rendered({ kind: "waiting", message: "ResourceClaim web-gpu: not allocated" })).toMatchObject({
      kind: "wait",
      events: [
        {
          type: "Warning",
          reason: "FailedPrepareDynamicResources",
          message:
            "Failed to prepare dynamic resources: prepare dynamic resources: ResourceClaim web-gpu: not allocated",
        },
      ],
    });
  });

  test.each<[string, ClaimsLookup | undefined]>([
    ["nothing is wrong yet", { kind: "waiting" }],
    ["nobody has looked at them", undefined],
  ])("are waited for without a word while %s", (_why, claims) => {
    expect(rendered(claims)).toMatchObject({ kind: "wait", events: [] });
  });
});

describe("the service account's volume", () => {
  const pod = podWithContainer(
    {
      volumeMounts: [
        { name: "kube-api-access-x", mountPath: "/var/run/secrets/kubernetes.io/serviceaccount", readOnly: true },
      ],
    },
    {
      volumes: [
        {
          name: "kube-api-access-x",
          projected: { sources: [{ serviceAccountToken: { path: "token", expirationSeconds: 3607 } }] },
        },
      ],
    },
  );

  test("is mounted where the backend has file volumes", () => {
    const { spec } = ready(inputFor(pod, { references: referencesWith({ tokens: { "3607/": found("T") } }) }));
    expect(spec.volumes).toHaveLength(1);
    expect(spec.containers[0]?.mounts).toHaveLength(1);
  });

  test("is left out elsewhere, and an event says so", () => {
    const { spec, reasons } = ready(inputFor(pod, { lacking: ["volumes.files"] }));
    expect(spec.volumes).toBeUndefined();
    expect(spec.containers[0]?.mounts).toBeUndefined();
    expect(reasons).toEqual(["ServiceAccountVolumeOmitted"]);
  });
});

describe("a pod with access to its host", () => {
  const hostPath = { path: "/var/log", type: "DirectoryOrCreate" };
  const volumes = [{ name: "v", hostPath }];
  const pod = podWithContainer(
    {
      ports: [{ containerPort: 80, hostPort: 80 }],
      volumeMounts: [{ name: "v", mountPath: "/v", mountPropagation: "HostToContainer" }],
      env: [{ name: "IP", valueFrom: { fieldRef: { fieldPath: "status.podIPs" } } }],
    },
    { volumes, hostNetwork: true, hostPID: true, hostIPC: true, hostname: "own" },
  );

  test("is told of by the machine's specification", () => {
    const { spec } = ready(inputFor(pod));
    expect(spec.host).toEqual({ network: true, pid: true, ipc: true });
    expect(spec.volumes).toEqual([{ name: "v", type: "host", path: "/var/log", path_type: "DirectoryOrCreate" }]);
    expect(spec.containers[0]?.mounts).toEqual([{ volume: "v", path: "/v", propagation: "host_to_container" }]);
  });

  test("has the node's name, addresses, ports and resolvers", () => {
    const { spec } = ready(inputFor(pod));
    expect(spec.hostname).toBeUndefined();
    expect(spec.containers[0]?.ports).toEqual([{ port: 80, protocol: "tcp" }]);
    expect(spec.containers[0]?.env).toContainEqual({ name: "IP", value: "10.0.0.1,fd00::1" });
    expect(spec.dns?.nameservers).toEqual(["192.0.2.53"]);
    const asked = { ...pod, spec: { ...pod.spec!, dnsPolicy: "ClusterFirstWithHostNet" as const } };
    expect(ready(inputFor(asked)).spec.dns?.nameservers).toEqual(["10.96.0.10"]);
  });

  test("means paths of its own machine, where the backend has no others for it", () => {
    const own = podWithContainer({ volumeMounts: [{ name: "v", mountPath: "/v" }] }, { volumes });
    const input = inputFor(own, { node: { allowHostPath: true } });
    const reserved = { capabilities: ["volumes.host"], namespaces: ["kube-system"] };
    const { spec } = ready({ ...input, backend: { ...input.backend, reserved } });
    expect(spec.volumes).toEqual([{ name: "v", type: "host_path", path: "/var/log", path_type: "DirectoryOrCreate" }]);
  });
});

describe("refusing", () => {
  test("is final and names the field", () => {
    expect(renderMachineSpec(inputFor(podWith({ hostNetwork: true }), { lacking: ["host_network"] }))).toEqual({
      kind: "reject",
      reason: "UnsupportedFeature",
      message: 'spec.hostNetwork: backend "test" lacks capability host_network',
      missing: ["host_network"],
    });
  });
});

describe("an ephemeral container", () => {
  test.each([
    [
      "the file system of its pod as a block device",
      { volumeMounts: [{ name: "data", mountPath: "/data" }] },
      { volumeDevices: [{ name: "data", devicePath: "/dev/x" }] },
      'cannot find volume "data" to pass into container "debug"',
    ],
    [
      "the block device of its pod as a file system",
      { volumeDevices: [{ name: "data", devicePath: "/dev/x" }] },
      { volumeMounts: [{ name: "data", mountPath: "/data" }] },
      'cannot find volume "data" to mount into container "debug"',
    ],
    [
      "a block device that its pod does not have",
      {},
      { volumeDevices: [{ name: "none", devicePath: "/dev/x" }] },
      'cannot find volume "none" to pass into container "debug"',
    ],
  ])("that asks for %s waits, and is never asked for", (_what, own, asked, message) => {
    const pod = podWithContainer(own, {
      volumes: [{ name: "data", persistentVolumeClaim: { claimName: "data" } }],
      ephemeralContainers: [{ name: "debug", image: "busybox", ...asked }],
    });
    const { containers, waiting } = renderEphemeralContainers(inputFor(pod), new Set());
    expect(containers).toEqual([]);
    expect(waiting.get("debug")).toEqual({ reason: "CreateContainerConfigError", message });
  });

  test("names the container that it is to debug", () => {
    const pod = podWith({
      ephemeralContainers: [{ name: "debug", image: "busybox", targetContainerName: "app" }],
    });
    const result = renderMachineSpec(inputFor(pod));
    expect(result.kind === "ready" && result.spec.ephemeral_containers).toMatchObject([
      { name: "debug", target: "app" },
    ]);
  });

  test.each([
    ["that asks for what the backend lacks", { tty: true }, "UnsupportedFeature", "UnsupportedFeature"],
    [
      "that would be root against its will",
      { securityContext: { runAsNonRoot: true, runAsUser: 0 } },
      "Failed",
      "CreateContainerConfigError",
    ],
  ])("%s is left out, told, and keeps nothing else from running", (_what, fields, event, reason) => {
    const pod = podWith({
      ephemeralContainers: [
        { name: "debug", image: "busybox", ...fields },
        { name: "plain", image: "busybox" },
      ],
    });
    expect(renderMachineSpec(inputFor(pod, { lacking: ["tty"] }))).toMatchObject({
      kind: "ready",
      spec: { ephemeral_containers: [{ name: "plain" }] },
      waiting: new Map([["debug", { reason, message: expect.any(String) }]]),
      events: [{ type: "Warning", reason: event, fieldPath: "spec.ephemeralContainers{debug}" }],
    });
  });
});
