/** Files that are named in a configuration and cannot be used: found before anything starts, by field, with a cure. */
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, expect, test } from "vitest";
import { parseConfig } from "../../../src/config/load.ts";
import { nodeFileFaults } from "../../../src/config/used-files.ts";
import { createCertificate, generateKeyPair, privateKeyPem } from "../../../src/util/x509.ts";

const dir = mkdtempSync(join(tmpdir(), "vmlet-files-"));
afterAll(() => rmSync(dir, { recursive: true }));

const write = (name: string, text: string): string => {
  writeFileSync(join(dir, name), text);
  return join(dir, name);
};
const [keys, otherKeys] = [generateKeyPair(), generateKeyPair()];
const certificate = createCertificate({
  subject: { commonName: "a" },
  keys,
  notBeforeMs: Date.now() - 1000,
  notAfterMs: Date.now() + 3_600_000,
});
const cert = write("cert.pem", certificate);
const key = write("key.pem", privateKeyPem(keys.privateKey));
const otherKey = write("other.pem", privateKeyPem(otherKeys.privateKey));
const token = write("token", "hunter2\n");
const empty = write("empty", "\n");
const garbage = write("garbage", "hunter2");
const broken = write("broken", "-----BEGIN CERTIFICATE-----\nhunter2\n-----END CERTIFICATE-----\n");
const none = join(dir, "none");

function faultsOf(kubelet: object, provider: object = {}) {
  const node = { name: "a", kubelet, provider: { type: "http-vm", url: "https://vms", ...provider } };
  const config = { apiVersion: "vmlet.dev/v1", kind: "AgentConfig", nodes: [node] };
  return nodeFileFaults(parseConfig(JSON.stringify(config), "vmlet.yaml").nodes[0]!);
}

test("files that can be used have no fault", () => {
  const pair = { certFile: cert, keyFile: key };
  expect(faultsOf({ ...pair, clientCAFile: cert }, { ...pair, caFile: cert, tokenFile: token })).toEqual([]);
});

test("a serving certificate that is not used is not looked at", () => {
  expect(faultsOf({ certificate: "self-signed", certFile: none, keyFile: none })).toEqual([]);
});

test.each([
  ["kubelet.certFile, keyFile", { certFile: garbage, keyFile: key }, {}, `${garbage} holds no certificate (PEM)`],
  ["kubelet.certFile, keyFile", { certFile: cert, keyFile: garbage }, {}, `${garbage} holds no usable key (PEM)`],
  ["kubelet.certFile, keyFile", { certFile: cert, keyFile: otherKey }, {}, `${otherKey} is not the key of the`],
  ["kubelet.certFile", { certFile: none, keyFile: key }, {}, "cannot be read: ENOENT"],
  ["kubelet.clientCAFile", { clientCAFile: garbage }, {}, `${garbage} holds no certificate (PEM)`],
  ["kubelet.clientCAFile", { clientCAFile: broken }, {}, `${broken} holds no usable certificate`],
  ["provider.tokenFile", {}, { tokenFile: none }, "cannot be read: ENOENT"],
  ["provider.tokenFile", {}, { tokenFile: empty }, `${empty} is empty`],
  ["provider.caFile", {}, { caFile: garbage }, `${garbage} holds no certificate (PEM)`],
  ["provider.caFile", {}, { caFile: dir }, "cannot be read: EISDIR"],
  ["provider.certFile, keyFile", {}, { certFile: cert, keyFile: otherKey }, `${otherKey} is not the key of the`],
])("%s of %j, %j is told", (field, kubelet, provider, problem) => {
  const faults = faultsOf(kubelet, provider);
  expect(faults).toEqual([
    { field: `nodes[a].${field}`, problem: expect.stringContaining(problem), cure: expect.any(String) },
  ]);
  expect(JSON.stringify(faults)).not.toContain("hunter2");
});
