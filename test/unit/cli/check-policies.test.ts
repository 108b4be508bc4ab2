/** What `vmlet check` says of NetworkPolicies. */
import { expect, test } from "vitest";
import { checkNetworkPolicies } from "../../../src/cli/check-policies.ts";
import { Report } from "../../../src/cli/report.ts";
import { KubeApiError } from "../../../src/kube/errors.ts";
import type { Kube } from "../../../src/kube/kube.ts";

async function findings(answer: () => unknown) {
  const report = new Report({}, () => {});
  const kube = { request: async () => await answer() } as Pick<Kube, "request">;
  await checkNetworkPolicies(kube, report, AbortSignal.timeout(1_000));
  return report.findings.map(({ level, text }) => [level, text.split(":")[0]]);
}

const policies = (...namespaces: string[]) => ({ items: namespaces.map((namespace) => ({ metadata: { namespace } })) });
const refused = (status: number) => () => {
  throw new KubeApiError("no", { status, reason: "x" });
};

test("Those of a cluster that has some are said not to be enforced, with their namespaces, each once", async () => {
  expect(await findings(() => policies("shop", "bank", "shop"))).toEqual([
    ["note", "the NetworkPolicies of namespaces bank, shop are NOT enforced"],
  ]);
  expect(await findings(() => policies("a", "b", "c", "d", "e", "f", "g"))).toEqual([
    ["note", "the NetworkPolicies of namespaces a, b, c, d, e and 2 more are NOT enforced"],
  ]);
});

test.each<[string, () => unknown, string]>([
  ["has none", () => policies(), "a NetworkPolicy would not be enforced"],
  ["has no such API", refused(404), "a NetworkPolicy would not be enforced"],
  ["does not let it list them", refused(403), "NetworkPolicies, which may not be listed here, are not enforced"],
])("Where a cluster %s, it is said as well", async (_what, answer, text) => {
  expect(await findings(answer)).toEqual([["note", text]]);
});

test("What else goes wrong is the caller's to tell", async () => {
  await expect(findings(refused(500))).rejects.toThrow("no");
});
