import { createServer as createPlain } from "node:http";
import type { AddressInfo, Server } from "node:net";
import { createServer } from "node:tls";
import { afterEach, expect, test } from "vitest";
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

test("TLS behind an address of http:// is found, whoever signed the certificate", async () => {
  const keys = generateKeyPair();
  const life = { notBeforeMs: Date.now() - 1000, notAfterMs: Date.now() + 3_600_000 };
  const cert = createCertificate({ subject: { commonName: "a" }, keys, ...life });
  const port = await portOf(createServer({ cert, key: privateKeyPem(keys.privateKey) }));
  expect(await speaksTls(`http://127.0.0.1:${port}/base`)).toBe(true);
});

test("a plain server, a closed port and other schemes are no TLS behind http://", async () => {
  const port = await portOf(createPlain((_request, response) => response.end()));
  for (const url of [`http://127.0.0.1:${port}`, "http://127.0.0.1:1", `https://127.0.0.1:${port}`, "unix:/x", "x"])
    expect(await speaksTls(url)).toBe(false);
});
