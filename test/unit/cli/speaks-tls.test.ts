import { mkdtempSync, writeFileSync } from "node:fs";
import { createServer as createPlain } from "node:http";
import type { AddressInfo, Server } from "node:net";
import { createServer } from "node:tls";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, expect, test } from "vitest";
import { apiServerCure } from "../../../src/cli/check.ts";
import { speaksTls } from "../../../src/cli/speaks-tls.ts";
import { createCertificate, generateKeyPair, privateKeyPem } from "../../../src/util/x509.ts";

const servers: Server[] = [];
afterEach(() => {
  for (const server of servers.splice(0)) server.close();
});

async function portOf(server: Server): Promise<number> {
  servers.push(server);
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return (server.address() as AddressInfo).port;
}

async function tlsPort(): Promise<number> {
  const keys = generateKeyPair();
  const life = { notBeforeMs: Date.now() - 1000, notAfterMs: Date.now() + 3_600_000 };
  const cert = createCertificate({ subject: { commonName: "a" }, keys, ...life });
  return await portOf(createServer({ cert, key: privateKeyPem(keys.privateKey) }));
}

test("TLS behind an address of http:// is found, whoever signed the certificate", async () => {
  const port = await tlsPort();
  expect(await speaksTls(`http://127.0.0.1:${port}/base`)).toBe(true);
});

test("a plain server, a closed port and other schemes are no TLS behind http://", async () => {
  const port = await portOf(createPlain((_request, response) => response.end()));
  for (const url of [`http://127.0.0.1:${port}`, "http://127.0.0.1:1", `https://127.0.0.1:${port}`, "unix:/x", "x"])
    expect(await speaksTls(url)).toBe(false);
});

test("a kubeconfig whose server is http:// where TLS is spoken is told to say https://", async () => {
  const port = await tlsPort();
  const kubeconfig = join(mkdtempSync(join(tmpdir(), "vmlet-kubeconfig-")), "config");
  const file = {
    clusters: [{ name: "c", cluster: { server: `http://127.0.0.1:${port}` } }],
    contexts: [{ name: "x", context: { cluster: "c", user: "u" } }],
    users: [{ name: "u", user: {} }],
    "current-context": "x",
  };
  writeFileSync(kubeconfig, JSON.stringify(file));
  expect(await apiServerCure({ kubeconfig })).toBe(
    `TLS is spoken there: set the cluster's server in the kubeconfig to https://127.0.0.1:${port}`,
  );
});
