import { expect, test } from "vitest";
import { explainField } from "../../../src/cli/config.ts";
import { ConfigError } from "../../../src/config/load.ts";
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
  expect(told).not.toContain("nodes");
});

test("without a field all are explained", () => {
  for (const { field } of docs) expect(explainField("", docs)).toContain(field);
});

test.each([
  ["helth.port", "there is no field helth.port; did you mean health.port?"],
  ["qps", "there is no field qps; there is api.qps"],
  ["nothing-like-it", "there is no field nothing-like-it"],
])("%s is none, and what may be meant is named", (field, told) => {
  expect(() => explainField(field, docs)).toThrow(new ConfigError(told));
});
