import { describe, expect, test } from "vitest";
import { containerEnvironment, envTokens } from "../../../src/podspec/render/env.ts";
import { addressTokens } from "../../../src/podspec/render/field-refs.ts";
import type { PodEvent, References } from "../../../src/podspec/types.ts";
import type { Container } from "../../../src/kube/wire.ts";
import { configMap, node, podWith, referencesWith, secret, service } from "./fixtures.ts";

type FileKeyRef = NonNullable<NonNullable<NonNullable<Container["env"]>[number]["valueFrom"]>["fileKeyRef"]>;

/** Resolves the environment of a container in a pod without service links, unless told otherwise. */
function resolve(
  container: Partial<Container>,
  references: References = referencesWith({}),
  enableServiceLinks = false,
) {
  const events: PodEvent[] = [];
  const result = containerEnvironment(
    { name: "app", ...container },
    {
      pod: podWith({ enableServiceLinks }),
      references,
      node,
      tokens: addressTokens("0a1b"),
      envTokens: envTokens("0a1b"),
      volumes: new Set(["config"]),
      events,
    },
  );
  return {
    result,
    events,
    variables: result.ok ? Object.fromEntries(result.value.variables) : undefined,
    entries: result.ok ? result.value.entries : undefined,
  };
}

describe("containerEnvironment", () => {
  test("lets a variable refer to those before it only", () => {
    const { variables } = resolve({
      env: [
        { name: "A", value: "$(B)" },
        { name: "B", value: "b" },
        { name: "C", value: "<$(B)>" },
      ],
    });
    expect(variables).toEqual({ A: "$(B)", B: "b", C: "<b>" });
  });

  test("lets the last of two declarations win", () => {
    expect(
      resolve({
        env: [
          { name: "A", value: "1" },
          { name: "A", value: "$(A)2" },
        ],
      }).variables,
    ).toEqual({ A: "12" });
  });

  test("takes all keys of envFrom with the prefix, later sources over earlier, env over both", () => {
    const references = referencesWith({
      configMaps: { base: configMap({ A: "cm", B: "cm", C: "cm" }, { BIN: "AAEC" }) },
      secrets: { over: secret({ B: "secret", C: "secret" }) },
    });
    const { variables } = resolve(
      {
        envFrom: [
          { prefix: "P_", configMapRef: { name: "base" } },
          { prefix: "P_", secretRef: { name: "over" } },
        ],
        env: [{ name: "P_C", value: "env+$(P_B)" }],
      },
      references,
    );
    expect(variables).toEqual({ P_A: "cm", P_B: "secret", P_C: "env+secret" });
  });

  test("keeps keys that a shell could not use as names", () => {
    const references = referencesWith({ configMaps: { c: configMap({ "my.key-1": "v", "1st": "w" }) } });
    expect(resolve({ envFrom: [{ configMapRef: { name: "c" } }] }, references).variables).toEqual({
      "1st": "w",
      "my.key-1": "v",
    });
  });

  test("does not expand what comes from a secret", () => {
    const references = referencesWith({ secrets: { s: secret({ k: "$(HOME)" }) } });
    expect(
      resolve({ env: [{ name: "A", valueFrom: { secretKeyRef: { name: "s", key: "k" } } }] }, references).variables,
    ).toEqual({
      A: "$(HOME)",
    });
  });

  test.each([
    ["configMapKeyRef", "configmap", "ConfigMap"],
    ["secretKeyRef", "secret", "Secret"],
  ] as const)("fails with the kubelet's text when the object of a %s is missing", (field, noun, kind) => {
    const references = referencesWith({
      [field === "configMapKeyRef" ? "configMaps" : "secrets"]: { x: { kind: "absent" } },
    });
    const { result, events } = resolve(
      { env: [{ name: "A", valueFrom: { [field]: { name: "x", key: "k" } } }] },
      references,
    );
    expect(result).toEqual({ ok: false, message: `${noun} "x" not found` });
    expect(events.map(({ reason }) => reason)).toEqual([`Mandatory${kind}NotFound`]);
  });

  test.each([
    ["configMapKeyRef", "OptionalConfigMapNotFound"],
    ["secretKeyRef", "OptionalSecretNotFound"],
  ] as const)("skips an optional %s whose object is missing, and says so", (field, reason) => {
    const references = referencesWith({
      [field === "configMapKeyRef" ? "configMaps" : "secrets"]: { x: { kind: "absent" } },
    });
    const { variables, events } = resolve(
      { env: [{ name: "A", valueFrom: { [field]: { name: "x", key: "k", optional: true } } }] },
      references,
    );
    expect(variables).toEqual({});
    expect(events.map((event) => event.reason)).toEqual([reason]);
  });

  test.each([
    [{ configMapKeyRef: { name: "c", key: "no" } }, "couldn't find key no in ConfigMap shop/c"],
    [{ secretKeyRef: { name: "s", key: "no" } }, "couldn't find key no in Secret shop/s"],
  ])("fails with the kubelet's text when a key is missing: %j", (valueFrom, message) => {
    const references = referencesWith({ configMaps: { c: configMap({}) }, secrets: { s: secret({}) } });
    expect(resolve({ env: [{ name: "A", valueFrom }] }, references).result).toEqual({ ok: false, message });
  });

  test("skips an optional key that is missing", () => {
    const references = referencesWith({ configMaps: { c: configMap({}) } });
    const valueFrom = { configMapKeyRef: { name: "c", key: "no", optional: true } };
    expect(resolve({ env: [{ name: "A", valueFrom }] }, references).variables).toEqual({});
  });

  test("never takes unknown for absent, not even for an optional reference", () => {
    const references = referencesWith({ secrets: { s: { kind: "unknown", message: "timed out" } } });
    const { result } = resolve({ envFrom: [{ secretRef: { name: "s", optional: true } }] }, references);
    expect(result).toEqual({ ok: false, message: 'failed to sync secret cache: secret "s": timed out' });
  });

  test("waits until services have been listed", () => {
    expect(resolve({}, referencesWith({ services: undefined })).result).toEqual({
      ok: false,
      message: "services have not yet been read at least once, cannot construct envvars",
    });
  });

  test("refuses a NUL byte without repeating the value", () => {
    const references = referencesWith({ secrets: { s: secret({ k: "top\0secret" }) } });
    const { result } = resolve(
      { env: [{ name: "A", valueFrom: { secretKeyRef: { name: "s", key: "k" } } }] },
      references,
    );
    expect(result).toEqual({ ok: false, message: 'environment variable "A" holds a NUL byte' });
  });
});

