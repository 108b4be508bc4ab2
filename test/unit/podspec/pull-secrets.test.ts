import { describe, expect, test } from "vitest";
import type { PodEvent, References } from "../../../src/podspec/types.ts";
import { registryAuth } from "../../../src/podspec/references/pull-secrets.ts";
import { normalizeRegistry } from "../../../src/provider/docker-config.ts";
import { base64, podWith, referencesWith, secret } from "./fixtures.ts";

function auth(names: string[], references: References) {
  const events: PodEvent[] = [];
  const pod = podWith({ imagePullSecrets: names.map((name) => ({ name })) });
  return { auth: registryAuth(pod, references, events), events };
}

const dockerConfig = (auths: object) =>
  secret({ ".dockerconfigjson": JSON.stringify({ auths }) }, "kubernetes.io/dockerconfigjson");

describe("registryAuth", () => {
  test("reads both formats, the most specific registry first", () => {
    const references = referencesWith({
      secrets: {
        a: dockerConfig({ "quay.io": { username: "u", password: "p" }, "quay.io/team": { auth: base64("t:s:3") } }),
        b: secret(
          { ".dockercfg": JSON.stringify({ "https://index.docker.io/v1/": { username: "d", password: "h" } }) },
          "kubernetes.io/dockercfg",
        ),
      },
    });
    expect(auth(["a", "b"], references)).toEqual({
      auth: [
        { registry: "quay.io/team", username: "t", password: "s:3" },
        { registry: "quay.io", username: "u", password: "p" },
        { registry: "docker.io", username: "d", password: "h" },
      ],
      events: [],
    });
  });

  test("passes identity tokens on", () => {
    const references = referencesWith({ secrets: { a: dockerConfig({ r: { identitytoken: "T" } }) } });
    expect(auth(["a"], references).auth).toEqual([{ registry: "r", identity_token: "T" }]);
  });

  test("goes on without secrets that are missing or broken, with the kubelet's event", () => {
    const references = referencesWith({
      secrets: {
        gone: { kind: "absent" },
        broken: secret({ ".dockerconfigjson": "{" }),
        other: secret({ token: "x" }),
        good: dockerConfig({ r: { username: "u", password: "p" } }),
      },
    });
    const result = auth(["gone", "broken", "other", "good", ""], references);
    expect(result.auth).toHaveLength(1);
    expect(result.events).toEqual([
      {
        type: "Warning",
        reason: "FailedToRetrieveImagePullSecret",
        message:
          "Unable to retrieve some image pull secrets (gone, broken, other); attempting to pull the image may not succeed.",
      },
    ]);
  });
});

describe("normalizeRegistry", () => {
  test.each([
    ["https://index.docker.io/v1/", "docker.io"],
    ["docker.io", "docker.io"],
    ["http://localhost:5000", "localhost:5000"],
    ["quay.io/v2/team/", "quay.io/team"],
    ["quay.io/v2team", "quay.io/v2team"],
    ["*.example.com/a", "*.example.com/a"],
  ])("makes %j %j", (location, registry) => {
    expect(normalizeRegistry(location)).toBe(registry);
  });
});
