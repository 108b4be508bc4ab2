/** A backend whose TLS is not what it should be: it does not answer, with the reason, and nothing weaker is tried. */
import { mkdtemp, writeFile } from "node:fs/promises";
import { createServer as createHttpServer } from "node:http";
import { createServer, type ServerOptions } from "node:https";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, describe, expect, test } from "vitest";
import { HttpVmProvider } from "../../../providers/http-vm/index.ts";
import { createCertificate, generateKeyPair, privateKeyPem } from "../../../src/util/x509.ts";

const DAY_MS = 86_400_000;
const signal = new AbortController().signal;
const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).toReversed()) await cleanup();
});

const caKeys = generateKeyPair();
const caSubject = { commonName: "backend-ca" };
const ca = createCertificate({ ...life(), subject: caSubject, keys: caKeys, isCa: true });
const foreignKeys = generateKeyPair();
const foreignCa = createCertificate({ ...life(), subject: { commonName: "other" }, keys: foreignKeys, isCa: true });

function life(from = -DAY_MS, to = DAY_MS): { notBeforeMs: number; notAfterMs: number } {
  return { notBeforeMs: Date.now() + from, notAfterMs: Date.now() + to };
}

/** A serving certificate of the CA for 127.0.0.1, unless told otherwise. */
function serving(options: { life?: ReturnType<typeof life>; ipAddresses?: string[] } = {}) {
  const keys = generateKeyPair();
  const cert = createCertificate({
    ...(options.life ?? life()),
    subject: { commonName: "backend" },
    keys,
    usages: ["serverAuth"],
    issuer: { subject: caSubject, privateKey: caKeys.privateKey },
    altNames: { dnsNames: [], ipAddresses: options.ipAddresses ?? ["127.0.0.1"] },
  });
  return { cert, key: privateKeyPem(keys.privateKey) };
}

/** A backend with this TLS, asked by a client that trusts `trusted`; both what the client got and how many requests arrived. */
async function ask(tls: ServerOptions, trusted: string | undefined) {
  let requests = 0;
  const server = createServer(tls, (request, response) => {
    requests++;
    response.setHeader("x-request-id", request.headers["x-request-id"]!);
    response.setHeader("content-type", "application/json");
    response.end(JSON.stringify({ name: "b", version: "1", api: "v1", capabilities: [] }));
  });
  server.on("tlsClientError", () => undefined);
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  const caFile = join(await mkdtemp(join(tmpdir(), "vmlet-tls-")), "ca.crt");
  await writeFile(caFile, trusted ?? "");
  const provider = new HttpVmProvider({
    url: `https://127.0.0.1:${port}`,
    credentials: trusted ? { caFile } : undefined,
  });
  cleanups.push(() => {
    server.closeAllConnections();
    server.close();
  });
  cleanups.push(() => provider.close());
  const error: unknown = await provider.getInfo({ signal }).then(
    () => undefined,
    (thrown: unknown) => thrown,
  );
  return { error, requests };
}

describe("a backend's TLS", () => {
  test("is taken when it is in order", async () => {
    expect(await ask(serving(), ca)).toEqual({ error: undefined, requests: 1 });
  });

  test.each<[string, () => ServerOptions, string | undefined, RegExp]>([
    ["a certificate that has expired", () => serving({ life: life(-2 * DAY_MS, -DAY_MS) }), ca, /expired/],
    ["a certificate that is not valid yet", () => serving({ life: life(DAY_MS, 2 * DAY_MS) }), ca, /not yet valid/],
    ["a certificate for another host", () => serving({ ipAddresses: ["127.0.0.9"] }), ca, /does not match|altnames/],
    [
      "a certificate of another CA",
      () => serving(),
      foreignCa,
      /(unable to verify|unable to get local issuer|signature).*; set provider\.caFile to the one that did$/,
    ],
    [
      "a certificate of a CA that nobody named",
      () => serving(),
      undefined,
      /(unable to verify|unable to get local issuer).*; set provider\.caFile to the one that did$/,
    ],
    ["nothing newer than TLS 1.1", () => ({ ...serving(), minVersion: "TLSv1", maxVersion: "TLSv1.1" }), ca, /./],
    [
      "a wish for a client certificate that there is none of",
      () => ({ ...serving(), ca, requestCert: true, rejectUnauthorized: true }),
      ca,
      /./,
    ],
  ])(
    "that offers %s leaves the backend unavailable, with the reason, and no request is sent",
    async (_, tls, trusted, why) => {
      const { error, requests } = await ask(tls(), trusted);
      expect(error).toMatchObject({ code: "unavailable", message: expect.stringMatching(why) });
      expect(requests).toBe(0);
    },
  );
});

/** What a provider of this address says that does not get through. */
async function failureOf(url: string, credentials?: object): Promise<{ code: string; message: string }> {
  const provider = new HttpVmProvider({ url, credentials });
  cleanups.push(() => provider.close());
  return await provider.getInfo({ signal }).then(
    () => expect.unreachable("the backend was believed"),
    (thrown: unknown) => thrown as { code: string; message: string },
  );
}

test("a backend that signed its certificate itself is told with the field that cures it, without advice on Node.js", async () => {
  const keys = generateKeyPair();
  const altNames = { dnsNames: [], ipAddresses: ["127.0.0.1"] };
  const cert = createCertificate({ ...life(), subject: { commonName: "b" }, keys, altNames });
  const { error } = await ask({ cert, key: privateKeyPem(keys.privateKey) }, undefined);
  expect(error).toMatchObject({
    message: expect.stringMatching(/self-signed certificate: no CA .*; set provider\.caFile to the one that did$/),
  });
  expect(String(error)).not.toContain("Node.js");
});

test("a backend that does not speak TLS is told so", async () => {
  const server = createHttpServer((_request, response) => response.end());
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  cleanups.push(() => server.close());
  const { port } = server.address() as AddressInfo;
  const { code, message } = await failureOf(`https://127.0.0.1:${port}`);
  expect(message).toMatch(/does not speak TLS; its address may have to begin with http:\/\/$/);
  expect(code).toBe("unavailable");
});

test("files that cannot be used for TLS are told by their fields before anything is sent", async () => {
  const dir = await mkdtemp(join(tmpdir(), "vmlet-tls-"));
  const file = async (name: string, text: string) => {
    await writeFile(join(dir, name), text);
    return join(dir, name);
  };
  const { cert, key } = serving();
  const caFile = await file("ca", "hunter2");
  expect((await failureOf("https://127.0.0.1:1", { caFile })).message).toBe(
    `provider.caFile: ${caFile} holds no certificate (PEM)`,
  );
  const [certFile, keyFile] = [await file("cert", cert), await file("key", serving().key)];
  expect((await failureOf("https://127.0.0.1:1", { certFile, keyFile })).message).toBe(
    `provider.keyFile ${keyFile} is not the key of the certificate in provider.certFile ${certFile}`,
  );
  await file("key", key);
  expect((await failureOf("https://127.0.0.1:1", { certFile, keyFile })).message).toContain("ECONNREFUSED");
});
