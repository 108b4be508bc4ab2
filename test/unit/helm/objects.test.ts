/** What is rendered, held to what kube-linter and polaris ask of objects, to the agent's own configuration and to its permissions. */
import { describe, expect, test } from "vitest";
import { parseBackendConfig } from "../../../providers/local/config.ts";
import { parseConfig } from "../../../src/config/load.ts";
import { nodePermissions, type Permission } from "../../../src/agent/permissions.ts";
import { BURST_LABEL, BURST_POLICIES, SYSTEM_NAMESPACES } from "../../../src/webhook/placement.ts";
import type { Json } from "../../e2e/harness/client.ts";
import { keyOf, rightsOf } from "./rights.ts";
import {
  chart,
  ciValues,
  find,
  laterChart,
  minimal,
  named,
  namespace,
  podsOf,
  release,
  render,
  renderValues,
} from "./render.ts";

const ci = await ciValues();
const rendered = new Map(await Promise.all(ci.map(async ([name, file]) => [name, await render(file)] as const)));
const objectsOf = (name: string) => rendered.get(name)!;
const names = ci.map(([name]) => name);

/** Privileged on purpose: it makes containers. */
const privileged = (name: string, owner: Json) =>
  ["backend-oci", "backend-cri"].includes(name) && owner.metadata.labels["app.kubernetes.io/component"] === "backend";

describe.each(names)("every pod of %s", (name) => {
  const pods = podsOf(objectsOf(name)).map((pod) => [named(pod.owner), pod] as const);
  const containers = pods.flatMap(([owner, pod]) =>
    pod.spec.containers.map((container: Json) => [owner, pod, container] as const),
  );
  const restricted = pods.filter(([, pod]) => !privileged(name, pod.owner));

  test.each(restricted)("%s keeps the restricted pod security standard", (_, { spec }) => {
    expect(spec.securityContext).toMatchObject({ runAsNonRoot: true, seccompProfile: { type: "RuntimeDefault" } });
    expect(spec.securityContext.runAsUser).toBeGreaterThan(0);
    for (const container of spec.containers) {
      expect(container.securityContext).toEqual({
        allowPrivilegeEscalation: false,
        readOnlyRootFilesystem: true,
        capabilities: { drop: ["ALL"] },
      });
    }
    expect(spec.hostNetwork ?? spec.hostPID ?? spec.hostIPC).toBeUndefined();
    const allowed = ["configMap", "secret", "projected", "emptyDir"];
    for (const volume of spec.volumes) expect(allowed).toContain(Object.keys(volume).find((key) => key !== "name"));
  });

  test.each(pods)("%s mounts no token that it did not ask for", (_, { spec }) => {
    expect(spec.automountServiceAccountToken).toBe(false);
    const tokens = spec.volumes
      .flatMap((volume: Json) => volume.projected?.sources ?? [])
      .flatMap((source: Json) => source.serviceAccountToken ?? []);
    for (const token of tokens) expect(token.expirationSeconds).toBe(3600);
  });

  test.each(pods)("%s never lands on a virtual node", (_, { spec }) => {
    const [term] = spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms;
    expect(term.matchExpressions).toContainEqual({ key: "type", operator: "NotIn", values: ["virtual-kubelet"] });
  });

  test.each(containers)("%s says what it needs, and no CPU limit throttles it", (_owner, _pod, container) => {
    expect(container.resources.requests).toMatchObject({ cpu: expect.any(String), memory: expect.any(String) });
    expect(container.resources.limits.memory).toBeDefined();
    expect(container.resources.limits.cpu).toBeUndefined();
  });

  test.each(containers)("%s has an image of a fixed version", (_owner, _pod, container) => {
    expect(container.image).toMatch(/^registry\.example\.com\/me\/[\w-]+(:v?\d+\.\d+\.\d+|@sha256:[0-9a-f]{64})$/);
  });

  test.each(containers)("%s takes no secret from the environment", (_owner, _pod, container) => {
    expect((container.env ?? []).filter((each: Json) => each.valueFrom?.secretKeyRef)).toEqual([]);
    expect(container.envFrom).toBeUndefined();
  });

  test.each(containers)("%s mounts only volumes that there are", (_owner, { spec }, container) => {
    const volumes = spec.volumes.map((volume: Json) => volume.name);
    for (const mount of container.volumeMounts) expect(volumes).toContain(mount.name);
  });

  test.each(pods)("%s runs as a ServiceAccount of the chart, or as none", (_, { spec }) => {
    const accounts = objectsOf(name)
      .filter((object) => object.kind === "ServiceAccount")
      .map((object) => object.metadata.name);
    const given = name === "single" ? ["vmlet"] : [];
    expect([undefined, ...accounts, ...given]).toContain(spec.serviceAccountName);
  });
});

