import { expect } from "vitest";
import type { Json } from "../../harness/client.ts";
import { containerStatus, serve } from "../pods.ts";
import { type ChecklistCase, type ChecklistContext, condition } from "./case.ts";

/** Creates a pod that no scheduler has looked at, waits until the node has refused it and checks how. */
async function refused(context: ChecklistContext, spec: Json, reason: string, message: string | RegExp) {
  const { env, create, pods, shell } = context;
  const { metadata } = await create("refused", { nodeName: env.nodeName, containers: [shell("main", serve)], ...spec });
  const { status } = await pods.untilPhase("refused", "Failed");
  expect(status.reason).toBe(reason);
  if (typeof message === "string") expect(status.message).toBe(`Pod was rejected: ${message}`);
  else expect(status.message).toMatch(message);
  expect(status).toMatchObject({
    startTime: expect.any(String),
    qosClass: expect.any(String),
    observedGeneration: metadata.generation,
  });
  expect(status.containerStatuses ?? []).toEqual([]);
  await context.untilEvent("refused", reason, typeof message === "string" ? message : /./);
}

const patchResources = (
  { client, pods }: Pick<ChecklistContext, "client" | "pods">,
  name: string,
  requests: Json,
  limits?: Json,
) =>
  client.patch(
    `${pods.path}/${name}/resize`,
    { spec: { containers: [{ name: "main", resources: { requests, ...(limits && { limits }) } }] } },
    "application/strategic-merge-patch+json",
  );

