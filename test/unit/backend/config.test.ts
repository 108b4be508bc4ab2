import { hostname } from "node:os";
import { describe, expect, test } from "vitest";
import { ConfigError, parseFile } from "../../../src/config/load.ts";
import { backendConfigSchema, capacityOf, logBytesOf } from "../../../providers/local/config.ts";
import { AddressPool } from "../../../providers/local/engines/process/process.ts";

const HEAD = "apiVersion: vmlet.dev/v1\nkind: BackendConfig\nstateDir: /var/lib/vmlet\n";
const AUTH = "tokenFile: /t\n";
const parse = (text: string) => parseFile(backendConfigSchema, HEAD + AUTH + text, "backend.yaml");

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
  expect(() => parse("listen: { port: 1 }\nstatDir: /x")).toThrow(/backend\.yaml:6:1: statDir: unknown key/);
});

describe("who may call", () => {
  const withoutToken = (text: string) => parseFile(backendConfigSchema, HEAD + text, "backend.yaml");
  const TLS = "tls: { certFile: /c, keyFile: /k, clientCaFile: /ca }\n";
  const client = (more: string) => `listen: { port: 1 }\n${TLS}clients: [{ name: a, ${more} }]`;

  test.each(["0.0.0.0", "127.0.0.1", "localhost", "::1"])(
    "has to be said of %s: also what listens on loopback is reached by every program of the host",
    (address) => {
      const listen = `listen: { address: "${address}", port: 1 }\n`;
      expect(() => withoutToken(listen)).toThrow(
        /^backend\.yaml:4:1: listen: every program .* set tokenFile .* \{ socket: \/run\/vmlet\/backend.sock \}$/,
      );
      for (const auth of [AUTH, TLS, "clients: [{ name: a, tokenFile: /a }]"])
        expect(() => withoutToken(listen + auth)).not.toThrow();
      expect(() => withoutToken(`${listen}tls: { certFile: /c, keyFile: /k }`)).toThrow("set tokenFile");
    },
  );

  test("need not be said of a socket, which its owner alone can open", () => {
    expect(withoutToken("listen: { socket: /run/vmlet/backend.sock }").listen).toEqual({
      socket: "/run/vmlet/backend.sock",
    });
  });

  test("may be said client by client, with clusters, nodes and verbs", () => {
    const file = client("certificateNames: [spiffe://x/agent], clusters: [c], nodes: [n-0, n-1], verbs: [read, logs]");
    expect(withoutToken(file).clients).toEqual([
      {
        name: "a",
        certificateNames: ["spiffe://x/agent"],
        clusters: ["c"],
        nodes: ["n-0", "n-1"],
        verbs: ["read", "logs"],
      },
    ]);
  });

  test.each([
    [client("nodes: [n]"), "clients[0]: needs a tokenFile or certificateNames"],
    [
      "listen: { port: 1 }\nclients: [{ name: a, certificateNames: [a] }]",
      "clients[0].certificateNames: needs tls.clientCaFile",
    ],
    [client("tokenFile: /a }, { name: a, tokenFile: /b"), "clients[1].name: a is another client's name"],
    [client("tokenFile: /a, verbs: [fly]"), "clients[0].verbs[0]: "],
    [client("tokenFile: /a, nodes: []"), "clients[0].nodes: "],
    [client("tokenFile: /a").replace("name: a", 'name: "a\\nb"'), "clients[0].name: must be lower-case letters"],
    [`listen: { socket: /s }\n${TLS}`, "tls: is for an address and port"],
  ])("%j is refused by field", (text, fault) => {
    expect(() => withoutToken(text)).toThrow(fault);
  });
});

test.each([
  ["", "backend.yaml: listen: is required: must be { socket: PATH } or { address: ADDRESS, port: NUMBER }"],
  ["listen: 80", "backend.yaml:5:1: listen: must be { socket: PATH } or { address: ADDRESS, port: NUMBER }"],
  ["listen: { socket: /a, port: 1 }", "listen: must be { socket: PATH } or { address: ADDRESS, port: NUMBER }"],
  ["listen: { port: 1 }\nengine: {}", "engine.type: is required: must be one of process, oci, cri, vm"],
  [
    "listen: { port: 1 }\nengine: { type: docker }",
    "backend.yaml:6:11: engine.type: must be one of process, oci, cri, vm",
  ],
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
    "engine.network.denyCidrs[0]: must be a range",
  ],
  [
    "listen: { port: 1 }\nengine: { type: cri, runtimes: { gpu: kata } }",
    "engine.runtimes.gpu: must be the type of a runtime, such as io.containerd.kata.v2",
  ],
  [
    "listen: { port: 1 }\nengine: { type: cri, runtimes: { Gpu: io.containerd.kata.v2 } }",
    "engine.runtimes.Gpu: must be a handler that a RuntimeClass can name",
  ],
  [
    "listen: { port: 1 }\nengine: { type: cri, runtimes: { runc: io.containerd.kata.v2 } }",
    "engine.runtimes.runc: is there, and is the default one",
  ],
  [
    "listen: { port: 1 }\nengine: { type: cri, socket: /run/c.sock, runtimes: { gpu: io.containerd.kata.v2 } }",
    "engine.runtimes: is for a containerd of the backend's own",
  ],
  [
    "listen: { port: 1 }\nengine: { type: cri, network: { podCidrs: [10.96.0.1] } }",
    "engine.network.podCidrs[0]: must be a range",
  ],
  [
    "listen: { port: 1 }\nengine: { type: cri, network: { cidr: 'fd00::/64' } }",
    "engine.network.cidr: must be an IPv4 range with a prefix of 8 to 29, such as 10.99.0.0/16, after a comma",
  ],
  [
    "listen: { port: 1 }\nengine: { type: cri, network: { cidr: '10.99.0.0/16,fd00::/120' } }",
    "engine.network.cidr: must be an IPv4 range with a prefix of 8 to 29, such as 10.99.0.0/16, after a comma",
  ],
  [
    "listen: { port: 1 }\nengine: { type: oci, network: { cidr: node } }",
    "engine.network.podCidrs: must name the range that the cluster gives Nodes theirs of (--cluster-cidr): cidr is node",
  ],
  [
    "listen: { port: 1 }\nengine: { type: cri, network: { services: true } }",
    "engine.network.services: wants cidr: node: a Service's address is one cluster's",
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

test.each([
  ["listen: { port: 1 }\nstatDir: /x", "backend.yaml:6:1: statDir: unknown key; did you mean stateDir?"],
  ["listen: { adress: 127.0.0.1, port: 1 }", "backend.yaml:5:11: listen.adress: unknown key; did you mean address?"],
  ["listen: { port: 1 }\nengine: { type: proces }", "must be one of process, "],
  ["listen: { port: 1 }\ntls: { certfile: /c, keyFile: /k }", "tls.certfile: unknown key; did you mean certFile?"],
])("%j is asked whether something else was meant", (text, fault) => {
  expect(() => parse(text)).toThrow(fault);
});