describe("labels that the values add", () => {
  const values = {
    commonLabels: { "app.kubernetes.io/part-of": "platform", "app.kubernetes.io/name": "mine", team: "a" },
    podLabels: { team: "b" },
    serviceMonitor: { enabled: true, labels: { team: "c" } },
    prometheusRule: { enabled: true, labels: { team: "c" } },
    dashboard: { enabled: true, labels: { team: "c" } },
  };

  test("stand once each, the nearest wins, and what is selected by stays", async () => {
    const objects = await renderValues(minimal(values));
    const deployment = find(objects, "Deployment");
    const common = { "app.kubernetes.io/part-of": "platform", "app.kubernetes.io/name": "vmlet" };
    expect(deployment.metadata.labels).toMatchObject({ ...common, team: "a" });
    expect(deployment.spec.template.metadata.labels).toMatchObject({ ...common, team: "b" });
    for (const kind of ["ServiceMonitor", "PrometheusRule"])
      expect(find(objects, kind).metadata.labels).toMatchObject({ ...common, team: "c" });
    expect(find(objects, "ConfigMap", "burst-vmlet-dashboard").metadata.labels).toMatchObject({ team: "c" });
  });
});

test("every pod goes where the values let it go", async () => {
  const where = { nodeSelector: { pool: "infra" }, tolerations: [{ key: "infra", operator: "Exists" }] };
  const pods = podsOf(
    await renderValues(
      minimal({
        ...where,
        backend: { enabled: true, existingSecret: "s", image: { repository: "r.example.com/backend" } },
      }),
    ),
  );
  expect(pods.map(({ owner }) => owner.kind)).toEqual(expect.arrayContaining(["Deployment", "Job", "Pod"]));
  for (const { owner, spec } of pods) expect(spec, named(owner)).toMatchObject(where);
});

test("a default that is set to null is gone, as OpenShift wants of the user", async () => {
  const none = { runAsUser: null, runAsGroup: null, fsGroup: null };
  const values = minimal({ podSecurityContext: none, nodeSelector: null, tolerations: null });
  const { spec } = find(await renderValues(values), "Deployment").spec.template;
  expect(spec.securityContext).toEqual({ runAsNonRoot: true, seccompProfile: { type: "RuntimeDefault" } });
  expect([spec.nodeSelector, spec.tolerations]).toEqual([undefined, undefined]);
});

describe.each(names)("every Deployment of %s", (name) => {
  const deployments = objectsOf(name)
    .filter((object) => object.kind === "Deployment")
    .map((object) => [named(object), object] as const);

  test.each(deployments)("%s selects its own pods by labels that an upgrade keeps", (_, { spec }) => {
    expect(spec.template.metadata.labels).toMatchObject(spec.selector.matchLabels);
    expect(Object.keys(spec.selector.matchLabels).toSorted()).toEqual([
      "app.kubernetes.io/component",
      "app.kubernetes.io/instance",
      "app.kubernetes.io/name",
    ]);
  });

  test.each(deployments)("%s is probed at ports that it has", (_, { spec }) => {
    const [container] = spec.template.spec.containers;
    const ports = container.ports.map((port: Json) => port.name);
    for (const probe of ["livenessProbe", "readinessProbe"]) {
      const { httpGet, tcpSocket } = container[probe];
      expect(ports).toContain((httpGet ?? tcpSocket).port);
    }
  });

  test.each(deployments)("%s never runs two at once unless one of them waits, or both only answer", (_, object) => {
    const component = object.metadata.labels["app.kubernetes.io/component"];
    const mayOverlap = ["webhook", "csi"].includes(component) || (component === "agent" && name !== "single");
    expect(object.spec.strategy.type).toBe(mayOverlap ? "RollingUpdate" : "Recreate");
  });
});

