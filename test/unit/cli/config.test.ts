import { expect, test } from "vitest";
import { parseBackendConfig } from "../../../providers/local/config.ts";
import { agentFile, backendFile, explainField } from "../../../src/cli/config.ts";
import { ConfigError, parseConfig } from "../../../src/config/load.ts";
import { documentFields } from "../../../src/config/reference.ts";
import { agentConfigSchema } from "../../../src/config/schema.ts";

const docs = documentFields(agentConfigSchema);

test.each(["nodes.kubelet.port", "nodes[].kubelet.port", "nodes[3].kubelet.port"])("%s is explained", (field) => {
  expect(explainField(field, docs)).toBe(
    "nodes[].kubelet.port  [default: 10250]\n    Port of the kubelet API; 0 picks a free one.",
  );
});

test("a mapping is explained with all that is below it, and nothing else", () => {
  const told = explainField("leaderElection", docs);
  expect(told).toContain("leaderElection.leaseDuration");
  expect(told.split("\n").filter((line) => /^\w/.test(line) && !line.startsWith("leaderElection."))).toEqual([]);
});

test("without a field all are explained", () => {
  for (const { field } of docs) expect(explainField("", docs)).toContain(field);
});

test.each([
  ["helth.port", "there is no field helth.port; did you mean health.port?"],
  ["nodes.kubelt", "there is no field nodes.kubelt; did you mean nodes.kubelet?"],
  ["qps", "there is no field qps; there is api.qps"],
  ["nothing-like-it", "there is no field nothing-like-it"],
])("%s is none, and what may be meant is named", (field, told) => {
  expect(() => explainField(field, docs)).toThrow(new ConfigError(told));
});

test("the agent's file to begin with can be used as it is, and changes no default", () => {
  const minimal = parseConfig(
    JSON.stringify({
      apiVersion: "vmlet.dev/v1",
      kind: "AgentConfig",
      nodes: [
        {
          name: "burst-0",
          provider: { type: "http-vm", url: "https://vms.example.com", tokenFile: "/etc/vmlet/token" },
        },
      ],
    }),
    "minimal.yaml",
  );
  expect(parseConfig(agentFile("x.json"), "vmlet.yaml")).toEqual(minimal);
});

test("the backend's file to begin with can be used as it is", () => {
  expect(parseBackendConfig(backendFile("x.json"), "backend.yaml")).toMatchObject({
    engine: { type: "process" },
    listen: { socket: "/run/vmlet/backend.sock" },
  });
});

test("a field with a default that is no longer a comment has that default", () => {
  const file = agentFile("x.json");
  const line = "    #backendOutageGrace: 10m\n";
  expect(file).toContain(line);
  const changed = file.replace(line, "    backendOutageGrace: 7m\n");
  expect(parseConfig(changed, "vmlet.yaml").nodes[0]!.backendOutageGrace).toBe("7m");
});

test("the file to begin with names every field", () => {
  const file = agentFile("x.json");
  const shown = new Set([...file.matchAll(/^ *(?:- )?#?(\w+):/gm)].map(([, name]) => name));
  const names = docs
    .filter(({ kinds, field }) => kinds.length === 0 && !/\[\]\..*\[\]/.test(field))
    .map(({ field }) => field.split(".").at(-1)!.replace("[]", ""));
  expect(names.filter((name) => !shown.has(name))).toEqual([]);
});

test("the first line tells an editor where the schema is", () => {
  expect(agentFile("x.json").split("\n")[0]).toBe("# yaml-language-server: $schema=x.json");
});
