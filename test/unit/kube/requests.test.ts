import { mkdirSync, mkdtempSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, expect, onTestFinished, test } from "vitest";
import { CredentialSource } from "../../../src/kube/credentials.ts";
import { loadKubeConfig } from "../../../src/kube/kubeconfig.ts";
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

  const load = (options: { path?: string; context?: string; environment?: Record<string, string> }) =>
    loadKubeConfig({ environment: {}, ...options });
  const headersOf = async (text: string) =>
    (await new CredentialSource(load({ path: file(text) }), systemClock).get()).headers;

  test("gives the server and the token", async () => {
    const source = new CredentialSource(load({ path: file(config({ token: "t" })) }), systemClock);
    expect(await source.get()).toMatchObject({ server: "http://127.0.0.1:1", headers: { authorization: "Bearer t" } });
  });

  test("may name a token file beside it, as client-go's tokenFile", async () => {
    const path = file(config({ tokenFile: "token" }));
    writeFileSync(join(path, "..", "token"), "from-file\n");
    const source = new CredentialSource(load({ path }), systemClock);
    expect((await source.get()).headers).toEqual({ authorization: "Bearer from-file" });
  });

  test("may hold names of JavaScript's own properties, which pollute nothing", async () => {
    const text = config({ token: "t" }).replaceAll(
      "{",
      '{"__proto__":{"polluted":1,"token":"p"},"constructor":{"prototype":{"polluted":1}},',
    );
    const source = new CredentialSource(load({ path: file(text) }), systemClock);
    expect((await source.get()).headers).toEqual({ authorization: "Bearer t" });
    expect(({} as Record<string, unknown>)["polluted"]).toBeUndefined();
  });

  test("gives what TLS needs, from files beside it or from itself", async () => {
    const base64 = (text: string) => Buffer.from(text).toString("base64");
    const path = file(
      JSON.stringify({
        "current-context": "c",
        clusters: [
          {
            name: "k",
            cluster: {
              server: "https://k:6443/prefix/",
              "certificate-authority": "ca.crt",
              "tls-server-name": "kube",
              "proxy-url": "http://proxy:3128",
            },
          },
        ],
        users: [{ name: "u", user: { "client-certificate-data": base64("cert"), "client-key": "u.key" } }],
        contexts: [{ name: "c", context: { cluster: "k", user: "u" } }],
      }),
    );
    writeFileSync(join(path, "..", "ca.crt"), "authority");
    writeFileSync(join(path, "..", "u.key"), "key");
    const { server, proxyUrl, tls } = await new CredentialSource(load({ path }), systemClock).get();
    expect({ server, proxyUrl }).toEqual({ server: "https://k:6443/prefix", proxyUrl: "http://proxy:3128" });
    expect(Object.fromEntries(Object.entries(tls).map(([name, value]) => [name, String(value)]))).toEqual({
      ca: "authority",
      cert: "cert",
      key: "key",
      servername: "kube",
    });
  });

  test("may switch the verification of the server off", async () => {
    const text = config({}).replace('"server"', '"insecure-skip-tls-verify":true,"server"');
    const { tls } = await new CredentialSource(load({ path: file(text) }), systemClock).get();
    expect(tls).toEqual({ rejectUnauthorized: false });
  });

  test("may name a user and a password, or whom to act as", async () => {
    expect(await headersOf(config({ username: "u", password: "p", as: "jane" }))).toEqual({
      authorization: `Basic ${Buffer.from("u:p").toString("base64")}`,
      "impersonate-user": "jane",
    });
  });

  test("may be YAML with merges, and with a token that looks like a number", async () => {
    const text = `
base: &base { user: { token: 12345 } }
current-context: c
clusters: [{ name: k, cluster: { server: "http://k" } }]
users: [{ <<: *base, name: u }]
contexts: [{ name: c, context: { cluster: k, user: u } }]
`;
    expect(await headersOf(text)).toEqual({ authorization: "Bearer 12345" });
  });

  test("may have an auth-provider that client-node knows", async () => {
    const provider = { name: "gcp", config: { "access-token": "of-gcp", expiry: "2999-01-01T00:00:00Z" } };
    expect(await headersOf(config({ "auth-provider": provider }))).toEqual({ authorization: "Bearer of-gcp" });
  });

  test("that is broken is complained of without a word of what it holds", () => {
    const path = file('users: [{ name: u, user: { token: "s3cret }');
    expect(() => load({ path })).toThrow(/^Cannot load the kubeconfig (?!.*s3cret)/s);
  });

  test("without a server says where it is missing", () => {
    const text = config({}).replace('"server"', '"serve"');
    expect(() => load({ path: file(text) })).toThrow("clusters[0].cluster.server is missing");
  });

  test("is found where kubectl looks for it: in all files of KUBECONFIG, of which the first wins, or at home", async () => {
    const user = (token: string) => JSON.stringify({ users: [{ name: "u", user: { token } }] });
    const withoutUsers = JSON.stringify({ ...(JSON.parse(config({})) as object), users: [] });
    const KUBECONFIG = [file(user("first")), file(withoutUsers), file(config({ token: "last" }))].join(":");
    const listed = await new CredentialSource(load({ environment: { KUBECONFIG } }), systemClock).get();
    expect(listed).toMatchObject({ server: "http://127.0.0.1:1", headers: { authorization: "Bearer first" } });

    const path = file(config({ token: "home" }));
    const home = join(path, "..");
    mkdirSync(join(home, ".kube"));
    renameSync(path, join(home, ".kube/config"));
    const atHome = await new CredentialSource(load({ environment: { HOME: home } }), systemClock).get();
    expect(atHome.headers).toEqual({ authorization: "Bearer home" });
  });

  test("that cannot be read is named", () => {
    expect(() => load({ path: "/nowhere/config" })).toThrow(/Cannot load the kubeconfig \/nowhere\/config: ENOENT/);
  });

  test("without the wanted context says which there are", () => {
    const path = file(config({}));
    expect(() => load({ path, context: "prod" })).toThrow(/no usable context "prod" \(contexts: c\)/);
  });
});
