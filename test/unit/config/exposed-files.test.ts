import { mkdtemp, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { exposedSecrets } from "../../../src/config/exposed-files.ts";
import { parseConfig } from "../../../src/config/load.ts";

let dir: string;
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), "vmlet-exposed-"));
  for (const [name, mode] of [
    ["open", 0o644],
    ["group", 0o640],
    ["own", 0o600],
  ] as const)
    await writeFile(join(dir, name), "x", { mode });
  await symlink(join(dir, "open"), join(dir, "mounted"));
});
afterAll(() => rm(dir, { recursive: true }));

const exposed = (config: { kubeconfig?: string; keyFile?: string; tokenFile?: string }) => {
  const path = (name: string | undefined) => name && join(dir, name);
  const { kubeconfig, keyFile, tokenFile } = config;
  const file = {
    apiVersion: "vmlet.dev/v1",
    kind: "AgentConfig",
    kubeconfig: path(kubeconfig),
    nodes: ["a", "b"].map((name) => ({
      name,
      provider: { type: "http-vm", url: "https://backend", tokenFile: path(tokenFile) },
      kubelet: { port: name === "a" ? 1 : 2, ...(keyFile && { certFile: path("open"), keyFile: path(keyFile) }) },
    })),
  };
  return exposedSecrets(parseConfig(JSON.stringify(file), "test.yaml"));
};

test("keys and tokens that every user of the host can read are found, each once", async () => {
  expect(await exposed({ kubeconfig: "open" })).toEqual([join(dir, "open")]);
  expect(await exposed({ keyFile: "open" })).toEqual([join(dir, "open")]);
  expect(await exposed({ tokenFile: "open" })).toEqual([join(dir, "open")]);
});

test("what only its owner or its group can read is not, nor a link as Kubernetes mounts a Secret, nor what is not there", async () => {
  expect(await exposed({ kubeconfig: "own", keyFile: "group", tokenFile: "mounted" })).toEqual([]);
  expect(await exposed({ kubeconfig: "none" })).toEqual([]);
  expect(await exposed({})).toEqual([]);
});
