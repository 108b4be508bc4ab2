import * as fc from "fast-check";
import { describe, expect, test } from "vitest";
import { violation } from "../../../src/provider/contract/document.ts";
import { renderMachineSpec } from "../../../src/podspec/render/render.ts";
import { runs } from "../../support/runs.ts";
import { configMap, found, inputFor, podWith, referencesWith, secret, service } from "./fixtures.ts";

const maybe = <T>(arbitrary: fc.Arbitrary<T>) => fc.option(arbitrary, { nil: undefined });
const text = fc.string({ maxLength: 12 });
const quantity = fc.constantFrom("0", "1", "100m", "1.5Gi", "3M", "1e3");
const resources = fc.record({
  requests: fc.dictionary(fc.constantFrom("cpu", "memory", "ephemeral-storage", "nvidia.com/gpu"), quantity),
  limits: fc.dictionary(fc.constantFrom("cpu", "memory", "ephemeral-storage"), quantity),
});
const valueFrom = fc.constantFrom(
  { configMapKeyRef: { name: "c", key: "k" } },
  { secretKeyRef: { name: "s", key: "k" } },
  { fieldRef: { fieldPath: "status.podIP" } },
  { fieldRef: { fieldPath: "metadata.labels['a']" } },
  { resourceFieldRef: { resource: "limits.memory", divisor: "1Mi" } },
);
const probe = fc.constantFrom(
  { exec: { command: ["true"] } },
  { httpGet: { port: "http", path: "/x", scheme: "HTTP" } },
  { tcpSocket: { port: 80 } },
  { grpc: { port: 80, service: "" } },
);
const volumes = [
  { name: "conf", configMap: { name: "c" } },
  { name: "keys", secret: { secretName: "s", items: [{ key: "k", path: "a/b", mode: 0o400 }] } },
  { name: "info", downwardAPI: { items: [{ path: "labels", fieldRef: { fieldPath: "metadata.labels" } }] } },
  { name: "token", projected: { sources: [{ serviceAccountToken: { path: "t" } }] } },
  { name: "tmp", emptyDir: { medium: "Memory" } },
  { name: "disk", emptyDir: { sizeLimit: "1Gi" } },
  { name: "art", image: { reference: "art:1", pullPolicy: "IfNotPresent" } },
  { name: "host", hostPath: { path: "/data", type: "Directory" } },
];
const container = (name: string) =>
  fc.record({
    name: fc.constant(name),
    image: fc.constantFrom("nginx", "reg:5000/a/b@sha256:0"),
    imagePullPolicy: fc.constantFrom("Always", "IfNotPresent", "Never"),
    command: fc.array(text, { maxLength: 3 }),
    args: fc.array(fc.constantFrom("$(A)", "$$", "x"), { maxLength: 3 }),
    env: fc.array(
      fc.oneof(
        fc.record({ name: fc.constantFrom("A", "B"), value: text }),
        valueFrom.map((v) => ({ name: "V", valueFrom: v })),
      ),
    ),
    ports: fc.constant([{ name: "http", containerPort: 8080 }]),
    resources,
    livenessProbe: probe,
    lifecycle: fc.record({
      preStop: fc.constantFrom({ sleep: { seconds: 1 } }, { exec: { command: ["x"] } }),
      stopSignal: fc.constant("SIGINT"),
    }),
    volumeMounts: fc
      .subarray(volumes)
      .map((some) => some.map(({ name: volume }) => ({ name: volume, mountPath: `/m/${volume}`, subPath: "a" }))),
    securityContext: fc.record({
      runAsUser: fc.nat(2000),
      capabilities: fc.constant({ drop: ["ALL"] }),
      procMount: fc.constant("Unmasked"),
    }),
    restartPolicyRules: fc.constant([{ action: "Restart", exitCodes: { operator: "In", values: [1] } }]),
    tty: fc.boolean(),
    terminationMessagePolicy: fc.constantFrom("File", "FallbackToLogsOnError"),
  });
const podSpec = fc.record({
  containers: fc.tuple(container("app"), container("other")),
  initContainers: fc.tuple(container("init").map((c) => ({ ...c, restartPolicy: "Always" }))),
  restartPolicy: fc.constantFrom("Always", "OnFailure", "Never"),
  terminationGracePeriodSeconds: fc.nat(100),
  hostAliases: fc.constant([{ ip: "10.0.0.1", hostnames: ["a"] }]),
  subdomain: maybe(fc.constant("sub")).map((value) => value ?? ""),
  securityContext: fc.constant({
    fsGroup: 5,
    supplementalGroups: [6],
    sysctls: [{ name: "kernel.shm_rmid_forced", value: "1" }],
  }),
  imagePullSecrets: fc.constant([{ name: "pull" }]),
  shareProcessNamespace: fc.boolean(),
});

describe("rendered specs", () => {
  test("are what the Machine API accepts, whatever the pod asks for", () => {
    const references = referencesWith({
      configMaps: { c: configMap({ k: "v" }) },
      secrets: { s: secret({ k: "v" }), pull: secret({ ".dockerconfigjson": '{"auths":{"r":{"auth":"dTpw"}}}' }) },
      services: [service("default", "kubernetes", "10.96.0.1", [{ port: 443 }])],
      tokens: { "3600/": found("T") },
    });
    fc.assert(
      fc.property(podSpec, (spec) => {
        const pod = podWith({ ...spec, volumes }, { labels: { a: "1" } });
        const result = renderMachineSpec(inputFor(pod, { references, node: { allowHostPath: true } }));
        if (result.kind !== "ready") throw new Error(JSON.stringify(result.kind === "wait" ? result.events : result));
        expect(violation("request", "MachineSpec", JSON.parse(JSON.stringify(result.spec)))).toBeUndefined();
      }),
      { numRuns: runs(200) },
    );
  });
});
