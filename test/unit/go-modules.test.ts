/** Of the Go programs that the tests build, what two of them share is compiled once. */
import { expect, test } from "vitest";
import { controlPlaneModule, kubernetesModule } from "../e2e/harness/build.ts";
import { requiredVersions } from "../support/versions.ts";

test("the control plane and Kubernetes' own suite are made of the same versions of everything that both need", () => {
  const suite = requiredVersions(kubernetesModule);
  const shared = [...requiredVersions(controlPlaneModule)].filter(([name]) => suite.has(name));
  expect(shared.length).toBeGreaterThan(100);
  expect(shared.filter(([name, version]) => suite.get(name) !== version)).toEqual([]);
});
