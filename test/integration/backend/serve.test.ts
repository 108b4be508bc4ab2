import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { once } from "node:events";
import { connect } from "node:tls";
import { beforeEach, describe, expect, onTestFinished, test } from "vitest";
import { parseFile } from "../../../src/config/load.ts";
import { collectingLogger } from "../../support/collecting-logger.ts";
import { silentLogger, type Logger } from "../../../src/telemetry/logger.ts";
import { type Clock, systemClock } from "../../../src/util/clock.ts";
import { startBackend } from "../../../providers/local/backend.ts";
import { clientCert, clientKey, serverCert, serverKey } from "../../support/tls.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";
import { must, waitFor } from "../../e2e/harness/wait.ts";
import { backendConfigSchema } from "../../../providers/local/config.ts";

let dir: string;

beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "vmlet-serve-"));
  const made = dir;
  writeFileSync(join(dir, "tokens"), "one\n");
  onTestFinished(() => rmSync(made, { recursive: true, force: true }));
});

async function serve(more: string, logger: Logger = silentLogger, listen = "{ port: 0 }", clock: Clock = systemClock) {
  const text = `apiVersion: vmlet.dev/v1\nkind: BackendConfig\nstateDir: ${dir}/state\nlisten: ${listen}\n${more}`;
  const auth = /^tokenFile|^clients|clientCaFile/m.test(more) ? "" : `\ntokenFile: ${dir}/tokens`;
  const config = parseFile(backendConfigSchema, text + auth, "backend.yaml");
  const backend = await startBackend(config, { clock, logger, version: "0" });
  onTestFinished(() => backend.close());
  return backend;
}

const status = async (url: string, token?: string) =>
  (await fetch(`${url}/v1/info`, { headers: token === undefined ? {} : { authorization: `Bearer ${token}` } })).status;

test("with a token file, only its tokens are let in", async () => {
  writeFileSync(join(dir, "tokens"), "one\ntwo\n");
  const { url } = await serve(`tokenFile: ${dir}/tokens`);
  expect([await status(url), await status(url, "three"), await status(url, "one"), await status(url, "two")]).toEqual([
    401, 401, 200, 200,
  ]);
});

test.each([
  ["that is not there", "none", "ENOENT"],
  ["that is empty", "empty", "it is empty"],
])("a token file %s lets nobody in, which is told at the start", async (_, name, fault) => {
  writeFileSync(join(dir, "empty"), "");
  const logger = collectingLogger();
  const { url } = await serve(`tokenFile: ${dir}/${name}`, logger);
  expect([await status(url), await status(url, ""), await status(url, "one")]).toEqual([401, 401, 401]);
  expect(logger.lines).toContainEqual({
    level: "warn",
    message: "This file holds no bearer token, so it lets no client in",
    fields: expect.objectContaining({ path: `${dir}/${name}`, fault: expect.stringContaining(fault) }),
  });
});

test("a token file that has changed is read again without a restart", async () => {
  writeFileSync(join(dir, "tokens"), "old\n");
  const { url } = await serve(`tokenFile: ${dir}/tokens`);
  expect(await status(url, "newer")).toBe(401);
  writeFileSync(join(dir, "tokens"), "newer\n");
  expect([await status(url, "newer"), await status(url, "old")]).toEqual([200, 401]);
});

describe("the certificate that is served", () => {
  const files = () => `tls: { certFile: ${dir}/tls.crt, keyFile: ${dir}/tls.key }`;
  const write = (cert: string, key: string) => {
    writeFileSync(join(dir, "tls.crt"), cert);
    writeFileSync(join(dir, "tls.key"), key);
  };

  async function subject(url: string): Promise<string | undefined> {
    const socket = connect({ host: "127.0.0.1", port: Number(new URL(url).port), rejectUnauthorized: false });
    await once(socket, "secureConnect");
    const certificate = socket.getPeerX509Certificate();
    socket.destroy();
    return certificate?.subject;
  }

  test("is that of the files, as soon as both have changed", async () => {
    write(serverCert, serverKey);
    const clock = new VirtualClock();
    const { url } = await serve(files(), silentLogger, undefined, clock);
    expect(await subject(url)).toBe("CN=server");
    write(clientCert, serverKey);
    await clock.advance(10_000);
    expect(await subject(url)).toBe("CN=server");
    write(clientCert, clientKey);
    await clock.advance(10_000);
    expect(await subject(url)).toBe("CN=client");
  });

  test.each([
    ["is not there", () => rmSync(join(dir, "tls.key")), /^tls\.keyFile: ENOENT/],
    ["does not belong to its key", () => write(serverCert, clientKey), /^tls: .* are not a certificate and its key: /],
  ])("names its field when it %s", async (_what, spoil, message) => {
    write(serverCert, serverKey);
    spoil();
    await expect(serve(files())).rejects.toThrow(message);
  });
});

test("a configured capacity is declared and served", async () => {
  const { url } = await serve("capacity: { cpu: 4, pods: 10 }");
  const get = async (path: string): Promise<unknown> =>
    (await fetch(url + path, { headers: { authorization: "Bearer one" } })).json();
  const info = (await get("/v1/info")) as { capabilities: string[] };
  const capacity = await get("/v1/capacity");
  expect(info.capabilities).toContain("capacity");
  expect(capacity).toMatchObject({ allocatable: { cpu_millis: 4000, pods: 10 } });
});

test.each([
  [
    "loopback, each machine of engine process has an address of its own",
    "127.0.0.1",
    /^127\.(6[4-9]|[7-9]\d|1[01]\d|12[0-7])\./,
  ],
  ["all addresses, machines of engine process have one that others can reach", "0.0.0.0", /^(?!127\.)/],
])("served on %s", async (_, address, expected) => {
  writeFileSync(join(dir, "tokens"), "one\n");
  const { provider } = await serve(`tokenFile: ${dir}/tokens`, silentLogger, `{ address: ${address}, port: 0 }`);
  const { signal } = new AbortController();
  const containers = [{ name: "main", image: "none", command: ["sleep", "60"] }];
  await provider.createPod("m", { labels: {}, restart_policy: "never", containers }, { signal });
  onTestFinished(() => provider.deletePod("m", { force: true, signal }));
  const started = await waitFor({ what: "the machine to have an address" }, async () => {
    const machine = await provider.getPod("m", { signal });
    must(machine.addresses.length > 0, machine);
    return machine;
  });
  expect(started.addresses.map(({ ip }) => ip)).toEqual([expect.stringMatching(expected)]);
});

test("engine process warns at start that it isolates nothing", async () => {
  const warnings: string[] = [];
  const logger: Logger = { ...silentLogger, warn: (_fields, message) => void warnings.push(message) };
  await serve("", logger);
  expect(warnings).toEqual([expect.stringContaining("Engine process isolates nothing")]);
});
