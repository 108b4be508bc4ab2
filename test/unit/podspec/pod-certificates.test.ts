import { createPrivateKey } from "node:crypto";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { PodCertificates } from "../../../src/podspec/references/pod-certificates.ts";
import type { CertificateWish } from "../../../src/podspec/types.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { waitFor } from "../../e2e/harness/wait.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";
import { failure, FakeKube, notFound } from "./fake-kube.ts";
import { podWith } from "./fixtures.ts";

const REQUESTS = "/apis/certificates.k8s.io/v1/podcertificaterequests";
const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const CERT = "-----BEGIN CERTIFICATE-----\nQQ==\n-----END CERTIFICATE-----\n";
const pod = podWith({ serviceAccountName: "web" }, { uid: "u1" });
const namespace = pod.metadata!.namespace!;
const created = `/apis/certificates.k8s.io/v1/namespaces/${namespace}/podcertificaterequests`;
const account = `/api/v1/namespaces/${namespace}/serviceaccounts/web`;
const wish: CertificateWish = { key: "v/0", signerName: "s.io/s", keyType: "ED25519" };

let kube: FakeKube;
let clock: VirtualClock;
let changed: string[];
let told: string[];
let certificates: PodCertificates;
/** Thrown at the next requests for a certificate. */
let refusal: Error | undefined;

beforeEach(() => {
  kube = new FakeKube();
  clock = new VirtualClock();
  changed = [];
  told = [];
  refusal = undefined;
  let count = 0;
  kube.intercept = ({ method, path, query, body }) => {
    if (path === account) return { metadata: { name: "web", uid: "account-uid" } };
    if (method === "POST" && path === created) {
      if (refusal !== undefined) throw refusal;
      const name = `req-${++count}`;
      kube.put(`${created}/${name}`, body as Record<string, unknown>);
      return { metadata: { name, namespace } };
    }
    if (path === REQUESTS && query?.["watch"] !== true)
      return { kind: "List", metadata: { resourceVersion: "7" }, items: [] };
    return undefined;
  };
  certificates = new PodCertificates({
    ...{ kube, clock, random: () => 0, logger: silentLogger },
    nodeName: "n",
    node: () => ({ metadata: { name: "n", uid: "node-uid" } }),
    onChange: (uid) => changed.push(uid),
    event: (_, { reason, message }) => told.push(`${reason}: ${message}`),
  });
});
afterEach(() => certificates.close());

const bodies = () =>
  kube.requests.flatMap(({ method, body }) => (method === "POST" ? [body as { spec: Record<string, unknown> }] : []));
const got = () => certificates.get(pod, [wish]).get("v/0");
/** Keys are made beside the event loop, in no time that a virtual clock knows. */
const asked = (count: number) =>
  waitFor({ what: `${count} requests`, timeoutMs: 10_000, intervalMs: 5 }, async () => {
    if (bodies().length < count) throw new Error(`${bodies().length} requests`);
    await new Promise((resolve) => setImmediate(resolve));
  });
/** What the signer writes. Only the node's own list and watch tell of it. */
async function answers(name: string, status: object): Promise<void> {
  kube.put(`${REQUESTS}/namespaces/${namespace}/${name}`, { metadata: { namespace }, spec: { nodeName: "n" }, status });
  await new Promise((resolve) => setImmediate(resolve));
}
const at = (ms: number) => new Date(clock.now() + ms).toISOString();
const issued = (lifeMs = 24 * HOUR, refreshMs = 12 * HOUR) => ({
  conditions: [{ type: "Issued", status: "True" }],
  certificateChain: `for people\n${CERT}`,
  beginRefreshAt: at(refreshMs),
  notAfter: at(lifeMs),
});