describe.each(names)("the other objects of %s", (name) => {
  const objects = objectsOf(name);

  test("Services, PodDisruptionBudgets and NetworkPolicies select pods that there are", () => {
    const labels = podsOf(objects).map((pod) => pod.metadata.labels ?? {});
    for (const object of objects) {
      const selector =
        object.kind === "Service"
          ? object.spec.selector
          : object.kind === "PodDisruptionBudget"
            ? object.spec.selector.matchLabels
            : object.kind === "NetworkPolicy"
              ? object.spec.podSelector.matchLabels
              : undefined;
      if (!selector) continue;
      const matches = labels.filter((each) => Object.entries(selector).every(([key, value]) => each[key] === value));
      expect(matches.length, named(object)).toBe(1);
    }
  });

  test("Services lead to ports that there are", () => {
    const ports = podsOf(objects)
      .flatMap((pod) => pod.spec.containers.flatMap((container: Json) => container.ports ?? []))
      .map((port: Json) => port.name);
    for (const service of objects.filter((object) => object.kind === "Service")) {
      for (const port of service.spec.ports) expect(ports, named(service)).toContain(port.targetPort);
    }
  });

  test("no rule has a wildcard, reads all Secrets, creates pods or binds to an administrator", () => {
    for (const role of objects.filter((object) => ["Role", "ClusterRole"].includes(object.kind))) {
      const component = role.metadata.labels["app.kubernetes.io/component"];
      for (const rule of role.rules) {
        const values = [...rule.apiGroups, ...rule.resources, ...rule.verbs];
        expect(values, named(role)).not.toContain("*");
        for (const verb of ["escalate", "bind", "approve"]) expect(rule.verbs).not.toContain(verb);
        if (rule.verbs.includes("impersonate")) expect(rule.resourceNames?.length, named(role)).toBeGreaterThan(0);
        if (rule.resources.includes("secrets")) expect([role.kind, rule.verbs]).toEqual(["Role", ["get"]]);
        if (rule.resources.includes("pods") && component !== "smoke") expect(rule.verbs).not.toContain("create");
        for (const resource of ["pods/exec", "pods/attach", "nodes/proxy"])
          expect(rule.resources).not.toContain(resource);
      }
    }
    for (const { roleRef } of objects.filter((object) => object.kind.endsWith("RoleBinding")))
      expect(roleRef.name).not.toMatch(/admin|edit/);
  });

  test("names of objects without a namespace hold release and namespace", () => {
    const kinds = [
      "ClusterRole",
      "ClusterRoleBinding",
      "ValidatingAdmissionPolicy",
      "ValidatingAdmissionPolicyBinding",
    ];
    for (const object of objects.filter((each) => kinds.includes(each.kind))) {
      expect(object.metadata.name).toContain(release);
      expect(object.metadata.name).toContain(namespace);
    }
  });

  test("everything carries the recommended labels", () => {
    for (const object of objects) {
      expect(Object.keys(object.metadata.labels), named(object)).toEqual(
        expect.arrayContaining([
          "helm.sh/chart",
          ...["name", "instance", "version", "managed-by", "component"].map((key) => `app.kubernetes.io/${key}`),
        ]),
      );
    }
  });

  test("hooks clean up after themselves, and Jobs end", () => {
    for (const object of objects.filter((each) => each.metadata.annotations?.["helm.sh/hook"])) {
      expect(object.metadata.annotations["helm.sh/hook-delete-policy"], named(object)).toContain(
        "before-hook-creation",
      );
    }
    for (const job of objects.filter((each) => each.kind === "Job")) {
      expect(job.spec).toMatchObject({ activeDeadlineSeconds: 300, ttlSecondsAfterFinished: 600 });
    }
  });
});