describe("service variables", () => {
  const services = [
    service("default", "kubernetes", "10.96.0.1", [{ name: "https", port: 443, protocol: "TCP" }]),
    service("shop", "redis-master", "10.0.0.11", [{ name: "db", port: 6379 }]),
    service("shop", "dual", "fd00::5", [{ port: 53, protocol: "UDP" }]),
    service("shop", "headless", "None", [{ port: 80 }]),
    service("other", "foreign", "10.0.0.9", [{ port: 80 }]),
  ];

  test("always tells of the API server, and of nothing else without service links", () => {
    expect(resolve({}, referencesWith({ services })).variables).toEqual({
      KUBERNETES_SERVICE_HOST: "10.96.0.1",
      KUBERNETES_SERVICE_PORT: "443",
      KUBERNETES_SERVICE_PORT_HTTPS: "443",
      KUBERNETES_PORT: "tcp://10.96.0.1:443",
      KUBERNETES_PORT_443_TCP: "tcp://10.96.0.1:443",
      KUBERNETES_PORT_443_TCP_PROTO: "tcp",
      KUBERNETES_PORT_443_TCP_PORT: "443",
      KUBERNETES_PORT_443_TCP_ADDR: "10.96.0.1",
    });
  });

  test("tells of the namespace's services with service links", () => {
    const { variables } = resolve({}, referencesWith({ services }), true);
    expect(variables).toMatchObject({
      REDIS_MASTER_SERVICE_HOST: "10.0.0.11",
      REDIS_MASTER_SERVICE_PORT_DB: "6379",
      REDIS_MASTER_PORT: "tcp://10.0.0.11:6379",
      DUAL_PORT_53_UDP: "udp://[fd00::5]:53",
    });
    expect(Object.keys(variables ?? {}).filter((name) => /HEADLESS|FOREIGN/.test(name))).toEqual([]);
  });

  test("lets the container's own variables win, and refer to them", () => {
    const env = [
      { name: "URL", value: "$(REDIS_MASTER_PORT)" },
      { name: "REDIS_MASTER_SERVICE_HOST", value: "mine" },
    ];
    expect(resolve({ env }, referencesWith({ services }), true).variables).toMatchObject({
      URL: "tcp://10.0.0.11:6379",
      REDIS_MASTER_SERVICE_HOST: "mine",
    });
  });
});

