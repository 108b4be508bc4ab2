import { describe, expect, test, vi } from "vitest";
import type { Container, Service } from "../../../src/kube/wire.ts";
import { POD_LIMITS } from "../../../src/podspec/budget.ts";
import { expand } from "../../../src/podspec/render/expansion.ts";
import type { References, RenderResult } from "../../../src/podspec/types.ts";
import { registryAuth } from "../../../src/podspec/references/pull-secrets.ts";
import { renderMachineSpec } from "../../../src/podspec/render/render.ts";
import {
  base64,
  configMap,
  inputFor,
  podWith,
  podWithContainer,
  referencesWith,
  secret,
  service,
  type PodSpec,
} from "./fixtures.ts";

const KIB = 1024;
const times = <T>(count: number, make: (index: number) => T): T[] => Array.from({ length: count }, (_, i) => make(i));

function render(
  container: Partial<Container>,
  { spec = {}, references }: { spec?: Partial<PodSpec>; references?: References } = {},
) {
  return renderMachineSpec(inputFor(podWithContainer(container, spec), references ? { references } : {}));
}

/** Why the container `app` waits. */
function waits(result: RenderResult): { reason: string; message: string } | undefined {
  if (result.kind !== "wait") throw new Error(`the pod is ${result.kind}`);
  return result.waiting.get("app");
}

/** The events of a pod that is held. */
function held(result: RenderResult): string {
  if (result.kind !== "wait") throw new Error(`the pod is ${result.kind}`);
  return result.events.map(({ reason, message }) => `${reason}: ${message}`).join("\n");
}

/** Each level says the one before it so many times. */
const laughs = (levels: number, width: number) =>
  times(levels, (i) => ({ name: `V${i}`, value: i === 0 ? "x".repeat(width) : `$(V${i - 1})`.repeat(width) }));

describe("an environment", () => {
  test("of variables that multiply each other is refused before it is built", () => {
    expect(waits(render({ env: laughs(6, 170) }))).toEqual({
      reason: "CreateContainerConfigError",
      message: expect.stringContaining("would expand to more than 131072 bytes") as unknown,
    });
  });

  test("may have the longest value that a process can be given, and none longer", () => {
    const env = (length: number) => [{ name: "A", value: "ä".repeat(length / 2) }];
    expect(render({ env: env(128 * KIB) }).kind).toBe("ready");
    expect(waits(render({ env: env(128 * KIB + 2) }))).toEqual({
      reason: "CreateContainerConfigError",
      message:
        'environment variable "A" has 131074 bytes, a process can be given at most 131072: argument list too long',
    });
  });

  test("is no larger than a process can be given, commands and arguments included", () => {
    const env = times(15, (i) => ({ name: `A${i}`, value: "x".repeat(128 * KIB) }));
    expect(render({ env }).kind).toBe("ready");
    expect(waits(render({ env, args: ["$(A0)", "$(A1)"] }))).toEqual({
      reason: "CreateContainerConfigError",
      message: 'the environment and arguments of container "app" would take more than 2097152 bytes',
    });
  });

  test("counts for the pod as a whole, too", () => {
    const env = [
      { name: "A", value: "x".repeat(100 * KIB) },
      { name: "B", value: "$(A)" },
    ];
    const containers = times(50, (i) => ({ name: `c${i}`, image: "nginx", env }));
    const result = renderMachineSpec(inputFor(podWith({ containers })));
    expect(held(result)).toContain(
      "the environment and arguments of the pod's containers would take more than 8388608",
    );
  });

  test("takes no more Services than a process can be told of", () => {
    const ports = times(100, (i) => ({ port: 1000 + i, name: `port-${i}` }));
    const services: Service[] = times(200, (i) => service("shop", `service-${i}`, "10.0.0.1", ports));
    const references = referencesWith({ services });
    expect(waits(render({}, { references }))).toEqual({
      reason: "CreateContainerConfigError",
      message:
        'the variables of the Services in namespace "shop" (see enableServiceLinks) would take more than 2097152 bytes',
    });
    expect(render({}, { references, spec: { enableServiceLinks: false } }).kind).toBe("ready");
  });

  test("decodes of a secret only what is asked for", () => {
    const references = referencesWith({ secrets: { s: secret({ k: "v", large: "x".repeat(700 * KIB) }) } });
    const env = times(2000, (i) => ({ name: `A${i}`, valueFrom: { secretKeyRef: { name: "s", key: "k" } } }));
    expect(render({ env }, { references }).kind).toBe("ready");
  });
});