/** What the API server lets nobody change, by kind. */
const IMMUTABLE: Record<string, (object: Json) => unknown> = {
  Deployment: ({ spec }) => spec.selector,
  StatefulSet: ({ spec }) => [spec.selector, spec.serviceName, spec.volumeClaimTemplates],
  DaemonSet: ({ spec }) => spec.selector,
  Job: ({ spec }) => [spec.selector, spec.template],
  Service: ({ spec }) => [spec.clusterIP, spec.type],
  PersistentVolumeClaim: ({ spec }) => spec,
  RoleBinding: ({ roleRef }) => roleRef,
  ClusterRoleBinding: ({ roleRef }) => roleRef,
};

describe("an upgrade to a later version of the chart", async () => {
  const later = await laterChart();

  test.each(ci)(
    "with the values of %s finds every object again and changes nothing that cannot be changed",
    async (name, file) => {
      // Hooks are deleted before they are made again.
      const kept = (objects: readonly Json[]) =>
        objects.filter(({ metadata }) => metadata.annotations?.["helm.sh/hook"] === undefined);
      const fixed = (objects: readonly Json[]) =>
        kept(objects).map((object) => [named(object), IMMUTABLE[object.kind]?.(object)]);
      const upgraded = await render(file, [], later);
      expect(upgraded[0]!.metadata.labels["app.kubernetes.io/version"]).toBe("99");
      expect(fixed(upgraded)).toEqual(fixed(objectsOf(name)));
    },
  );

  test.each(ci)("with the values of %s makes no secret, and nothing anew by chance", async (name, file) => {
    expect(objectsOf(name).filter(({ kind }) => kind === "Secret")).toEqual([]);
    expect(await render(file)).toEqual(objectsOf(name));
  });
});

describe("the agent's configuration", () => {
  const configOf = (objects: Json[]) => {
    const text = find(objects, "ConfigMap", "burst-vmlet").data["vmlet.yaml"] as string;
    return parseConfig(text, "vmlet.yaml", { nodeAddress: "10.0.0.9" });
  };

  test.each(names)("of %s is accepted by the agent", (name) => {
    expect(configOf(objectsOf(name)).nodes.length).toBeGreaterThan(0);
  });

  test("has a port of its own for every node", () => {
    expect(configOf(objectsOf("full")).nodes.map((node) => node.kubelet.port)).toEqual([10250, 10350, 10252]);
  });

  test("has what the values say of a node, whatever it is", () => {
    const [node] = configOf(objectsOf("full")).nodes;
    expect(node).toMatchObject({
      capacity: { cpu: "64", memory: "256Gi", pods: "110", "nvidia.com/gpu": "4" },
      labels: { "topology.kubernetes.io/zone": "zone-a" },
      backendOutageGrace: "5m",
    });
  });

  test("names the election's lease as the role does", async () => {
    const objects = objectsOf("minimal");
    const { leaderElection } = configOf(objects);
    const role = find(objects, "Role", "burst-vmlet-leader");
    expect([role.metadata.namespace, role.rules[1].resourceNames]).toEqual([
      leaderElection.namespace,
      [leaderElection.name],
    ]);
  });

  const backendConfigOf = (objects: readonly Json[]) => {
    const { data } = find([...objects], "ConfigMap", "burst-vmlet-backend");
    return parseBackendConfig(data["backend.yaml"] as string, "backend.yaml");
  };

  test.each([
    ["backend", "process"],
    ["backend-oci", "oci"],
    ["backend-cri", "cri"],
  ])("of %s is accepted by the backend, with engine %s", (name, engine) => {
    expect(backendConfigOf(objectsOf(name)).engine.type).toBe(engine);
  });

  test.each(["backend", "backend-oci", "backend-cri"])("of %s offers no volumes that would outlive its pod", (name) => {
    const { volumes } = find(objectsOf(name), "Deployment", "burst-vmlet-backend").spec.template.spec;
    expect(volumes.find((volume: Json) => volume.name === "state")).toHaveProperty("emptyDir");
    expect(backendConfigOf(objectsOf(name)).persistentVolumes).toBe(false);
  });

  test("of the backend has what the values say besides", async () => {
    const config = { engine: { network: { cidr: "10.77.0.0/16" } }, systemReserved: { cpu: "500m" } };
    const image = { repository: "r.example.com/backend" };
    const backend = { enabled: true, existingSecret: "s", image, engine: "cri", config };
    const { engine, systemReserved } = backendConfigOf(await renderValues(minimal({ backend })));
    expect(engine).toMatchObject({ type: "cri", network: { cidr: "10.77.0.0/16" } });
    expect(systemReserved).toMatchObject({ cpu: "500m" });
  });

  test("leads to the backend's Service with the backend's token", () => {
    const objects = objectsOf("backend");
    const { provider } = configOf(objects).nodes[0]!;
    expect(provider).toMatchObject({
      url: "https://burst-vmlet-backend.vmlet-system.svc:8080",
      tokenFile: "/etc/vmlet/secrets/vmlet-backend/token",
      caFile: "/etc/vmlet/secrets/vmlet-backend/ca.crt",
    });
    const mounts = find(objects, "Deployment", "burst-vmlet").spec.template.spec.containers[0].volumeMounts;
    expect(mounts.map((mount: Json) => mount.mountPath)).toContain("/etc/vmlet/secrets/vmlet-backend");
  });

  test("does not come with the backend's private key", () => {
    const { volumes } = find(objectsOf("backend"), "Deployment", "burst-vmlet").spec.template.spec;
    const { secret } = volumes.find((volume: Json) => volume.secret?.secretName === "vmlet-backend");
    expect(secret.items.map((item: Json) => item.key)).toEqual(["token", "ca.crt"]);
  });

  test("changes the pods when something changes that a running agent cannot", async () => {
    const [one, two] = await Promise.all([renderValues(minimal()), renderValues(minimal({ logLevel: "debug" }))]);
    expect(find(one, "Deployment").spec.template).not.toEqual(find(two, "Deployment").spec.template);
  });

  test("leaves the pods alone when a node is added or changes: the agent reads it again", async () => {
    const [first] = minimal()["nodes"] as Json[];
    const other = { ...first, labels: { zone: "2" }, capacity: { cpu: "1" } };
    const added = { ...first, name: "burst-9" };
    const [one, two] = await Promise.all([
      renderValues(minimal()),
      renderValues(minimal({ nodes: [other, added], api: { qps: 7, burst: 9 } })),
    ]);
    expect(find(two, "Deployment").spec.template).toEqual(find(one, "Deployment").spec.template);
    expect(configOf(two).nodes).toHaveLength(2);
  });

  test("is found at the pod's address unless the values name one", () => {
    const variables = (name: string) =>
      find(objectsOf(name), "Deployment", "burst-vmlet").spec.template.spec.containers[0].env ?? [];
    expect(variables("minimal")).toEqual([
      { name: "VMLET_NODE_ADDRESS", valueFrom: { fieldRef: { fieldPath: "status.podIPs" } } },
    ]);
    expect(variables("single")).toEqual([]);
  });
});

