/** The commands about a cluster: `kubectl vmlet` and its tables. */
import { describe, expect, test } from "vitest";
import { pair } from "../../../src/cli/backend-machines.ts";
import { commandsOf } from "../../../src/cli/commands.ts";
import { candidates } from "../../../src/cli/completion.ts";
import { machinesText } from "../../../src/cli/machines.ts";
import { topText } from "../../../src/cli/top.ts";
import { whyLines } from "../../../src/cli/why.ts";
import type { Node, Pod } from "../../../src/kube/wire.ts";
import { podRow } from "../../../src/ui/rows.ts";

const node = (name: string, more: object = {}): Node => ({
  metadata: { name, labels: { type: "virtual-kubelet" } },
  spec: { providerID: `vmlet://dev/${name}`, ...more },
  status: {
    allocatable: { cpu: "2", memory: "4Gi", pods: "10" },
    conditions: ["Ready", "BackendReady"].map((type) => ({ type, status: "True" })),
  },
});

const pod = (name: string, spec: object = {}, status: object = { phase: "Pending" }): Pod => ({
  metadata: { name, namespace: "default", uid: name, annotations: { "vmlet.dev/machine": `m-${name}` } },
  spec: { containers: [{ name: "c", resources: { requests: { cpu: "1500m", memory: "1Gi" } } }], ...spec },
  status,
});

describe("a table", () => {
  const rows = [podRow(pod("a", { nodeName: "burst-0" }))];

  test("has kubectl's columns, and more when it is wide", () => {
    const [head, line] = machinesText(rows, {}).split("\n");
    expect(head!.split(/ {3,}/)).toEqual(["NAME", "READY", "STATUS", "RESTARTS", "AGE", "SIZE", "NODE", "HOST"]);
    expect(line).toContain("1500m cpu, 1Gi");
    expect(machinesText(rows, { output: "wide" })).toContain("m-a");
    expect(machinesText(rows, { allNamespaces: true })).toMatch(/^NAMESPACE/);
  });

  test("is whole as JSON", () => {
    expect(JSON.parse(machinesText(rows, { output: "json" }))).toMatchObject({
      ...{ apiVersion: "vmlet.dev/v1", kind: "MachineList" },
      items: [{ name: "a", machine: "m-a", size: { cpuMillis: 1500 } }],
    });
  });

  test("commands no terminal, whatever a tenant has written", () => {
    const evil = podRow(pod("a", {}, { phase: "Pending", reason: "\u001b]0;owned\u0007\nforged line\u202e" }));
    const text = machinesText([evil], { output: "wide" });
    for (const character of ["\u001b", "\u0007", "\u202e"]) expect(text).not.toContain(character);
    expect(text.trimEnd().split("\n")).toHaveLength(2);
  });

  test("says that there is nothing", () => {
    expect(machinesText([], {})).toContain("-A");
  });

  test("of what machines use is ordered by it", () => {
    const usage = (name: string, cpu: string) => ({
      metadata: { namespace: "default", name },
      containers: [{ usage: { cpu, memory: "512Mi" } }],
    });
    const machines = ["a", "b", "idle"].map((name) => podRow(pod(name)));
    const lines = topText([usage("a", "150m"), usage("b", "3")], machines, {}).split("\n");
    expect(lines[1]).toMatch(/^b +3 +200% +512Mi +50%/);
    expect(lines[2]).toMatch(/^a +150m +10% /);
    expect(lines[3]).toBe("");
  });
});