describe("commands", () => {
  test("of probes are bounded like those of containers", () => {
    const env = [{ name: "A", value: "x".repeat(100 * KIB) }];
    const command = times(30, () => "$(A)");
    expect(waits(render({ env, livenessProbe: { exec: { command } } }))?.message).toContain(
      'container "app" would take more than 2097152 bytes',
    );
  });

  test("are no longer in one word than a process can be given", () => {
    const env = [{ name: "A", value: "x".repeat(100 * KIB) }];
    expect(waits(render({ env, command: ["$(A)$(A)"] }))?.message).toBe(
      '"$(A)$(A)" would expand to more than 131072 bytes',
    );
  });

  test("are expanded in linear time, whatever is left open", () => {
    const text = "$(".repeat(1 << 20);
    expect(expand(text, () => undefined)).toBe(text);
  });
});

test("a subPathExpr is no longer than a path", () => {
  const volume: Partial<PodSpec> = { volumes: [{ name: "v", emptyDir: {} }] };
  const mounts = [{ name: "v", mountPath: "/v", subPathExpr: "$(A)/$(A)" }];
  const env = [{ name: "A", value: "x".repeat(3000) }];
  expect(waits(render({ env, volumeMounts: mounts }, { spec: volume }))?.message).toContain("more than 4096 bytes");
});

describe("files", () => {
  const mount = (volumes: NonNullable<PodSpec["volumes"]>) => ({
    container: { volumeMounts: volumes.map(({ name }) => ({ name, mountPath: `/${name}` })) },
    spec: { volumes },
  });
  const large = referencesWith({
    configMaps: { c: configMap({ k: "x".repeat(900 * KIB) }) },
    secrets: { s: secret({ k: "x".repeat(700 * KIB) }) },
  });
  const refused = 'FailedMount: MountVolume.SetUp failed for volume "v';

  test.each([
    ["items of one volume", [{ name: "v", configMap: { name: "c", items: items(5000) } }]],
    ["volumes of one object", times(500, (i) => ({ name: `v${i}`, secret: { secretName: "s" } }))],
    [
      "sources of one volume",
      [{ name: "v", projected: { sources: times(5000, (i) => ({ configMap: { name: "c", items: items(1, i) } })) } }],
    ],
  ])("that %s repeat are refused before they are built", (_, volumes) => {
    const { container, spec } = mount(volumes);
    const said = held(render(container, { spec, references: large }));
    expect(said).toContain(refused);
    expect(said).toContain("the files of the pod's volumes would take more than 12582912 bytes");
  });

  test("for which there is no room are not even encoded", () => {
    const { container, spec } = mount(times(500, (i) => ({ name: `v${i}`, configMap: { name: "c" } })));
    const encoding = vi.spyOn(Buffer, "from");
    held(render(container, { spec, references: large }));
    const encoded = encoding.mock.calls.filter(([text]) => (text as unknown) === "x".repeat(900 * KIB));
    encoding.mockRestore();
    expect(encoded).toHaveLength(Math.floor(POD_LIMITS.fileBytes / (1200 * KIB)));
  });

  test("of the downward API are, too", () => {
    const files = times(3000, (i) => ({ path: `f${i}`, fieldRef: { fieldPath: "metadata.annotations" } }));
    const { container, spec } = mount([{ name: "v", downwardAPI: { items: files } }]);
    const pod = podWithContainer(container, spec);
    const annotated = { ...pod, metadata: { ...pod.metadata, annotations: { a: '"'.repeat(200 * KIB) } } };
    expect(held(renderMachineSpec(inputFor(annotated)))).toContain(refused);
  });

  test("in folders upon folders are checked in linear time", () => {
    const deep = times(400, (i) => ({ key: "k", path: `${"d/".repeat(2000)}${i}` }));
    const { container, spec } = mount([{ name: "v", configMap: { name: "c", items: deep } }]);
    const references = referencesWith({ configMaps: { c: configMap({ k: "v" }) } });
    expect(render(container, { spec, references }).kind).toBe("ready");
  });

  function items(count: number, from = 0) {
    return times(count, (i) => ({ key: "k", path: `f${from + i}` }));
  }
});

describe("pull secrets", () => {
  const registries = (count: number, password = "p") =>
    JSON.stringify({
      auths: Object.fromEntries(times(count, (i) => [`r${i}.example`, { auth: base64(`u:${password}`) }])),
    });
  const read = (auths: string) => {
    const pod = podWith({ imagePullSecrets: [{ name: "s" }] });
    const references = referencesWith({
      secrets: { s: secret({ ".dockerconfigjson": auths }, "kubernetes.io/dockerconfigjson") },
    });
    const events: { reason: string }[] = [];
    return { auth: registryAuth(pod, references, events as never), reasons: events.map(({ reason }) => reason) };
  };

  test("may hold many credentials, and not any number of them", () => {
    expect(read(registries(500)).auth).toHaveLength(500);
    expect(read(registries(501))).toEqual({ auth: [], reasons: ["FailedToRetrieveImagePullSecret"] });
  });

  test("may not hold megabytes of them", () => {
    expect(read(registries(20, "p".repeat(50 * KIB))).auth).toHaveLength(20);
    expect(read(registries(25, "p".repeat(50 * KIB)))).toEqual({
      auth: [],
      reasons: ["FailedToRetrieveImagePullSecret"],
    });
  });

  test("whose registry is no name that there could be are passed over", () => {
    const auths = { [`${"/".repeat(400 * KIB)}x`]: { auth: base64("u:p") }, "r.example": { auth: base64("u:p") } };
    expect(read(JSON.stringify({ auths })).auth).toEqual([{ registry: "r.example", username: "u", password: "p" }]);
  });

  test("are read in linear time, whatever is padded", () => {
    const password = `${"\0".repeat(500 * KIB)}x`;
    expect(read(JSON.stringify({ auths: { "r.example": { auth: base64(`u:${password}`) } } })).auth).toEqual([
      { registry: "r.example", username: "u", password },
    ]);
  });
});

