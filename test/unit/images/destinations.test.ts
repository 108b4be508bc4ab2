/** Where the backend connects to for a pull: tenants choose registries, and registries choose what they lead to. */
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { Destinations } from "../../../providers/local/images/destinations.ts";
import { HostImages, type HostImagesOptions } from "../../../providers/local/images/host-images.ts";
import type { RegistryAuth } from "../../../src/provider/machine.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { type LyingRegistry, startLyingRegistry } from "../../support/lying-registry.ts";

const OWN = "198.51.100.7";
const destinations = (named: string[] = [], plain: string[] = []) =>
  new Destinations({
    named,
    plain,
    refused: ["10.99.0.0/16", "203.0.113.5"],
    isOwn: (address) => Promise.resolve(address === OWN),
  });

describe("images are not pulled from", () => {
  test.each([
    ["loopback", "127.0.0.1"],
    ["all of loopback", "127.255.3.4"],
    ["the address that means this host", "0.0.0.0"],
    ["the same in IPv6", "::"],
    ["loopback in IPv6", "::1"],
    ["loopback, mapped into IPv6", "::ffff:127.0.0.1"],
    ["loopback, written into IPv6", "::127.0.0.1"],
    ["loopback, by NAT64", "64:ff9b::7f00:1"],
    ["loopback, by 6to4", "2002:7f00:1::"],
    ["what clouds serve credentials at", "169.254.169.254"],
    ["the same, mapped into IPv6", "::ffff:a9fe:a9fe"],
    ["that of Azure", "168.63.129.16"],
    ["that of Alibaba", "100.100.100.200"],
    ["that of AWS in IPv6", "fd00:ec2::254"],
    ["link-local addresses of IPv6", "fe80::1%eth0"],
    ["multicast", "224.0.0.1"],
    ["broadcast", "255.255.255.255"],
    ["an address of this host", OWN],
    ["an address of this host, mapped into IPv6", `::ffff:${OWN}`],
    ["machines", "10.99.3.4"],
    ["what machines may not reach", "203.0.113.5"],
    ["what is no address", "localhost"],
  ])("%s", async (_what, address) => expect(await destinations().mayConnect(address)).toBe(false));

  test.each([
    "https://127.1/",
    "https://2130706433/",
    "https://0x7f.0.0.1:5000/",
    "https://[::ffff:127.0.0.1]/",
    `https://${OWN}:5000/`,
    "http://registry.example/",
    "file:///etc/passwd",
  ])(
    "%s, however it is written",
    async (url) =>
      await expect(destinations().assertAllowed(new URL(url))).rejects.toThrow("images are not pulled from"),
  );

  test("a name that leads to loopback", async () => {
    const { promise, resolve } = Promise.withResolvers<Error | null>();
    destinations().lookup("localhost", { all: true }, resolve);
    expect(await promise).toMatchObject({ message: expect.stringContaining("images are not pulled from localhost") });
  });
});

describe("images are pulled from", () => {
  test.each(["10.1.2.3", "192.168.0.5", "172.16.0.1", "8.8.8.8", "2600::1", "fd12::5", "64:ff9b::808:808"])(
    "%s, as a registry of the house may have it",
    async (address) => expect(await destinations().mayConnect(address)).toBe(true),
  );

  test.each([
    ["https://127.0.0.1:5000/v2/", ["127.0.0.1:5000"], []],
    ["https://localhost/v2/", ["LOCALHOST:443"], []],
    ["https://localhost/v2/", ["localhost"], []],
    ["http://127.0.0.1:5000/v2/", [], ["127.0.0.1:5000"]],
    ["https://[::1]:5000/v2/", ["[::1]:5000"], []],
  ])("%s, if the owner names it", async (url, named, plain) => {
    await destinations(named, plain).assertAllowed(new URL(url));
    expect(destinations(named, plain).isNamed(new URL(url))).toBe(true);
  });

  test.each([
    ["https://127.0.0.1:5001/", ["127.0.0.1:5000"]],
    ["https://127.0.0.1/", ["127.0.0.1:5000"]],
    ["https://127.0.0.1:5000/", ["127.0.0.1"]],
  ])(
    "%s not, if the owner names another port of it",
    async (url, named) =>
      await expect(destinations(named).assertAllowed(new URL(url))).rejects.toThrow("images are not pulled from"),
  );
});

