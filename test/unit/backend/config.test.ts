import { hostname } from "node:os";
import { expect, test } from "vitest";
import { ConfigError, parseFile } from "../../../src/config/load.ts";
import { backendConfigSchema, capacityOf, logBytesOf } from "../../../providers/local/config.ts";
import { AddressPool } from "../../../providers/local/engines/process/process.ts";

const HEAD = "apiVersion: vmlet.dev/v1\nkind: BackendConfig\nstateDir: /var/lib/vmlet\n";
const parse = (text: string) => parseFile(backendConfigSchema, HEAD + text, "backend.yaml");

test("a short file is enough: engine process, loopback, kubelet's log limits", () => {
  const config = parse("listen: { port: 8080 }");
  expect(config).toMatchObject({
    engine: { type: "process", images: {}, addressPool: "127.64.0.0/10" },
    listen: { address: "127.0.0.1", port: 8080 },
    hostName: hostname(),
    logs: { maxFiles: 5 },
  });
  expect(logBytesOf(config)).toBe(10 * 1024 * 1024);
});

test("an unknown key is named with its place", () => {
  expect(() => parse("listen: { port: 1 }\nstatDir: /x")).toThrow(/backend\.yaml:5:1: statDir: unknown key/);
});

test("an address that other hosts reach needs a token or a client CA", () => {
  expect(() => parse("listen: { address: 0.0.0.0, port: 1 }")).toThrow(
    /listen\.address: other hosts can reach this address: set tokenFile/,
  );
  expect(() => parse("listen: { address: 0.0.0.0, port: 1 }\ntokenFile: /t")).not.toThrow();
});

test.each([
  ["", "backend.yaml: listen: is required: must be { socket: PATH } or { address: ADDRESS, port: NUMBER }"],
  ["listen: 80", "backend.yaml:4:1: listen: must be { socket: PATH } or { address: ADDRESS, port: NUMBER }"],
  ["listen: { socket: /a, port: 1 }", "listen: must be { socket: PATH } or { address: ADDRESS, port: NUMBER }"],
  ["listen: { port: 1 }\nengine: {}", "engine.type: is required: must be one of process, oci, vm"],
  ["listen: { port: 1 }\nengine: { type: docker }", "backend.yaml:5:11: engine.type: must be one of process, oci, vm"],
  ["listen: { port: 1 }\ncapacity: { cpu: }", "capacity.cpu: must be a Kubernetes quantity"],
  ["listen: { port: 1 }\nlogs: { maxSize: 0 }", "logs.maxSize: must be at least one byte"],
  [
    "listen: { port: 1 }\nengine: { type: process, addressPool: 10.0.0.0/8 }",
    "engine.addressPool: must be an IPv4 range",
  ],
  [
    "listen: { port: 1 }\nengine: { type: oci, network: { cidr: 10.0.0.0/30 } }",
    "engine.network.cidr: must be an IPv4 range",
  ],
  ["listen: { port: 1 }\nengine: { type: vm, network: { bridge: Br-0 } }", "engine.network.bridge: must be 1 to 10"],
  [
    "listen: { port: 1 }\nengine: { type: oci, network: { denyCidrs: [x] } }",
    "engine.network.denyCidrs[0]: must be an IPv4 range",
  ],
  [
    "listen: { port: 1 }\nengine: { type: oci, images: { gc: { highPercent: 70 } } }",
    "engine.images.gc.lowPercent: 80 must not be above highPercent (70)",
  ],
])("%j is refused by field, cause and cure", (text, fault) => {
  expect(() => parse(text)).toThrow(ConfigError);
  expect(() => parse(text)).toThrow(fault);
});

test("a range that machines never reach may be one address", () => {
  const { engine } = parse(
    "listen: { port: 1 }\nengine: { type: oci, network: { denyCidrs: [10.0.0.1, 10.1.0.0/16] } }",
  );
  expect(engine).toMatchObject({ network: { denyCidrs: ["10.0.0.1", "10.1.0.0/16"] } });
});

test("a bad quantity is refused", () => {
  expect(() => parse("listen: { port: 1 }\ncapacity: { cpu: lots }")).toThrow(
    /capacity\.cpu: must be a Kubernetes quantity/,
  );
});

test("the configured capacity is what the backend reports, in millicores and bytes", () => {
  const config = parse(
    'listen: { port: 1 }\ncapacity: { cpu: "1500m", memory: 2Gi, pods: 50, extended: { vendor.example/license: 3 } }',
  );
  expect(capacityOf(config)).toEqual({
    allocatable: {
      cpu_millis: 1500,
      memory_bytes: 2 * 1024 ** 3,
      pods: 50,
      extended: [{ name: "vendor.example/license", count: 3 }],
    },
  });
});

test("addresses are unique, within the range, and never its ends", () => {
  const pool = new AddressPool("127.80.0.0/29");
  const taken = [1, 2, 3, 4, 5].map((machine) => pool.take(`m${machine}`));
  expect(taken.toSorted()).toEqual(["127.80.0.2", "127.80.0.3", "127.80.0.4", "127.80.0.5", "127.80.0.6"]);
});

test("a full range is a matter of quota, until a machine gives its address back", () => {
  const pool = new AddressPool("127.80.0.0/30");
  pool.take("m1");
  expect(() => pool.take("m2")).toThrow(expect.objectContaining({ code: "quota" }));
  pool.release("m1");
  expect(pool.take("m2")).toBe("127.80.0.2");
});

test.each(["10.0.0.0/8", "127.0.0.0/31", "127.0.0/8", "words"])("range %s is refused", (range) => {
  expect(() => new AddressPool(range)).toThrow(/must be an IPv4 range within 127\.0\.0\.0\/8/);
});