describe("the network policy", () => {
  test("lets no pod reach the health port unless the values name it", () => {
    const open = names.filter((name) =>
      objectsOf(name)
        .filter(({ kind }) => kind === "NetworkPolicy")
        .some(({ spec }) => spec.ingress.some(({ ports }: Json) => ports.some(({ port }: Json) => port === 10248))),
    );
    expect(open).toEqual(["full"]);
    const { ingress } = find(objectsOf("full"), "NetworkPolicy", "burst-vmlet").spec;
    const monitoring = { namespaceSelector: { matchLabels: { "kubernetes.io/metadata.name": "monitoring" } } };
    expect(ingress[1]).toEqual({ from: [monitoring], ports: [{ protocol: "TCP", port: 10248 }] });
  });

  test("lets private addresses alone call the kubelet API unless the values name others", () => {
    const callers = (name: string) =>
      find(objectsOf(name), "NetworkPolicy", "burst-vmlet").spec.ingress[0].from.map((peer: Json) => peer.ipBlock.cidr);
    expect(callers("minimal")).toEqual(["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"]);
    expect(callers("full")).toEqual(["10.0.0.0/8"]);
  });

  test("lets callers reach the kubelet port of every node", () => {
    const policy = find(objectsOf("full"), "NetworkPolicy", "burst-vmlet");
    expect(policy.spec.ingress[0].ports.map((port: Json) => port.port)).toEqual([10250, 10350, 10252]);
  });

  test("lets nobody reach the port of the agent's probes, which come from its own host", () => {
    const policy = find(objectsOf("full"), "NetworkPolicy", "burst-vmlet");
    const [agent] = find(objectsOf("full"), "Deployment", "burst-vmlet").spec.template.spec.containers;
    const port = agent.ports.find((each: Json) => each.name === "probes").containerPort as number;
    const used = [agent.startupProbe, agent.livenessProbe, agent.readinessProbe].map((probe) => probe.httpGet.port);
    expect(used).toEqual(["probes", "probes", "probes"]);
    expect(policy.spec.ingress.flatMap((rule: Json) => rule.ports).map((each: Json) => each.port)).not.toContain(port);
  });
});