describe("a registry that a tenant has chosen", () => {
  let liar: LyingRegistry;
  /** Of this host, and for nobody who pulls. */
  let inner: { host: string; requests: { url: string; headers: IncomingMessage["headers"] }[]; stop: () => void };
  let answer: (request: IncomingMessage, response: ServerResponse) => void;
  let dir: string;
  beforeEach(async () => {
    liar = await startLyingRegistry();
    const requests: (typeof inner)["requests"] = [];
    answer = (_request, response) => response.end('{"token":"inner"}');
    const server = createServer((request, response) => {
      requests.push({ url: request.url!, headers: request.headers });
      answer(request, response);
    }).listen(0, "127.0.0.1");
    await once(server, "listening");
    const stop = () => {
      server.closeAllConnections();
      server.close();
    };
    inner = { host: `127.0.0.1:${(server.address() as AddressInfo).port}`, requests, stop };
    dir = mkdtempSync(join(tmpdir(), "vmlet-images-"));
  });
  afterEach(async () => {
    inner.stop();
    await liar.stop();
    rmSync(dir, { recursive: true, force: true });
  });
  const pull = (image: string, options: Partial<HostImagesOptions> = {}, auth: RegistryAuth[] = []) =>
    new HostImages({
      dir,
      clock: systemClock,
      logger: silentLogger,
      insecureRegistries: [liar.host],
      diskUsage: () => Promise.resolve({ totalBytes: 100e9, freeBytes: 50e9 }),
      ...options,
    }).pull(image, { auth, tenant: "a", signal: AbortSignal.timeout(10_000) });
  const refused = (host: string) => ({
    reason: "ErrImagePull",
    message: expect.stringContaining(`images are not pulled from ${host}`),
  });
  const redirect = (to: string) => (_request: IncomingMessage, response: ServerResponse) =>
    response.writeHead(307, { location: to }).end();
  const challenge = (value: string) => (request: IncomingMessage, response: ServerResponse) =>
    request.headers.authorization === undefined
      ? response.writeHead(401, { "www-authenticate": value }).end()
      : response.writeHead(404).end();

  test("is not asked on loopback", async () => {
    await expect(pull(`${inner.host}/x:1`)).rejects.toMatchObject(refused(inner.host));
    const port = inner.host.split(":")[1]!;
    await expect(pull(`localhost:${port}/x:1`)).rejects.toMatchObject(refused("localhost"));
    await expect(pull(`[::ffff:7f00:1]:${port}/x:1`)).rejects.toMatchObject(refused("[::ffff:7f00:1]"));
    expect(inner.requests).toEqual([]);
  });

  test.each(["http", "https"])("cannot lead to loopback by a redirect to %s", async (scheme) => {
    liar.answer("/v2/x/manifests/1", redirect(`${scheme}://${inner.host}/secret`));
    await expect(pull(`${liar.host}/x:1`)).rejects.toMatchObject(refused(inner.host));
    expect(inner.requests).toEqual([]);
  });

  test("cannot lead to loopback for a layer", async () => {
    const config = liar.blob("x", Buffer.from("{}"));
    liar.manifest("x", "1", { schemaVersion: 2, config, layers: [] });
    liar.answer(`/v2/x/blobs/${config.digest}`, redirect(`http://${inner.host}/secret`));
    await expect(pull(`${liar.host}/x:1`)).rejects.toMatchObject(refused(inner.host));
    expect(inner.requests).toEqual([]);
  });

  test("cannot lead to loopback for a token", async () => {
    liar.answer("/v2/x/manifests/1", challenge(`Bearer realm="http://${inner.host}/token",service="s"`));
    await expect(pull(`${liar.host}/x:1`)).rejects.toMatchObject(refused(inner.host));
    expect(inner.requests).toEqual([]);
  });

  test("cannot lead round in a circle", async () => {
    liar.answer("/v2/x/manifests/1", redirect("/v2/x/manifests/1"));
    await expect(pull(`${liar.host}/x:1`)).rejects.toMatchObject({
      reason: "ErrImagePull",
      message: expect.stringContaining("more than 5 redirects"),
    });
  });

  const credentials = () => [{ registry: liar.host, username: "ann", password: "s3cret-word" }];
  const both = () => ({ insecureRegistries: [liar.host, inner.host] });

  test("gets credentials by which another host that it leads to is told nothing", async () => {
    let isFirst = true;
    liar.answer("/v2/x/manifests/1", (request, response) => {
      if (isFirst || request.headers.authorization === undefined) {
        isFirst = false;
        response.writeHead(401, { "www-authenticate": 'Basic realm="r"' }).end();
      } else response.writeHead(307, { location: `http://${inner.host}/elsewhere` }).end();
    });
    answer = (_request, response) => response.writeHead(404).end();
    await expect(pull(`${liar.host}/x:1`, both(), credentials())).rejects.toMatchObject({ reason: "ErrImagePull" });
    expect(inner.requests.map(({ url, headers }) => [url, headers.authorization])).toEqual([["/elsewhere", undefined]]);
  });

  test("names who gives its tokens, which are for it alone", async () => {
    liar.answer("/v2/x/manifests/1", challenge(`Bearer realm="http://${inner.host}/token",service="the registry"`));
    await expect(pull(`${liar.host}/x:1`, both(), credentials())).rejects.toMatchObject({
      message: expect.stringContaining("not found"),
    });
    expect(inner.requests.map(({ url, headers }) => [url, headers.authorization])).toEqual([
      [
        "/token?service=the+registry&scope=repository%3Ax%3Apull",
        `Basic ${Buffer.from("ann:s3cret-word").toString("base64")}`,
      ],
    ]);
  });

  test("has no credentials sent on by who gives its tokens", async () => {
    liar.answer("/v2/x/manifests/1", challenge(`Bearer realm="http://${liar.host}/token"`));
    liar.answer("/token", redirect(`http://${inner.host}/token`));
    await expect(pull(`${liar.host}/x:1`, both(), credentials())).rejects.toMatchObject({ reason: "ErrImagePull" });
    expect(inner.requests).toEqual([]);
  });

  test.each([
    ["more than a manifest may have", Buffer.alloc(5 * 1024 * 1024, 0x20)],
    ["more than an error may say", undefined],
  ])("that answers with %s is refused", async (_what, content) => {
    liar.answer("/v2/x/manifests/1", (_request, response) =>
      content === undefined
        ? response.writeHead(404).end(`{"errors":[{"message":"${"x".repeat(100_000)}"}]}`)
        : response.end(content),
    );
    const error = (await pull(`${liar.host}/x:1`).catch((thrown: unknown) => thrown)) as Error;
    expect(error).toMatchObject({ reason: "ErrImagePull" });
    expect(error.message.length).toBeLessThan(600);
  });

  test("is not quoted on what it has led to", async () => {
    liar.answer("/v2/x/manifests/1", redirect(`http://${inner.host}/inner`));
    answer = (_request, response) => response.writeHead(404).end('{"errors":[{"message":"inner matters"}]}');
    const error = (await pull(`${liar.host}/x:1`, both()).catch((thrown: unknown) => thrown)) as Error;
    expect(error.message).toContain("status 404");
    expect(error.message).not.toContain("inner matters");
  });
});
