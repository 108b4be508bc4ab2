import { describe, expect, test } from "vitest";
import { ConfigError, loadConfig, parseConfig, configuredBy } from "../../../src/config/load.ts";
import { mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const minimal = `apiVersion: vmlet.dev/v1
kind: AgentConfig
nodes:
  - name: burst-0
    provider: { type: http-vm, url: "http://127.0.0.1:8080" }
`;

function faultOf(text: string): string {
  try {
    parseConfig(text, "vmlet.yaml");
  } catch (thrown) {
    expect(thrown).toBeInstanceOf(ConfigError);
    return (thrown as Error).message;
  }
  throw new Error("the configuration was accepted");
}

describe("a configuration file", () => {
  test("needs no more than a name and a provider", () => {
    const config = parseConfig(minimal, "vmlet.yaml");
    expect(config.nodes[0]).toMatchObject({
      name: "burst-0",
      kubelet: { port: 10250 },
      taints: [{ key: "virtual-kubelet.io/provider", value: "vmlet", effect: "NoSchedule" }],
      backendOutageGrace: "10m",
    });
  });

  test("names a misspelt key with its line and column", () => {
    expect(faultOf(minimal + "logLvl: debug\n")).toBe("vmlet.yaml:6:1: logLvl: unknown key; did you mean logLevel?");
  });

  test.each(["__proto__", "constructor", "toString"])("has no meaning for %s, and pollutes nothing", (key) => {
    const inside = "{ polluted: yes, prototype: { polluted: yes } }";
    expect(faultOf(`${minimal}${key}: ${inside}\n`)).toContain(`${key}: unknown key`);
    expect(faultOf(`${minimal}    ${key}: ${inside}\n`)).toContain(`nodes[0].${key}: unknown key`);
    expect(({} as Record<string, unknown>)["polluted"]).toBeUndefined();
  });

  test("names a misspelt key inside a node", () => {
    expect(faultOf(minimal + "    capacty: { cpu: 4 }\n")).toBe(
      "vmlet.yaml:6:5: nodes[0].capacty: unknown key; did you mean capacity?",
    );
  });

  test("names a bad quantity with its path and position", () => {
    expect(faultOf(minimal + "    capacity:\n      cpu: four\n")).toBe(
      "vmlet.yaml:7:7: nodes[0].capacity.cpu: must be a Kubernetes quantity such as 500m, 4, 512Mi or 64Gi",
    );
  });

  test("takes a quantity written as a number", () => {
    expect(parseConfig(minimal + "    capacity: { cpu: 4 }\n", "f").nodes[0]!.capacity).toEqual({ cpu: "4" });
  });

  test("names a bad duration", () => {
    expect(faultOf(minimal + "    backendOutageGrace: soon\n")).toContain(
      "nodes[0].backendOutageGrace: must be a duration",
    );
  });

  test("names what is required and missing", () => {
    expect(faultOf("apiVersion: vmlet.dev/v1\nkind: AgentConfig\nnodes:\n  - name: a\n")).toContain(
      "nodes[0].provider: is required",
    );
  });

  test("names the place of a syntax error", () => {
    expect(faultOf("apiVersion: [\n")).toMatch(/^vmlet\.yaml:\d+:\d+: /);
  });

  test("may give a node the labels that a kubelet may give itself, and any to one that is no kubelet", () => {
    const labels = (...keys: string[]) => `    labels: { ${keys.map((key) => `${key}: x`).join(", ")} }\n`;
    const allowed = ["pool", "example.com/Pool_1", "topology.kubernetes.io/zone", "x.node.kubernetes.io/y"];
    const identity = "identity: { mode: certificate }\n";
    expect(parseConfig(minimal + labels(...allowed) + identity, "f").nodes).toHaveLength(1);
    expect(parseConfig(minimal + labels("node-role.kubernetes.io/vm"), "f").nodes).toHaveLength(1);
    for (const key of ["node-restriction.kubernetes.io/x", "my.k8s.io/y"])
      expect(faultOf(minimal + labels(key) + identity)).toContain(`nodes[0].labels.${key}: a node may not`);
  });

  test("is one document", () => {
    expect(faultOf(`${minimal}---\na: 1\n`)).toBe(
      "vmlet.yaml:6:1: the file must hold one document; a second begins here",
    );
  });

  test("lists every fault, one a line", () => {
    expect(faultOf(minimal + "    podConcurrency: 0\nlogLevel: loud\n").split("\n")).toHaveLength(2);
  });

  test("refuses two nodes of one name", () => {
    expect(faultOf(minimal + "  - name: burst-0\n    provider: { type: memory }\n")).toContain(
      "node names must differ",
    );
  });

  test("refuses two nodes on one port, where only one could listen", () => {
    const other = "  - name: burst-1\n    provider: { type: memory }\n";
    expect(faultOf(minimal + other)).toBe(
      "vmlet.yaml:6:5: nodes[1].kubelet.port: 10250 is taken by nodes[0]; set another, such as 10251",
    );
    const addressed = (address: string) => `    kubelet: { address: ${address} }\n`;
    expect(parseConfig(minimal + addressed("10.0.0.1") + other + addressed("10.0.0.2"), "f").nodes).toHaveLength(2);
    const free = "    kubelet: { port: 0 }\n";
    expect(parseConfig(minimal + free + other + free, "f").nodes).toHaveLength(2);
  });

  test("refuses a kubelet API where something else listens, also behind a wildcard", () => {
    const kubelet = (address: string, port: number) => `    kubelet: { address: "${address}", port: ${port} }\n`;
    expect(faultOf(minimal + kubelet("0.0.0.0", 10248))).toBe(
      "vmlet.yaml:6:36: nodes[0].kubelet.port: 10248 is taken by health.port; set another, such as 10249",
    );
    expect(faultOf(minimal + kubelet("::", 10248))).toContain("is taken by health.port");
    expect(faultOf(`${minimal}health: { probePort: 10248 }\n`)).toContain("probePort: 10248 is taken by health.port");
    expect(faultOf(`${minimal}health: { probePort: 10250 }\n`)).toContain("10250 is taken by health.probePort");
    expect(parseConfig(minimal + kubelet("10.0.0.1", 10248), "f").health.port).toBe(10248);
    const other = "  - name: burst-1\n    provider: { type: memory }\n";
    expect(faultOf(minimal + other + kubelet("10.0.0.1", 10250))).toContain("10250 is taken by nodes[0]");
    expect(parseConfig(minimal + other + kubelet("fd00::1", 10250), "f").nodes).toHaveLength(2);
  });

  test.each([
    [
      "nodes[0].provider.type: is required: must be one of http-vm, memory, module",
      "nodes:\n  - name: a\n    provider: { url: https://vms }\n",
    ],
    [
      "nodes[0].provider.type: must be one of http-vm, memory, module, cloud, not htp-vm; did you mean http-vm?",
      "nodes:\n  - name: a\n    provider: { type: htp-vm }\n",
    ],
    [
      "nodes[0].taints[0].key: is not a label key",
      "nodes:\n  - name: a\n    provider: { type: memory }\n    taints: [{ key: a b, effect: NoSchedule }]\n",
    ],
    [
      "nodes[0].taints[0].value: is not a label value",
      "nodes:\n  - name: a\n    provider: { type: memory }\n    taints: [{ key: a, value: b c, effect: NoSchedule }]\n",
    ],
    [
      "nodes[0].dns.clusterDns[0]: must be an IP address",
      "nodes:\n  - name: a\n    provider: { type: memory }\n    dns: { clusterDns: [kube-dns] }\n",
    ],
    [
      "nodes[0].provider.certFile: goes with keyFile, which is missing",
      "nodes:\n  - name: a\n    provider: { type: http-vm, url: https://vms, certFile: /cert }\n",
    ],
    [
      "nodes[0].provider.url: the backend's address https://<BACKEND> is no URL; give https://host:port",
      "nodes:\n  - name: a\n    provider: { type: http-vm, url: https://<BACKEND> }\n",
    ],
    [
      "nodes[0].provider.url: credentials do not belong in an address; use tokenFile",
      "nodes:\n  - name: a\n    provider: { type: http-vm, url: https://me:secret@vms }\n",
    ],
    [
      "nodes[0].kubelet.certFile: goes with keyFile, which is missing",
      "nodes:\n  - name: a\n    provider: { type: memory }\n    kubelet: { certFile: /cert }\n",
    ],
    [
      "nodes[0].kubelet.certificate: files needs certFile and keyFile",
      "nodes:\n  - name: a\n    provider: { type: memory }\n    kubelet: { certificate: files }\n",
    ],
    [
      "nodes[0].addresses[0]: must be an IP address",
      "nodes:\n  - name: a\n    provider: { type: memory }\n    addresses: [host.example]\n",
    ],
    [
      "nodes[0].addresses[1]: is of the same family as 10.0.0.1: a pod's hostIPs have one IPv4 and one IPv6 address at most; leave one of the two out",
      "nodes:\n  - name: a\n    provider: { type: memory }\n    addresses: [10.0.0.1, 10.0.0.2, fd00::1]\n",
    ],
    [
      "nodes[0].podCIDRs[0]: must be a range of addresses, as 10.0.0.0/8 or fd00::/8",
      "nodes:\n  - name: a\n    provider: { type: memory }\n    podCIDRs: [10.0.0.1]\n",
    ],
    ...(
      [
        ["foo bar", "1", "is not the name of a resource"],
        ["gpus", "1", "no pod could ask for it: must be cpu, memory, ephemeral-storage, pods, or have a prefix"],
        ["pods", "1.5", "must be a whole number, not 1.5"],
        ["nvidia.com/gpu", "500m", "must be a whole number, not 500m"],
      ] as const
    ).map(([name, amount, fault]): [string, string] => [
      `nodes[0].capacity.${name}: ${fault}`,
      `nodes:\n  - name: a\n    provider: { type: memory }\n    capacity: { "${name}": "${amount}" }\n`,
    ]),
    [
      "nodes[0].taints[1]: has the key and the effect of taints[0]: a Node's taints differ in one of them; leave one of the two out",
      "nodes:\n  - name: a\n    provider: { type: memory }\n    taints: [{ key: a, effect: NoSchedule }, { key: a, value: b, effect: NoSchedule }]\n",
    ],
    [
      "clusterId: must be letters, digits, '-', '_' and '.', and begin and end with a letter or digit",
      "clusterId: a b/c\nnodes:\n  - name: a\n    provider: { type: memory }\n",
    ],
    [
      "vmlet.yaml:6:5: nodes[1].name: a is the name of nodes[0] too: node names must differ",
      "nodes:\n  - name: a\n    provider: { type: memory }\n  - name: a\n    provider: { type: memory }\n",
    ],
    [
      "nodes[0].crashLoopBackoff.initial: must not be longer than max (300s)",
      "nodes:\n  - name: a\n    provider: { type: memory }\n    crashLoopBackoff: { initial: 10m }\n",
    ],
    [
      "nodes[0].backendOutageGrace: must be a duration",
      "nodes:\n  - name: a\n    provider: { type: memory }\n    backendOutageGrace: -5m\n",
    ],
    [
      "leaderElection.renewDeadline: must be shorter than leaseDuration (10s)",
      "leaderElection: { leaseDuration: 10s }\nnodes:\n  - name: a\n    provider: { type: memory }\n",
    ],
    [
      "leaderElection.retryPeriod: must be more than 0 and less than two thirds of renewDeadline (10s)",
      "leaderElection: { retryPeriod: 0s }\nnodes:\n  - name: a\n    provider: { type: memory }\n",
    ],
    [
      "leaderElection.retryPeriod: must be more than 0 and less than two thirds of renewDeadline (10s)",
      "leaderElection: { retryPeriod: 7s }\nnodes:\n  - name: a\n    provider: { type: memory }\n",
    ],
    ["Unresolved alias", "nodes: *unknown\n"],
    [
      "nodes[0].labels.two words: is not a label key: at most 63 letters, digits, '-', '_' and '.', after a DNS prefix and '/' if need be",
      "nodes:\n  - name: a\n    provider: { type: memory }\n    labels: { two words: x }\n",
    ],
    [
      "nodes[0].labels.pool: is not a label value: at most 63 letters, digits, '-', '_' and '.'",
      "nodes:\n  - name: a\n    provider: { type: memory }\n    labels: { pool: a b }\n",
    ],
    [
      "nodes[0].labels.node-role.kubernetes.io/vm: a node may not give itself this label (NodeRestriction); an administrator may: kubectl label node a node-role.kubernetes.io/vm=",
      "identity: { mode: impersonate }\nnodes:\n  - name: a\n    provider: { type: memory }\n    labels: { node-role.kubernetes.io/vm: '' }\n",
    ],
  ])("is refused with %s", (fault, rest) => {
    const told = faultOf(`apiVersion: vmlet.dev/v1\nkind: AgentConfig\n${rest}`);
    expect(told).toContain(fault);
    expect(told).toMatch(/^vmlet\.yaml:/);
    expect(told).not.toContain("secret");
  });

  test.each([
    ["logLevel: loud", "logLevel: must be one of debug, info, warn, error, not loud"],
    ["logLevel: wran", "logLevel: must be one of debug, info, warn, error, not wran; did you mean warn?"],
    ["logLevel: [info]", "logLevel: must be one of debug, info, warn, error, not a list"],
    ["health: { port: 70000 }", "health.port: must be at most 65535, not 70000"],
    ["health: { port: -1 }", "health.port: must be at least 0, not -1"],
    ['health: { port: "80" }', "health.port: must be a number, not a text"],
    ["health: { port: 1.5 }", "health.port: must be a whole number, not 1.5"],
    ["health: 80", "health: must be a mapping, not 80"],
    ["kubeconfig: null", "kubeconfig: must be a text, not empty"],
    ["api: { qps: 0 }", "api.qps: must be more than 0, not 0"],
    ['clusterId: ""', "clusterId: must not be empty"],
    ["leaderElection: { enabled: yes }", "leaderElection.enabled: must be true or false, not a text"],
  ])("with %s is told what it must be, and what it is", (line, fault) => {
    expect(faultOf(`${minimal}${line}\n`)).toMatch(/^vmlet\.yaml:6:\d+: /);
    expect(faultOf(`${minimal}${line}\n`).replace(/^vmlet\.yaml:6:\d+: /, "")).toBe(fault);
  });

  test("says which version it must be of", () => {
    expect(faultOf(minimal.replace("vmlet.dev/v1", "vmlet.dev/v2"))).toBe(
      "vmlet.yaml:1:1: apiVersion: must be vmlet.dev/v1, not vmlet.dev/v2",
    );
  });

  test("repeats no text that could be a secret", () => {
    const told = faultOf(`${minimal.replace('"http://127.0.0.1:8080"', "hunter2")}kubeconfig: [hunter2]\n`);
    expect(told.split("\n")).toHaveLength(2);
    expect(told).not.toContain("hunter2");
  });

  test("takes rules of instance types, for all namespaces and labels unless they say otherwise", () => {
    const config = parseConfig(`${minimal}    instanceTypes: [{ allow: [small] }]\n`, "vmlet.yaml");
    expect(config.nodes[0]!.instanceTypes).toEqual([{ namespaces: ["*"], podLabels: {}, allow: ["small"] }]);
    expect(parseConfig(minimal, "vmlet.yaml").nodes[0]!.instanceTypes).toBeUndefined();
  });

  test("refuses a rule of instance types that can match nothing because it is malformed", () => {
    expect(faultOf(`${minimal}    instanceTypes: [{ namespaces: ["team-[a"], allow: [] }]\n`)).toContain(
      "nodes[0].instanceTypes[0].namespaces[0]: is not a glob",
    );
    expect(faultOf(`${minimal}    instanceTypes: [{ allow: ["gpu-\\\\"] }]\n`)).toContain("is not a glob");
  });

  test("refuses a node name that Kubernetes would refuse", () => {
    expect(faultOf(minimal.replace("burst-0", "Burst_0"))).toContain("nodes[0].name: must be a DNS-1123 name");
  });
});

describe("where a setting comes from", () => {
  const file = join(mkdtempSync(join(tmpdir(), "vmlet-config-")), "vmlet.yaml");
  writeFileSync(file, minimal + "logLevel: warn\nkubeconfig: /from/file\n");

  test("the environment goes over the file", () => {
    expect(loadConfig(file, {}, { VMLET_LOG_LEVEL: "debug" }).logLevel).toBe("debug");
  });

  test("flags go over the environment", () => {
    expect(loadConfig(file, { logLevel: "error" }, { VMLET_LOG_LEVEL: "debug" }).logLevel).toBe("error");
  });

  test("an address from the environment is the address of every node", () => {
    const two = join(mkdtempSync(join(tmpdir(), "vmlet-config-")), "two.yaml");
    writeFileSync(two, minimal + "  - name: burst-1\n    provider: { type: memory }\n    kubelet: { port: 0 }\n");
    const { nodes } = loadConfig(two, {}, { VMLET_NODE_ADDRESS: "10.0.0.7,fd00::7" });
    expect(nodes.map((node) => node.addresses)).toEqual(Array(2).fill(["10.0.0.7", "fd00::7"]));
  });

  test("an override is checked like the file", () => {
    expect(() => loadConfig(file, {}, { VMLET_LOG_LEVEL: "loud" })).toThrow(/logLevel/);
  });

  test.each([
    ["VMLET_NODENAME", "VMLET_NODE_NAME"],
    ["VMLET_KUBECONFG", "VMLET_KUBECONFIG"],
  ])("a variable %s is refused, and asked whether it is %s", (name, meant) => {
    expect(() => loadConfig(file, {}, { [name]: "secret" })).toThrow(
      new ConfigError(`${name}: unknown variable; did you mean ${meant}?`),
    );
  });

  test.each([
    "VMLET_SERVICE_HOST",
    "VMLET_PORT",
    "VMLET_PORT_10248_TCP_ADDR",
    "VMLET_METRICS_SERVICE_PORT",
    "VMLET_OWNER",
  ])("a variable %s, which Kubernetes or a parent process sets, is let be", (name) => {
    expect(loadConfig(file, {}, { [name]: "x" }).logLevel).toBe("warn");
  });

  test("a fault of an override is not looked for in the file", () => {
    const told = (flags: object, environment: object) => () => loadConfig(file, flags, { ...environment });
    expect(told({}, { VMLET_LOG_LEVEL: "loud" })).toThrow(/^VMLET_LOG_LEVEL: logLevel: /);
    expect(told({ logLevel: "loud" }, { VMLET_LOG_LEVEL: "info" })).toThrow(/^--log-level: logLevel: /);
    expect(told({}, { VMLET_NODE_ADDRESS: "10.0.0.1,host" })).toThrow(
      /^VMLET_NODE_ADDRESS: nodes\[0\]\.addresses\[1\]: must be an IP address$/,
    );
    expect(told({ nodeName: "Upper" }, {})).toThrow(/^--node-name: nodes\[0\]\.name: /);
  });

  test.each(["nodes: { a: 1 }\n", "nodes: x\n", "nodes: [x]\n", ""])("finds no node to override in %j", (nodes) => {
    const head = "apiVersion: vmlet.dev/v1\nkind: AgentConfig\n";
    const overrides = { nodeAddress: "10.0.0.1" };
    expect(() => parseConfig(head + nodes, "vmlet.yaml", overrides)).toThrow(ConfigError);
  });

  test("a missing file is named", () => {
    expect(() => loadConfig("/nowhere/vmlet.yaml", {}, {})).toThrow(
      /cannot read the configuration file \/nowhere\/vmlet\.yaml/,
    );
  });
});

test.each([
  [10_250, "health: taken; a kubelet of this host has this port too: set another"],
  [8080, "health: taken; set another port, or end what has it"],
])("a port %i that is taken is told with the cure", async (port, told) => {
  const taken = Object.assign(new Error("taken"), { code: "EADDRINUSE", port });
  await expect(configuredBy("health", () => Promise.reject(taken))).rejects.toThrow(told);
});
