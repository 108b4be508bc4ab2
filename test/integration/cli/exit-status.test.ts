/** What scripts go by: 0 done, 1 failed, 2 the user has to change something first. Real processes, as a shell starts them. */
import { execFile } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";

const program = join(import.meta.dirname, "../../../src/cli/main.ts");
let dir: string;
beforeAll(() => {
  dir = mkdtempSync(join(tmpdir(), "vmlet-cli-"));
});
afterAll(() => rmSync(dir, { recursive: true }));

function vmlet(...args: string[]): Promise<{ status: number; stdout: string; stderr: string }> {
  return new Promise((resolve) => {
    execFile(process.execPath, [program, ...args], { cwd: dir }, (error, stdout, stderr) =>
      resolve({ status: error === null ? 0 : Number(error.code), stdout, stderr }),
    );
  });
}

async function check(node: string, rest = ""): Promise<{ status: number; stdout: string; stderr: string }> {
  const text = `apiVersion: vmlet.dev/v1\nkind: AgentConfig\n${rest}nodes:\n  - name: burst-0\n${node}`;
  writeFileSync(join(dir, "vmlet.yaml"), text);
  return vmlet("check", "--config", "vmlet.yaml");
}

test.each([
  ["an unknown command", ["bogus"], "unknown command 'bogus'"],
  ["an unknown command of a command", ["node", "bogus"], "unknown command 'bogus'"],
  ["a missing argument", ["check"], "required option '-c, --config <file>' not specified"],
  ["a file that is not there", ["check", "--config", "none.yaml"], "cannot read the configuration file none.yaml"],
])("%s is 2, and said", async (_what, args, message) => {
  const { status, stderr } = await vmlet(...args);
  expect(stderr).toContain(message);
  expect(status).toBe(2);
});

test("help and version are 0", async () => {
  expect((await vmlet("--help")).status).toBe(0);
  expect((await vmlet("--version")).status).toBe(0);
});

test("faults of the file are told with place and field, and are 2", async () => {
  const { status, stderr } = await check(
    '    provider: { type: http-vm, url: "http://127.0.0.1:1" }\n    capactiy: { cpu: "4" }\n    capacity: { cpu: 4x }\n',
  );
  expect(stderr.trim().split("\n")).toEqual([
    "vmlet.yaml:7:17: nodes[0].capacity.cpu: must be a Kubernetes quantity such as 500m, 4, 512Mi or 64Gi",
    "vmlet.yaml:6:5: nodes[0].capactiy: unknown key",
  ]);
  expect(status).toBe(2);
});

test("what is no YAML is told with its place, and is 2", async () => {
  const { status, stderr } = await check("   provider: {\n");
  expect(stderr).toMatch(/^vmlet\.yaml:5:\d+: .+\n$/);
  expect(status).toBe(2);
});

test("a backend and an API server that do not answer are told with the field to look at, and are 2", async () => {
  const { status, stdout } = await check(
    '    provider: { type: http-vm, url: "http://127.0.0.1:1" }\n',
    "kubeconfig: none.kubeconfig\n",
  );
  expect(stdout).toContain("Cannot load the kubeconfig none.kubeconfig");
  expect(stdout).toContain("check nodes[].provider.url (http://127.0.0.1:1), tokenFile and caFile");
  expect(stdout).toContain("2 to cure.");
  expect(status).toBe(2);
});
