/** `vmlet conformance --pods`, asked for what it cannot do. What it checks is tried in test/conformance/pods.test.ts. */
import { execFile } from "node:child_process";
import { join } from "node:path";
import { promisify } from "node:util";
import { expect, test } from "vitest";
import { POD_CHECKS } from "../../../src/cli/pod-kit/checks.ts";

const program = join(import.meta.dirname, "../../../src/cli/main.ts");
const run = promisify(execFile);

test("its checks are listed, with what they need", async () => {
  const { stdout } = await run(process.execPath, [program, "conformance", "--pods", "--list"]);
  expect(stdout.match(/^\S+\/\S+/gm)).toEqual(POD_CHECKS.map(({ name }) => name));
  expect(stdout).toContain("exec/output-and-exit-code (needs exec)");
  expect(stdout).toContain("backend-restart/a-deletion-goes-on (needs --restart-command)");
});

test("what --pods has no use for is refused by the flag's name", async () => {
  const refused = run(process.execPath, [program, "conformance", "http://127.0.0.1:1", "--pods", "--only", "http/"]);
  await expect(refused).rejects.toMatchObject({ code: 2, stderr: expect.stringContaining("--only: no check's name") });
});

test("a backend that is not there is told as such", async () => {
  const failed = run(process.execPath, [program, "conformance", "http://127.0.0.1:1", "--pods"]);
  await expect(failed).rejects.toMatchObject({ code: 2, stderr: expect.stringContaining("could not be checked") });
});
