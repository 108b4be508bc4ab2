import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, expect, onTestFinished, test } from "vitest";
import { CredentialSource, loadKubeConfig } from "../../../src/kube/credentials.ts";
import { podStatusPatch, strategicPatch } from "../../../src/kube/patch.ts";
import { selfSubjectAccessReview, subjectAccessReview, tokenReview } from "../../../src/kube/reviews.ts";
import { requestToken } from "../../../src/kube/tokens.ts";
import type { Pod } from "../../../src/kube/wire.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { ScriptedKube } from "../../support/scripted-kube.ts";

const live = () => new AbortController().signal;

describe("a pod status patch", () => {
  const pod: Pod = {
    metadata: { namespace: "ns", name: "a", uid: "u", resourceVersion: "7" },
    status: { phase: "Running", message: "old", qosClass: "Burstable", nominatedNodeName: "n" },
  };

  test("is for exactly this UID and resourceVersion", () => {
    const patch = podStatusPatch(pod, { phase: "Running" });
    expect(patch).toMatchObject({
      method: "PATCH",
      path: "/api/v1/namespaces/ns/pods/a/status",
      contentType: "application/merge-patch+json",
      body: { metadata: { uid: "u", resourceVersion: "7" } },
    });
  });

  test("changes the named fields only", () => {
    const { status } = podStatusPatch(pod, { phase: "Failed", message: null }).body as { status: object };
    expect(status).toEqual({ phase: "Failed", message: null });
  });
});

describe("patches", () => {
  test("name their kind", () => {
    expect(strategicPatch("/p", {}).contentType).toBe("application/strategic-merge-patch+json");
  });
});

describe("tokens and reviews", () => {
  test("ask for a token that dies with its pod", async () => {
    const kube = new ScriptedKube();
    kube.answer = () => ({ status: { token: "t", expirationTimestamp: "2026-01-01T01:00:00Z" } });
    const request = {
      namespace: "ns",
      serviceAccount: "sa",
      audiences: ["x"],
      expirationSeconds: 3607,
      pod: { name: "p", uid: "u" },
    };
    expect(await requestToken(kube, request, live())).toEqual({
      token: "t",
      expirationTimestamp: "2026-01-01T01:00:00Z",
    });
    expect(kube.requests[0]).toMatchObject({
      method: "POST",
      path: "/api/v1/namespaces/ns/serviceaccounts/sa/token",
      body: {
        spec: { audiences: ["x"], expirationSeconds: 3607, boundObjectRef: { kind: "Pod", name: "p", uid: "u" } },
      },
    });
  });

  test("take no reply for a token that holds none", async () => {
    const kube = new ScriptedKube();
    kube.answer = () => ({ kind: "Status" });
    const request = {
      namespace: "ns",
      serviceAccount: "sa",
      audiences: [],
      expirationSeconds: 600,
      pod: { name: "p", uid: "u" },
    };
    await expect(requestToken(kube, request, live())).rejects.toMatchObject({ reason: "Malformed" });
  });

  test("tell who a token belongs to, and nothing for a token that is not accepted", async () => {
    const kube = new ScriptedKube();
    kube.answer = () => ({ status: { authenticated: true, user: { username: "jo", groups: ["g"] } } });
    expect(await tokenReview(kube, { token: "t" }, live())).toEqual({ username: "jo", groups: ["g"] });
    kube.answer = () => ({ status: { authenticated: false, user: { username: "jo" } } });
    expect(await tokenReview(kube, { token: "t" }, live())).toBeUndefined();
  });

  test("ask for resource and for path access of a user", async () => {
    const kube = new ScriptedKube();
    kube.answer = () => ({ status: { allowed: true, reason: "rbac" } });
    const user = { username: "jo", groups: ["g"] };
    const attributes = { verb: "get", resource: "nodes", subresource: "proxy", name: "n" };
    expect(await subjectAccessReview(kube, { user, attributes }, live())).toEqual({ allowed: true, reason: "rbac" });
    await subjectAccessReview(kube, { user, path: "/healthz", verb: "get" }, live());
    expect(kube.requests.map((r) => (r.body as { spec: object }).spec)).toEqual([
      { user: "jo", groups: ["g"], resourceAttributes: attributes },
      { user: "jo", groups: ["g"], nonResourceAttributes: { path: "/healthz", verb: "get" } },
    ]);
  });

  test("take anything but a clear yes for a no", async () => {
    const kube = new ScriptedKube();
    for (const status of [undefined, {}, { allowed: false }, { allowed: true, denied: true }]) {
      kube.answer = () => ({ status });
      expect((await selfSubjectAccessReview(kube, { verb: "get", resource: "pods" }, live())).allowed).toBe(false);
    }
  });
});

describe("a kubeconfig", () => {
  function file(text: string): string {
    const folder = mkdtempSync(join(tmpdir(), "kubeconfig-"));
    onTestFinished(() => rmSync(folder, { recursive: true }));
    const path = join(folder, "config");
    writeFileSync(path, text);
    return path;
  }
  const config = (user: object) =>
    JSON.stringify({
      "current-context": "c",
      clusters: [{ name: "k", cluster: { server: "http://127.0.0.1:1/" } }],
      users: [{ name: "u", user }],
      contexts: [{ name: "c", context: { cluster: "k", user: "u" } }],
    });

  test("gives the server and the token", async () => {
    const source = new CredentialSource(loadKubeConfig({ path: file(config({ token: "t" })) }), systemClock);
    expect(await source.get()).toMatchObject({ server: "http://127.0.0.1:1", headers: { authorization: "Bearer t" } });
  });

  test("may name a token file beside it, as client-go's tokenFile", async () => {
    const path = file(config({ tokenFile: "token" }));
    writeFileSync(join(path, "..", "token"), "from-file\n");
    const source = new CredentialSource(loadKubeConfig({ path }), systemClock);
    expect((await source.get()).headers).toEqual({ authorization: "Bearer from-file" });
  });

  test("may hold names of JavaScript's own properties, which pollute nothing", async () => {
    const text = config({ token: "t" }).replaceAll(
      "{",
      '{"__proto__":{"polluted":1,"token":"p"},"constructor":{"prototype":{"polluted":1}},',
    );
    const source = new CredentialSource(loadKubeConfig({ path: file(text) }), systemClock);
    expect((await source.get()).headers).toEqual({ authorization: "Bearer t" });
    expect(({} as Record<string, unknown>)["polluted"]).toBeUndefined();
  });

  test("that cannot be read is named", () => {
    expect(() => loadKubeConfig({ path: "/nowhere/config" })).toThrow(
      /Cannot load the kubeconfig \/nowhere\/config: ENOENT/,
    );
  });

  test("without the wanted context says which there are", () => {
    const path = file(config({}));
    expect(() => loadKubeConfig({ path, context: "prod" })).toThrow(/no usable context "prod" \(contexts: c\)/);
  });
});