type ProjectedSources = NonNullable<NonNullable<NonNullable<PodSpec["volumes"]>[number]["projected"]>["sources"]>;

describe("a pod", () => {
  const sandbox = "FailedCreatePodSandBox: Failed to create pod sandbox: ";
  const projecting = (sources: ProjectedSources): Partial<PodSpec> => ({
    containers: [{ name: "app", volumeMounts: [{ name: "v", mountPath: "/v" }] }],
    volumes: [{ name: "v", projected: { sources } }],
  });

  test.each<[string, Partial<PodSpec>]>([
    ["1001 containers", { containers: times(1001, (i) => ({ name: `c${i}`, image: "nginx" })) }],
    ["1001 volumes", { volumes: times(1001, (i) => ({ name: `v${i}`, emptyDir: {} })) }],
    ["33 image pull secrets", { imagePullSecrets: times(33, (i) => ({ name: `s${i}` })) }],
    [
      "201 ConfigMaps and Secrets",
      { containers: [{ name: "app", envFrom: times(201, (i) => ({ configMapRef: { name: `c${i}` } })) }] },
    ],
    [
      "33 service-account tokens",
      projecting(times(33, (i) => ({ serviceAccountToken: { path: `t${i}`, audience: `a${i}` } }))),
    ],
    [
      "33 sources of trust anchors by signer",
      projecting(times(33, (i) => ({ clusterTrustBundle: { path: `t${i}`, signerName: `s.io/${i}` } }))),
    ],
    [
      "1001 sources of trust anchors by name",
      projecting(times(1001, (i) => ({ clusterTrustBundle: { path: `t${i}`, name: `b${i}` } }))),
    ],
    [
      "17 pod certificates",
      projecting(
        times(17, (i) => ({ podCertificate: { keyPath: `k${i}`, signerName: "s.io/s", keyType: "ED25519" } })),
      ),
    ],
  ])("of %s is held", (what, spec) => {
    expect(held(renderMachineSpec(inputFor(podWith(spec))))).toContain(
      `${sandbox}the pod has ${what}, this node takes`,
    );
  });

  test("whose specification no backend takes is held", () => {
    // Each control character has six bytes in JSON.
    const env = times(100, (i) => ({ name: `A${i}`, value: "\u0001".repeat(15 * KIB) }));
    const containers = times(4, (i) => ({ name: `c${i}`, image: "nginx", env }));
    expect(held(renderMachineSpec(inputFor(podWith({ containers }))))).toContain(
      `${sandbox}the machine's specification has`,
    );
  });

  test("whose status no backend could tell is held", () => {
    const containers = times(1000, (i) => ({ name: `c${i}`, image: "i".repeat(1000) }));
    expect(held(renderMachineSpec(inputFor(podWith({ containers }))))).toMatch(/would take \d+ bytes in its status/);
  });

  test("with an image of a name that no image can have is told so", () => {
    expect(waits(render({ image: "i".repeat(1 << 20) }))).toEqual({
      reason: "InvalidImageName",
      message: expect.stringContaining("couldn't parse image name") as unknown,
    });
  });

  test("with a thousand things missing says so with a few events of a few words", () => {
    const references = referencesWith({ configMaps: { gone: { kind: "absent" } } });
    const env = times(1000, (i) => ({
      name: `A${i}`,
      valueFrom: { configMapKeyRef: { name: "gone", key: "k", optional: true } },
    }));
    const result = render({ env }, { references });
    expect(result.kind === "ready" && result.events.length).toBe(POD_LIMITS.events);
    const missing = waits(
      render(
        { volumeMounts: [{ name: "v", mountPath: "/v", subPathExpr: times(5000, (i) => `$(NO${i})`).join("") }] },
        { spec: { volumes: [{ name: "v", emptyDir: {} }] } },
      ),
    );
    expect(missing!.message.length).toBeLessThanOrEqual(POD_LIMITS.messageLength);
  });
});