test.each([
  ["busybox:1.36", "busybox"],
  ["registry.example.com:5000/tools/busybox", "registry.example.com:5000/tools/busybox"],
  [`busybox:1.36@sha256:${"0".repeat(64)}`, "busybox"],
])("the smoke test of %s runs the digest that the values name", async (image, repository) => {
  const digest = `sha256:${"a".repeat(64)}`;
  const imageOf = (objects: Json[]) =>
    find(objects, "Pod").spec.containers[0].args.find((arg: string) => arg.startsWith("--image="));
  expect(imageOf(await renderValues(minimal({ smokeTest: { image, digest } })))).toBe(
    `--image=${repository}@${digest}`,
  );
  expect(imageOf(await renderValues(minimal({ smokeTest: { image } })))).toBe(`--image=${image}`);
});

describe.each(ci)("several releases of %s in one cluster", async (_, file) => {
  const releases = [
    [release, namespace],
    [release, "other"],
    ["spike", namespace],
  ] as const;
  const each = await Promise.all(
    releases.map(async ([name, where]) => render(file, ["--namespace", where], chart, name)),
  );

  // A driver of volumes has one name everywhere, and so a second release with it is refused.
  const ofOneRelease = ["CSIDriver", "StorageClass"];

  test("have no object in common", () => {
    const identities = each.flatMap((objects) =>
      objects
        .filter(({ kind }) => !ofOneRelease.includes(kind))
        .map((object) => `${named(object)} in ${object.metadata.namespace ?? "the cluster"}`),
    );
    expect(identities.toSorted()).toEqual([...new Set(identities)].toSorted());
  });

  test("grant nothing to each other's accounts", () => {
    for (const [index, objects] of each.entries()) {
      const own = podsOf(objects).map(
        ({ owner, spec }) => `system:serviceaccount:${owner.metadata.namespace}:${spec.serviceAccountName}`,
      );
      const bound = objects
        .flatMap(({ subjects = [] }) => subjects as Json[])
        .filter(({ kind }) => kind === "ServiceAccount")
        .map(({ name, namespace: where }) => `system:serviceaccount:${where}:${name}`);
      expect(bound.filter((account) => !own.includes(account))).toEqual([]);
      const judged = objects
        .filter(({ kind }) => kind === "ValidatingAdmissionPolicy")
        .flatMap(({ spec }) => spec.matchConditions.map(({ expression }: Json) => expression as string));
      const [name, where] = releases[index]!;
      for (const expression of judged)
        expect(expression).toBe(`request.userInfo.username == 'system:serviceaccount:${where}:${name}-vmlet'`);
    }
  });

  test("lead by leases of their own", () => {
    const leases = each.map((objects) => {
      const { data } = objects.find(({ kind, data: files }) => kind === "ConfigMap" && "vmlet.yaml" in files)!;
      const { namespace: where, name } = parseConfig(data["vmlet.yaml"], "vmlet.yaml").leaderElection;
      return `${where}/${name}`;
    });
    expect(new Set(leases).size).toBe(releases.length);
  });
});

test("no role and no binding is created by whoever may create none", async () => {
  const objects = await renderValues(minimal({ rbac: { create: false } }));
  expect(objects.filter(({ kind }) => /Role|AdmissionPolicy/.test(kind)).map(named)).toEqual([]);
  const accounts = objects.filter(({ kind }) => kind === "ServiceAccount").map(named);
  expect(accounts.toSorted()).toEqual(["", "-smoke", "-uninstall"].map((end) => `ServiceAccount/burst-vmlet${end}`));
});