describe("variables in files of volumes", () => {
  const inFile = (name: string, rest: Partial<FileKeyRef> = {}) => ({
    name,
    valueFrom: { fileKeyRef: { volumeName: "config", path: "app.env", key: "KEY", ...rest } },
  });
  const told = (name: string, rest: object = {}) => ({
    name,
    value: "",
    from_file: { volume: "config", path: "app.env", key: "KEY", ...rest },
  });
  const token = (name: string) => `{{vmlet 0a1b file ${name}=}}`;

  test("are told to the machine by their places, and what refers to them by tokens", () => {
    const { entries, result } = resolve({
      env: [{ name: "B", value: "$(A)" }, inFile("A"), { name: "C", value: "<$(A)>" }],
    });
    expect(entries).toEqual([{ name: "B", value: "$(A)" }, told("A"), { name: "C", value: `<${token("A")}>` }]);
    expect(result).toMatchObject({ value: { hasFiles: true } });
  });

  test("leave others as they are", () => {
    expect(resolve({ env: [{ name: "A", value: "1" }] }).result).toMatchObject({ value: { hasFiles: false } });
  });

  test("come after what counts without them: another source of the name, or a Service", () => {
    const references = referencesWith({
      configMaps: { c: configMap({ A: "earlier" }) },
      services: [service("shop", "db", "10.0.0.9", [{ port: 5432 }])],
    });
    const { entries } = resolve(
      {
        envFrom: [{ configMapRef: { name: "c" } }],
        env: [inFile("A", { optional: true }), inFile("DB_SERVICE_HOST", { optional: true })],
      },
      references,
      true,
    );
    expect(entries?.slice(0, 4)).toEqual([
      { name: "A", value: "earlier" },
      told("A", { optional: true }),
      { name: "DB_SERVICE_HOST", value: "10.0.0.9" },
      told("DB_SERVICE_HOST", { optional: true }),
    ]);
  });

  test("begin at the volume's root", () => {
    expect(resolve({ env: [inFile("A", { path: "//sub/./app.env" })] }).entries).toEqual([
      told("A", { path: "sub/app.env" }),
    ]);
  });

  test.each([
    [
      "a volume that the machine does not have",
      inFile("A", { volumeName: "other" }),
      'cannot find the volume "other" referenced by FileKeyRef',
    ],
    ["a path that leaves it", inFile("A", { path: "a/../../b" }), "must not contain '..'"],
  ])("wait for %s", (_what, variable, message) => {
    expect(resolve({ env: [variable] }).result).toEqual({ ok: false, message: expect.stringContaining(message) });
  });

  test("are in so many files", () => {
    const env = Array.from({ length: 33 }, (_, index) => inFile(`V${index}`, { path: `${index}.env` }));
    expect(resolve({ env }).result).toEqual({
      ok: false,
      message: "its variables are in 33 files of volumes, this node reads at most 32",
    });
  });
});
