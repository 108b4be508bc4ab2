import { execFileSync } from "node:child_process";
import { expect, test } from "vitest";
import { CLIENT_VERSIONS, helmBinary, kubectlBinary } from "./binaries.ts";

const output = (binary: string, ...args: string[]) => execFileSync(binary, args, { encoding: "utf8" });

test("the clients are of the versions that docs/versions.md tells", async () => {
  expect(output(await kubectlBinary(), "version", "--client")).toContain(`v${CLIENT_VERSIONS.kubectl}\n`);
  expect(output(await kubectlBinary("old"), "version", "--client")).toContain(`v${CLIENT_VERSIONS.oldKubectl}\n`);
  expect(output(await helmBinary(), "version", "--short")).toMatch(`v${CLIENT_VERSIONS.helm}`);
});