export const admissionCases: readonly ChecklistCase[] = [
  {
    ids: ["C01"],
    name: "a pod that asks for more than the node has is refused with kubelet's numbers",
    async run(context) {
      const { env, shell, pods } = context;
      const { status } = await env.client.get(`/api/v1/nodes/${env.nodeName}`);
      const capacity = Number(status.allocatable.cpu) * 1000;
      const containers = [shell("main", serve, { resources: { requests: { cpu: "100000" } } })];
      const used =
        /^Pod was rejected: Node didn't have enough resource: cpu, requested: 100000000, used: \d+, capacity: (\d+)$/;
      await refused(context, { containers }, "OutOfcpu", used);
      const pod = await pods.get("refused");
      expect(used.exec(pod.status.message)![1]).toBe(String(capacity));
    },
  },
  {
    ids: ["C01"],
    name: "a pod whose node selector the node does not match is refused",
    run: (context) =>
      refused(
        context,
        { nodeSelector: { "example.com/none": "x" } },
        "NodeAffinity",
        "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
      ),
  },
  {
    ids: ["C01"],
    name: "a pod of another operating system is refused",
    run: (context) =>
      refused(
        context,
        { os: { name: "windows" } },
        "PodOSNotSupported",
        "Failed to admit pod as the OS field doesn't match node OS",
      ),
  },
  {
    ids: ["C01", "P23"],
    name: "a critical pod that finds the node full gets the room of a lesser one, which fails as a disruption",
    async run({ env, create, pods, shell, untilEvent, statuses }) {
      const seat = { resources: { limits: { "example.com/seat": "1" } } };
      await create("lesser", { containers: [shell("main", serve, seat)] });
      await pods.untilReady("lesser");
      await create("critical", {
        nodeName: env.nodeName,
        priorityClassName: "system-node-critical",
        containers: [shell("main", serve, seat)],
      });
      const lesser = await pods.untilPhase("lesser", "Failed");
      const message = "Preempted in order to admit critical pod";
      expect(lesser.status).toMatchObject({ reason: "Preempting", message });
      expect(condition(lesser, "DisruptionTarget")).toMatchObject({
        status: "True",
        reason: "TerminationByKubelet",
        message: "Pod was preempted by Kubelet to accommodate a critical pod.",
      });
      expect(statuses("lesser").filter(({ phase }) => phase === "Failed")).toHaveLength(1);
      await pods.untilReady("critical");
      await untilEvent("lesser", "Preempting", message);
    },
  },
  {
    ids: ["C02"],
    name: "extended resources of the configuration are the node's, and are counted",
    async run(context) {
      const { env, create, pods, shell } = context;
      const { status } = await env.client.get(`/api/v1/nodes/${env.nodeName}`);
      expect(status.capacity["example.com/licence"]).toBe("1");
      expect(status.allocatable["example.com/licence"]).toBe("1");
      const resources = { limits: { "example.com/licence": "1" } };
      await create("holder", { containers: [shell("main", serve, { resources })] });
      await pods.untilReady("holder");
      await refused(
        context,
        { containers: [shell("main", serve, { resources })] },
        "OutOfexample.com/licence",
        "Node didn't have enough resource: example.com/licence, requested: 1, used: 1, capacity: 1",
      );
    },
  },
  {
    ids: ["C02"],
    name: "no pod runs without an extended resource that the node does not have",
    async run(context) {
      const containers = [context.shell("main", serve, { resources: { limits: { "example.com/gpu": "1" } } })];
      const message = "Node didn't have enough resource: example.com/gpu, requested: 1, used: 0, capacity: 0";
      await refused(context, { containers }, "OutOfexample.com/gpu", message);
    },
  },
  {
    ids: ["C02"],
    name: "extended resources that somebody writes into the Node's status stay there, and are counted",
    async run(context) {
      const { env, create, pods, shell } = context;
      const path = `/api/v1/nodes/${env.nodeName}`;
      const status = (amount: string | null) => ({
        status: { capacity: { "example.com/dongle": amount }, allocatable: { "example.com/dongle": amount } },
      });
      await env.client.patch(`${path}/status`, status("1"), "application/merge-patch+json");
      const resources = { limits: { "example.com/dongle": "1" } };
      await create("holder", { nodeName: env.nodeName, containers: [shell("main", serve, { resources })] });
      await pods.untilReady("holder");
      await refused(
        context,
        { containers: [shell("main", serve, { resources })] },
        "OutOfexample.com/dongle",
        "Node didn't have enough resource: example.com/dongle, requested: 1, used: 1, capacity: 1",
      );
      const node = await env.client.get(path);
      expect([node.status.capacity, node.status.allocatable]).toEqual(
        Array.from({ length: 2 }, () => expect.objectContaining({ "example.com/dongle": "1" })),
      );
      await env.client.patch(`${path}/status`, status(null), "application/merge-patch+json");
    },
  },
  {
    ids: ["R02"],
    name: "a sysctl that is not safe is refused as forbidden",
    run: (context) =>
      refused(
        context,
        { securityContext: { sysctls: [{ name: "kernel.msgmax", value: "1" }] } },
        "SysctlForbidden",
        'forbidden sysctl: "kernel.msgmax" not allowlisted',
      ),
  },
  {
    ids: ["R02"],
    name: "a safe sysctl is set in the pod's own kernel parameters",
    needs: ["sysctls"],
    async run({ outputOf }) {
      const sysctls = [{ name: "net.ipv4.ip_unprivileged_port_start", value: "443" }];
      expect(
        await outputOf("cat /proc/sys/net/ipv4/ip_unprivileged_port_start", { securityContext: { sysctls } }),
      ).toEqual(["443"]);
    },
  },
  {
    ids: ["R03"],
    name: "a second pod with the same host port is refused",
    needs: ["host_ports"],
    async run(context) {
      const { create, pods, shell } = context;
      const ports = [{ containerPort: 80, hostPort: 28080 }];
      await create("holder", { containers: [shell("main", serve, { ports })] });
      await pods.untilReady("holder");
      await refused(
        context,
        { containers: [shell("main", serve, { ports })] },
        "NodePorts",
        "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports",
      );
    },
  },
  {
    ids: ["R03"],
    name: "a host port is refused where the backend has none",
    lacks: "host_ports",
    run: (context) =>
      refused(
        context,
        { containers: [context.shell("main", serve, { ports: [{ containerPort: 80, hostPort: 28081 }] })] },
        "UnsupportedFeature",
        /spec\.containers\[0\]\.ports\[0\]\.hostPort: backend ".*" lacks capability host_ports/,
      ),
  },
  ...(
    [
      ["hostNetwork", "host_network"],
      ["hostPID", "host_pid"],
      ["hostIPC", "host_ipc"],
    ] as const
  ).map(([field, capability]): ChecklistCase => ({
    ids: ["R04"],
    name: `${field} is refused, by name, where the backend does not give its host`,
    lacks: capability,
    run: (context) =>
      refused(
        context,
        { [field]: true },
        "UnsupportedFeature",
        new RegExp(`^Pod was rejected: spec\\.${field}: backend ".*" lacks capability ${capability}`),
      ),
  })),
  {
    ids: ["R05"],
    name: "a RuntimeClass whose handler the node lacks keeps the pod Pending and says so",
    async run({ env, create, pods, shell, untilEvent }) {
      const name = `rc-${pods.namespace}`;
      await env.client.create("/apis/node.k8s.io/v1/runtimeclasses", { metadata: { name }, handler: "unheard-of" });
      await create("handled", { runtimeClassName: name, containers: [shell("main", serve)] });
      await untilEvent("handled", "FailedCreatePodSandBox", /no runtime for "unheard-of" is configured/);
      expect((await pods.get("handled")).status.phase).toBe("Pending");
    },
  },
  {
    ids: ["R05"],
    name: "a RuntimeClass whose handler the node has runs the pod, with the overhead of the class",
    async run({ env, create, pods, shell }) {
      const name = `has-${pods.namespace}`;
      const { status } = await env.client.get(`/api/v1/nodes/${env.nodeName}`);
      // Of the backend's runtime, where it has several; else the one that the node's configuration names.
      const handler = status.runtimeHandlers?.find((each: Json) => each.name)?.name ?? "known";
      const overhead = { podFixed: { cpu: "10m", memory: "8Mi" } };
      await env.client.create("/apis/node.k8s.io/v1/runtimeclasses", { metadata: { name }, handler, overhead });
      const resources = { limits: { cpu: "200m", memory: "64Mi" } };
      await create("handled", { runtimeClassName: name, containers: [shell("main", serve, { resources })] });
      const pod = await pods.untilReady("handled");
      expect(pod.spec.overhead).toEqual(overhead.podFixed);
      expect(containerStatus(pod, "main")).toMatchObject({ restartCount: 0, ready: true });
    },
  },
  {
    ids: ["R05", "Z02"],
    name: "a RuntimeClass's overhead and resources of the pod as a whole count like any others",
    async run(context) {
      const { env, pods, shell } = context;
      const name = `known-${pods.namespace}`;
      await env.client.create("/apis/node.k8s.io/v1/runtimeclasses", {
        metadata: { name },
        handler: "known",
        overhead: { podFixed: { cpu: "90000" } },
      });
      const spec = {
        runtimeClassName: name,
        containers: [shell("main", serve, { resources: { requests: { cpu: "10000" } } })],
      };
      await refused(context, spec, "OutOfcpu", /requested: 100000000, used: /);
    },
  },
  {
    ids: ["Z02"],
    name: "resources of the pod as a whole are what it is admitted by",
    run: (context) =>
      refused(context, { resources: { requests: { cpu: "70000" } } }, "OutOfcpu", /requested: 70000000, used: /),
  },
  {
    ids: ["Z01"],
    name: "a resize that the backend makes shows in the status, without a restart",
    needs: ["resize"],
    async run({ client, create, pods, shell, untilEvent }) {
      const resources = { requests: { cpu: "100m", memory: "32Mi" }, limits: { cpu: "200m", memory: "64Mi" } };
      await create("grows", { containers: [shell("main", serve, { resources })] });
      const before = await pods.untilReady("grows");
      await patchResources({ client, pods }, "grows", { cpu: "150m" }, { cpu: "300m", memory: "96Mi" });
      const pod = await pods.until(
        "grows",
        "to have grown",
        (each) => containerStatus(each, "main").resources?.limits.memory === "96Mi",
      );
      expect(containerStatus(pod, "main")).toMatchObject({
        restartCount: 0,
        containerID: containerStatus(before, "main").containerID,
        allocatedResources: { cpu: "150m", memory: "32Mi" },
        resources: { requests: { cpu: "150m", memory: "32Mi" }, limits: { cpu: "300m", memory: "96Mi" } },
      });
      expect(condition(pod, "PodResizePending")).toBeUndefined();
      await untilEvent("grows", "ResizeStarted", /^Pod resize started: \{"containers":\[\{"name":"main"/);
      await untilEvent("grows", "ResizeCompleted", /^Pod resize completed: /);
    },
  },
  {
    ids: ["Z01"],
    name: "a resize that the backend cannot make is Infeasible at once, and the status keeps what the container has",
    lacks: "resize",
    async run({ client, create, pods, shell, untilEvent }) {
      await create("stays", { containers: [shell("main", serve, { resources: { requests: { cpu: "100m" } } })] });
      await pods.untilReady("stays");
      await patchResources({ client, pods }, "stays", { cpu: "150m" });
      const pod = await pods.until("stays", "to say so", (each) => condition(each, "PodResizePending") !== undefined);
      expect(condition(pod, "PodResizePending")).toMatchObject({
        status: "True",
        reason: "Infeasible",
        message: expect.stringMatching(/lacks capability resize$/),
      });
      expect(containerStatus(pod, "main").allocatedResources).toEqual({ cpu: "100m" });
      expect(pod.status.observedGeneration).toBe(pod.metadata.generation);
      await untilEvent("stays", "ResizeInfeasible", /^Pod resize Infeasible: /);
    },
  },
  {
    ids: ["Z01"],
    name: "a resize that does not fit beside the other pods is Deferred, and made when there is room",
    needs: ["resize"],
    async run({ client, create, pods, shell }) {
      const asking = (cpu: string) => ({ containers: [shell("main", serve, { resources: { requests: { cpu } } })] });
      const holder = await create("holder", asking("50"));
      await create("patient", asking("100m"));
      await pods.untilReady("holder");
      await pods.untilReady("patient");
      await patchResources({ client, pods }, "patient", { cpu: "20" });
      const pod = await pods.until("patient", "to wait", (each) => condition(each, "PodResizePending") !== undefined);
      expect(condition(pod, "PodResizePending")).toMatchObject({
        reason: "Deferred",
        message: expect.stringMatching(
          /^Node didn't have enough resource: cpu, requested: 20000, used: \d+, capacity: 64000$/,
        ),
      });
      expect(containerStatus(pod, "main").allocatedResources).toEqual({ cpu: "100m" });
      await pods.delete("holder", 1);
      await pods.untilGone("holder", holder.metadata.uid);
      const grown = await pods.until(
        "patient",
        "to have grown",
        (each) => containerStatus(each, "main").allocatedResources.cpu === "20",
      );
      expect(condition(grown, "PodResizePending")).toBeUndefined();
    },
  },
  {
    ids: ["R01"],
    name: "limits that the backend does not enforce do not keep a pod from running, and an event says so",
    lacks: "resource_limits",
    async run({ create, pods, shell, untilEvent }) {
      await create("unlimited", { containers: [shell("main", serve, { resources: { limits: { memory: "64Mi" } } })] });
      await pods.untilReady("unlimited");
      await untilEvent(
        "unlimited",
        "ResourceLimitsNotEnforced",
        /spec\.containers\[0\]\.resources\.limits\.memory: not enforced, backend ".+" lacks capability resource_limits/,
      );
    },
  },
  {
    ids: ["R01"],
    name: "a container that must not run as root waits when it would",
    needs: ["security_context"],
    async run({ create, pods, shell }) {
      const { metadata } = await create("rootless", {
        containers: [shell("main", serve, { securityContext: { runAsNonRoot: true } })],
      });
      const pod = await pods.until(
        "rootless",
        "to wait",
        (each) => containerStatus(each, "main")?.state.waiting?.reason === "CreateContainerConfigError",
      );
      expect(containerStatus(pod, "main").state.waiting.message).toBe(
        `container has runAsNonRoot and image will run as root (pod: "rootless_${pods.namespace}(${metadata.uid})", container: main)`,
      );
    },
  },
  {
    ids: ["R01"],
    name: "a read-only root cannot be written, and dropped capabilities are gone",
    needs: ["security_context"],
    async run({ outputOf }) {
      const securityContext = {
        readOnlyRootFilesystem: true,
        capabilities: { drop: ["ALL"] },
        allowPrivilegeEscalation: false,
      };
      const lines = await outputOf(
        "touch /x 2>/dev/null || echo read-only; grep -E '^(CapEff|NoNewPrivs)' /proc/self/status | tr -d '\\t'",
        {},
        { securityContext },
      );
      expect(lines).toEqual(["read-only", "CapEff:0000000000000000", "NoNewPrivs:1"]);
    },
  },
  {
    ids: ["R01"],
    name: "system calls are filtered where the pod asks for the runtime's default",
    needs: ["security_context"],
    async run({ outputOf }) {
      const securityContext = { seccompProfile: { type: "RuntimeDefault" } };
      expect(await outputOf("grep ^Seccomp: /proc/self/status | tr -d '\\t'", {}, { securityContext })).toEqual([
        "Seccomp:2",
      ]);
    },
  },
  {
    ids: ["R06"],
    name: "containers that share a process namespace see each other",
    needs: ["share_process_namespace", "multi_container"],
    async run({ shell, output, create, pods }) {
      const other = shell("other", "exec sleep 4713", { marks: false });
      await create("shares", {
        restartPolicy: "Never",
        shareProcessNamespace: true,
        containers: [
          shell("main", "until ps | grep -q '[s]leep 4713'; do sleep 0.1; done; echo seen; kill $(pidof sleep)"),
          other,
        ],
      });
      await pods.until("shares", "to be seen", (pod) => containerStatus(pod, "main")?.state.terminated !== undefined);
      expect(await output("shares")).toEqual(["seen"]);
    },
  },
  {
    ids: ["D01"],
    name: "hostname, hosts file and resolver are as the pod asks",
    needs: ["hostname", "hosts", "dns", "pod_ip"],
    async run({ create, pods, shell, output }) {
      const spec = {
        hostname: "web",
        subdomain: "site",
        hostAliases: [{ ip: "192.0.2.7", hostnames: ["one.example", "two.example"] }],
        dnsPolicy: "None",
        dnsConfig: {
          nameservers: ["192.0.2.53"],
          searches: ["example.com"],
          options: [{ name: "ndots", value: "2" }, { name: "edns0" }],
        },
      };
      await create("named", {
        restartPolicy: "Never",
        ...spec,
        containers: [shell("main", "hostname; cat /etc/hosts; echo --; cat /etc/resolv.conf")],
      });
      const { status } = await pods.untilPhase("named", "Succeeded");
      const fqdn = `web.site.${pods.namespace}.svc.cluster.local`;
      expect(await output("named")).toEqual([
        "web",
        "# Kubernetes-managed hosts file.",
        "127.0.0.1\tlocalhost",
        "::1\tlocalhost ip6-localhost ip6-loopback",
        "fe00::0\tip6-localnet",
        "fe00::0\tip6-mcastprefix",
        "fe00::1\tip6-allnodes",
        "fe00::2\tip6-allrouters",
        `${status.podIP}\t${fqdn}\tweb`,
        "",
        "# Entries added by HostAliases.",
        "192.0.2.7\tone.example\ttwo.example",
        "--",
        "nameserver 192.0.2.53",
        "search example.com",
        "options ndots:2 edns0",
      ]);
    },
  },
];