describe("the roles", () => {
  const modes = [
    ["minimal", "impersonate"],
    ["certificate", "certificate"],
    ["service-account", "direct"],
  ] as const;

  test.each(modes)("of %s grant exactly what the agent says it needs", (name, mode) => {
    const objects = objectsOf(name);
    // Only what belongs to the process: what a node may do is the Node authorizer's matter.
    const needed = nodePermissions("burst-0", {
      mode,
      csr: mode !== "direct",
      clusterId: false,
      clientCa: true,
      leaderElection: { namespace, name: "burst-vmlet" },
    })
      .filter((permission) => mode === "direct" || permission.asProcess)
      .map(neededKey);
    const granted = rightsOf(objects, find(objects, "ServiceAccount", "burst-vmlet").metadata.name).map(keyOf);
    expect([...new Set(granted)].toSorted()).toEqual([...new Set(needed)].toSorted());
  });
});

test("the agent may create pods only where a node has static pods, and then only mirrors of its own nodes", async () => {
  const values = { identity: { mode: "serviceAccount", workloadNamespaces: [] }, rbac: { create: true } };
  const node = minimal().nodes[0];
  const of = async (nodes: Json[]) => {
    const objects = await renderValues(minimal({ ...values, nodes }));
    const [role] = objects.filter(
      ({ kind, metadata }) => kind === "ClusterRole" && metadata.name.endsWith("burst-vmlet"),
    );
    const { rules } = role!;
    const { validations } = objects.find(({ kind }) => kind === "ValidatingAdmissionPolicy")!.spec;
    return {
      verbs: rules.find(({ resources }: Json) => resources.includes("pods")).verbs,
      rules: validations.filter(({ expression }: Json) => expression.includes("config.mirror")).length,
    };
  };
  expect(await of([node])).toEqual({ verbs: ["get", "list", "watch", "delete"], rules: 0 });
  const withStatic = [{ ...node, staticPodPath: "/etc/vmlet/static" }];
  expect(await of(withStatic)).toEqual({ verbs: ["get", "list", "watch", "create", "delete"], rules: 1 });
});

/** Names of pods' own objects are any. */
function neededKey({ attributes: a }: Permission): string {
  const anyName =
    ["secrets", "configmaps", "persistentvolumeclaims", "resourceclaims"].includes(a.resource) && a.name === "probe";
  const name = (anyName || a.resource === "serviceaccounts" ? undefined : a.name) ?? "*";
  return keyOf({
    verb: a.verb,
    group: a.group ?? "",
    resource: a.subresource ? `${a.resource}/${a.subresource}` : a.resource,
    name,
  });
}

describe("the webhook", () => {
  const [enforce, overflow] = find(objectsOf("full"), "MutatingWebhookConfiguration").webhooks;

  test("is asked about new pods of namespaces with a policy, and of no namespace of the cluster's own", () => {
    for (const [policy, webhook] of Object.entries({ enforce, overflow })) {
      expect(webhook.clientConfig.service).toMatchObject({ name: "burst-vmlet-webhook", path: `/${policy}` });
      expect(webhook.namespaceSelector.matchLabels).toEqual({ [BURST_LABEL]: policy });
      const [{ operator, values }] = webhook.namespaceSelector.matchExpressions;
      expect(operator).toBe("NotIn");
      expect(values).toEqual([...SYSTEM_NAMESPACES, namespace]);
    }
    expect(BURST_POLICIES).toEqual(["enforce", "overflow"]);
  });

  test("keeps no pod from being created, whatever becomes of it", () => {
    for (const webhook of [enforce, overflow])
      expect(webhook).toMatchObject({ failurePolicy: "Ignore", timeoutSeconds: 2, sideEffects: "None" });
  });

  test("does not render without a certificate, or a CA that the API server would know it by", async () => {
    const without = async (webhook: Json) =>
      renderValues(minimal({ webhook })).then(
        () => "",
        (thrown: unknown) => String(thrown),
      );
    expect(await without({ enabled: true })).toContain("webhook.existingSecret: is required");
    expect(await without({ enabled: true, existingSecret: "s" })).toContain("webhook.caBundle: is required");
  });
});
