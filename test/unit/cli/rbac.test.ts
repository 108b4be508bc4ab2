/** The roles that `vmlet check --print-rbac` prints: what the configuration needs, and nothing else. */
import { expect, test } from "vitest";
import { parseAllDocuments } from "yaml";
import { configuredPermissions, type Permission } from "../../../src/agent/permissions.ts";
import { rbacYaml, subjectOf } from "../../../src/cli/rbac.ts";
import { parseConfig } from "../../../src/config/load.ts";
import type { AgentConfig } from "../../../src/config/schema.ts";
import type { Json } from "../../e2e/harness/client.ts";
import { rightsOf } from "../helm/rights.ts";

const MODES = ["direct", "impersonate", "certificate"] as const;

function configOf(mode: (typeof MODES)[number]): AgentConfig {
  const nodes = ["a", "b"].map((name, index) => ({
    name,
    provider: { type: "memory" },
    kubelet: { port: 10_250 + index },
  }));
  const leaderElection = { enabled: true, namespace: "default", name: "vmlet" };
  const file = { apiVersion: "vmlet.dev/v1", kind: "AgentConfig", identity: { mode }, leaderElection, nodes };
  return parseConfig(JSON.stringify(file), "vmlet.yaml");
}

function objectsOf(yaml: string): Json[] {
  return [...parseAllDocuments(yaml)].map((document) => document.toJS());
}

/** One line per right, as a rule of RBAC has it. */
function lineOf({ attributes: a, exampleOf }: Permission): string {
  const resource = a.subresource === undefined ? a.resource : `${a.resource}/${a.subresource}`;
  const namespace = exampleOf === "namespaces" ? undefined : a.namespace;
  return `${a.verb} ${a.group ?? ""}/${resource} ${(exampleOf === undefined ? a.name : undefined) ?? "*"} in ${namespace ?? "*"}`;
}

test.each(MODES)("mode %s: grant each permission that is needed and no other", (mode) => {
  const config = configOf(mode);
  const printed = rightsOf(objectsOf(rbacYaml(config, subjectOf(true))), "vmlet").map(
    ({ verb, group, resource, name = "*", namespace = "*" }) => `${verb} ${group}/${resource} ${name} in ${namespace}`,
  );
  const needed = config.nodes
    .flatMap((node) => configuredPermissions(config, node))
    .filter(({ asProcess, danger }) => danger === undefined && (mode === "direct" || asProcess === true))
    .map(lineOf);
  expect(printed.toSorted()).toEqual([...new Set(needed)].toSorted());
});

test("grant the creation of pods only where there are static pods", () => {
  const config = configOf("direct");
  const verbs = () =>
    objectsOf(rbacYaml(config, subjectOf(true)))
      .flatMap(({ rules = [] }) => rules)
      .filter(({ resources }: Json) => resources.includes("pods"))
      .flatMap((rule: Json) => rule.verbs);
  expect(verbs()).not.toContain("create");
  config.nodes[1]!.staticPodPath = "/etc/vmlet/static";
  expect(verbs()).toContain("create");
});

test("leave out the right to become any node, and say so", () => {
  const yaml = rbacYaml(configOf("certificate"), subjectOf(true));
  expect(yaml).toMatch(/^# Left out: create certificatesigningrequests\/nodeclient.*become any node/m);
  expect(JSON.stringify(objectsOf(yaml))).not.toContain("nodeclient");
});

test("say where Secrets are read, for the pods of which namespaces", () => {
  const yaml = rbacYaml(configOf("direct"), subjectOf(true));
  const readers = objectsOf(yaml).filter(({ rules = [] }) => JSON.stringify(rules).includes('"secrets"'));
  expect(readers.map(({ kind, metadata }) => [kind, metadata.namespace])).toEqual([["Role", "default"]]);
  expect(yaml).toMatch(/^# The Role and RoleBinding of the namespace default: one of each for every namespace/m);
});

test.each([
  [true, { kind: "ServiceAccount", namespace: "vmlet", name: "vmlet" }],
  ["kube-system/burst", { kind: "ServiceAccount", namespace: "kube-system", name: "burst" }],
  ["jane@example.com", { kind: "User", apiGroup: "rbac.authorization.k8s.io", name: "jane@example.com" }],
] as const)("are bound to %s", (account, subject) => {
  const bindings = objectsOf(rbacYaml(configOf("impersonate"), subjectOf(account))).filter(
    ({ roleRef }) => roleRef !== undefined,
  );
  expect(bindings.length).toBeGreaterThan(1);
  for (const { subjects } of bindings) expect(subjects).toEqual([subject]);
});