describe("a pod's certificate", () => {
  test("is asked for with a proof of the key, for the pod, its account and this node", async () => {
    expect(certificates.version("u1", [wish])).toBeUndefined();
    expect(got()).toEqual({ kind: "unknown", message: "credential bundle is not issued yet" });
    await asked(1);
    expect(bodies()[0]).toMatchObject({
      metadata: { generateName: "req-", ownerReferences: [{ kind: "Pod", uid: "u1" }] },
      spec: {
        ...{ signerName: "s.io/s", podUID: "u1", serviceAccountName: "web", serviceAccountUID: "account-uid" },
        ...{ nodeName: "n", nodeUID: "node-uid", stubPKCS10Request: expect.any(String) as string },
      },
    });
  });

  test("has the key that was made for it, and nothing of the chain but certificates", async () => {
    got();
    await asked(1);
    await answers("req-1", issued());
    expect(changed).toContain("u1");
    const found = got();
    expect(found).toMatchObject({ kind: "found", object: { chain: CERT } });
    const { privateKey } = (found as { object: { privateKey: string } }).object;
    expect(createPrivateKey(privateKey).asymmetricKeyType).toBe("ed25519");
    expect(JSON.stringify(kube.requests)).not.toContain("PRIVATE KEY");
  });

  test.each([
    ["Denied", "was denied", "denied"],
    ["Failed", "failed", "failed"],
  ])("that is %s is not asked for again, and the pod is told", async (type, verb, word) => {
    got();
    await asked(1);
    await answers("req-1", { conditions: [{ type, status: "True", reason: "R", message: "M" }] });
    expect(told).toEqual([`${type}: PodCertificateRequest ${namespace}/req-1 ${verb}, reason="R", message="M"`]);
    expect(got()).toEqual({
      kind: "unknown",
      message: `PodCertificateRequest was permanently ${word}: reason="R", message="M"`,
    });
    await clock.advance(HOUR);
    expect(bodies()).toHaveLength(1);
  });

  test("that the API server refuses is asked for again, later and later", async () => {
    refusal = failure(403, "Forbidden");
    got();
    await waitFor({ what: "the refusal", timeoutMs: 5_000, intervalMs: 5 }, async () => {
      if (changed.length === 0) throw new Error("nothing was said");
    });
    expect(got()).toMatchObject({ kind: "unknown", message: expect.stringContaining("403") as string });
    refusal = undefined;
    await clock.advance(5_000);
    await asked(2);
  });

  test("on an older Kubernetes says which one it needs", async () => {
    refusal = notFound(created);
    got();
    await waitFor({ what: "the refusal", timeoutMs: 5_000, intervalMs: 5 }, async () => {
      if (changed.length === 0) throw new Error("nothing was said");
    });
    expect(got()).toMatchObject({ message: expect.stringContaining("Kubernetes 1.37") as string });
  });

  test("whose request was deleted is asked for again", async () => {
    got();
    await asked(1);
    await answers("req-1", {});
    kube.remove(`${REQUESTS}/namespaces/${namespace}/req-1`);
    await new Promise((resolve) => setImmediate(resolve));
    expect(got()).toEqual({ kind: "unknown", message: `PodCertificateRequest ${namespace}/req-1 was deleted` });
    await clock.advance(10_000);
    await asked(2);
  });
});

describe("a certificate that is in use", () => {
  beforeEach(async () => {
    got();
    await asked(1);
    await answers("req-1", issued());
  });

  test("is replaced when its signer says so, with a new key", async () => {
    const before = got();
    const version = certificates.version("u1", [wish]);
    await clock.advance(11 * HOUR);
    expect(bodies()).toHaveLength(1);
    await clock.advance(HOUR + 2 * MINUTE);
    await asked(2);
    expect(got()).toEqual(before);
    await answers("req-2", issued());
    expect(got()).not.toEqual(before);
    expect(certificates.version("u1", [wish])).not.toBe(version);
  });

  test("stays when a newer one is denied", async () => {
    const before = got();
    await clock.advance(12 * HOUR + 2 * MINUTE);
    await asked(2);
    await answers("req-2", { conditions: [{ type: "Denied", status: "True", reason: "R" }] });
    expect(got()).toEqual(before);
  });

  test("is said to be overdue, and to have expired, once each", async () => {
    await clock.advance(30 * HOUR);
    await clock.advance(30 * HOUR);
    expect(told.map((each) => each.split(":")[0])).toEqual(["CertificateOverdueForRefresh", "CertificateExpired"]);
  });

  test("is renewed no more when its pod is gone", async () => {
    certificates.release("u1");
    await clock.advance(30 * HOUR);
    expect(bodies()).toHaveLength(1);
    expect(certificates.version("u1", [wish])).toBeUndefined();
  });
});
