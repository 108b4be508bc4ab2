import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { loadCredentialProviders } from "../../../src/config/credential-providers.ts";

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "credential-providers-"));
});
afterEach(() => rmSync(dir, { recursive: true }));

function write(file: string, ...names: string[]): string {
  const providers = names.map((name) => ({
    name,
    matchImages: ["*.example.com"],
    defaultCacheDuration: "1m",
    apiVersion: "credentialprovider.kubelet.k8s.io/v1",
  }));
  const config = { apiVersion: "kubelet.config.k8s.io/v1", kind: "CredentialProviderConfig", providers };
  writeFileSync(join(dir, file), JSON.stringify(config));
  return join(dir, file);
}

const namesIn = (path: string) => loadCredentialProviders(path, {}).config.providers.map(({ name }) => name);

test("a file is read as the kubelet's", () => {
  expect(namesIn(write("one.yaml", "a", "b"))).toEqual(["a", "b"]);
});

test("the files of a folder are put together in the order of their names", () => {
  write("20.json", "second");
  write("10.yml", "first");
  writeFileSync(join(dir, "README.md"), "not a configuration");
  expect(namesIn(dir)).toEqual(["first", "second"]);
});

test.each([
  ["a file that does not exist", () => join(dir, "none.yaml"), "cannot read the credential providers"],
  ["a folder without configurations", () => dir, "holds no .json, .yaml or .yml file"],
  [
    "a provider that is listed twice",
    () => (write("a.yaml", "x"), write("b.yaml", "x"), dir),
    "provider x is listed twice",
  ],
  ["a plugin's name that leads out of the folder", () => write("a.yaml", "../x"), "must be the file name of a plugin"],
])("%s is refused with a reason", (_, path, reason) => {
  expect(() => loadCredentialProviders(path(), {})).toThrow(reason);
});

test("plugins inherit the environment", () => {
  const { environment } = loadCredentialProviders(write("one.yaml", "a"), { PATH: "/bin", EMPTY: undefined });
  expect(environment).toEqual({ PATH: "/bin" });
});