describe("why", () => {
  test("says where a pod could run, and what keeps it from elsewhere", () => {
    const taints = [{ key: "virtual-kubelet.io/provider", value: "vmlet", effect: "NoSchedule" }];
    const nodes = [node("free"), node("tainted", { taints }), node("full"), node("cordoned", { unschedulable: true })];
    const others = [podRow(pod("there", { nodeName: "full" }, { phase: "Running" }))];
    const lines = whyLines(pod("a", { nodeSelector: { type: "virtual-kubelet" } }), nodes, others).map((line) =>
      line.trim(),
    );
    expect(lines).toContain("node free: could run it");
    expect(lines).toContain("- no toleration for the taint virtual-kubelet.io/provider=vmlet:NoSchedule");
    expect(lines).toContain("- cpu: 1500m wanted, 500m left");
    expect(lines).toContain("- the node is cordoned");
  });

  test("names the label that a node lacks or has otherwise", () => {
    const lines = whyLines(pod("a", { nodeSelector: { gpu: "yes", type: "other" } }), [node("free")], []).join("\n");
    expect(lines).toContain("nodeSelector wants gpu=yes; the node has no label gpu");
    expect(lines).toContain("nodeSelector wants type=other; the node has type=virtual-kubelet");
  });

  test("says what a pod waits for on its node", () => {
    const state = { waiting: { reason: "ImagePullBackOff", message: "no such image" } };
    const lines = whyLines(
      pod("a", { nodeName: "free" }, { phase: "Pending", containerStatuses: [{ name: "c", state }] }),
      [node("free")],
      [],
    ).join("\n");
    expect(lines).toContain("ImagePullBackOff (no such image)");
    expect(lines).toContain("runs on node free as machine m-a");
  });

  test("says of a pod that was refused that it waits for nothing", () => {
    const made = pod("a", { nodeName: "free" }, { phase: "Failed", reason: "UnsupportedFeature" });
    const refused = { ...made, metadata: { ...made.metadata, annotations: {} } };
    expect(whyLines(refused, [node("free")], []).slice(1)).toEqual([
      "  was refused by node free, which made no machine for it: nothing runs it again under this name",
    ]);
    const ended = pod("a", { nodeName: "free" }, { phase: "Succeeded" });
    expect(whyLines(ended, [node("free")], [])).toContain("  ran on node free as machine m-a");
  });

  test("says that Nodes may not be read", () => {
    expect(whyLines(pod("a"), undefined, []).join("\n")).toContain("you may not read Nodes");
  });
});

test("an operator sees orphans, and pods that have no machine", () => {
  const machines = [
    { id: "1", state: "running", labels: { "vmlet.dev/uid": "a" } },
    { id: "2", state: "running", labels: { "vmlet.dev/uid": "gone", "vmlet.dev/pod": "old" } },
    { id: "3" },
  ];
  const pods = [pod("a"), pod("waits"), pod("done", {}, { phase: "Failed" })];
  expect(pair("n", machines, pods).map(({ machine, pod, verdict }) => [machine, pod, verdict])).toEqual([
    ["1", "a", "ok"],
    ["2", "old", "orphan"],
    ["3", "", "unknown state"],
    ["", "waits", "no machine"],
    ["", "done", "ok"],
  ]);
});

describe("completion", () => {
  const names = () => Promise.resolve(["burst-0", "web"]);
  const of = (program: "vmlet" | "kubectl vmlet", ...words: string[]) => candidates(commandsOf(program), words, names);

  test("knows commands, flags, their values and machines", async () => {
    expect(await of("vmlet", "ma")).toEqual(["machines"]);
    expect(await of("vmlet", "machines", "--all")).toEqual(["--all-namespaces"]);
    expect(await of("vmlet", "machines", "-o", "")).toEqual(["wide", "json", "yaml"]);
    expect(await of("vmlet", "machines", "-n", "")).toEqual([]);
    expect(await of("vmlet", "logs", "b")).toEqual(["burst-0"]);
    expect(await of("vmlet", "node", "")).toEqual(["drained", "remove"]);
    expect(await of("vmlet", "constructor", "")).toEqual([]);
  });

  test("offers kubectl its own commands alone", async () => {
    expect(await of("kubectl vmlet", "")).toEqual(["ui", "nodes", "machines", "why", "top", "logs", "version"]);
  });
});
