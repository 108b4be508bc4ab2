import { afterEach, beforeEach, expect, test } from "vitest";
import { KubeApiError } from "../../../src/kube/errors.ts";
import { TrustBundles } from "../../../src/podspec/references/trust-bundles.ts";
import { trustKey, type TrustWish } from "../../../src/podspec/types.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { settle, VirtualClock } from "../../support/virtual-clock.ts";
import { failure, FakeKube, notFound } from "./fake-kube.ts";
import { podWith } from "./fixtures.ts";

const V1 = "/apis/certificates.k8s.io/v1/clustertrustbundles";
const pem = (text: string) =>
  `-----BEGIN CERTIFICATE-----\n${Buffer.from(text).toString("base64")}\n-----END CERTIFICATE-----\n`;
const pod = podWith({}, { uid: "u1" });
const bundle = (name: string, spec: object, labels: Record<string, string> = {}) => ({
  metadata: { name, uid: `uid-${name}`, resourceVersion: "1", labels },
  spec,
});

let kube: FakeKube;
let clock: VirtualClock;
let changed: string[];
let bundles: TrustBundles;
let done: AbortController;
/** What the server has, by the version of the API; a version that is missing is unknown to it. */
let server: Record<string, object[] | KubeApiError>;

beforeEach(() => {
  kube = new FakeKube();
  clock = new VirtualClock();
  changed = [];
  done = new AbortController();
  server = { v1: [] };
  kube.intercept = ({ path, query }) => {
    const version = /certificates\.k8s\.io\/(\w+)\//.exec(path)?.[1] ?? "";
    const items = server[version];
    if (items === undefined) throw notFound(path);
    if (items instanceof KubeApiError) throw items;
    if (query?.["watch"] === true) return undefined;
    return { kind: "List", metadata: { resourceVersion: "7" }, items };
  };
  bundles = new TrustBundles({
    kube,
    clock,
    random: () => 0,
    logger: silentLogger,
    onChange: (uid) => changed.push(uid),
  });
});
afterEach(() => {
  done.abort();
  bundles.close();
});

async function anchors(wish: TrustWish) {
  const found = (await bundles.get(pod, [wish], done.signal)).get(trustKey(wish));
  return found?.kind === "found" ? found.object : found;
}

test("nothing is asked for before a pod wants anchors", async () => {
  expect(await bundles.get(pod, [], done.signal)).toEqual(new Map());
  expect(kube.requests).toEqual([]);
});

test("a bundle is found by its name", async () => {
  server["v1"] = [bundle("a", { trustBundle: pem("A") }), bundle("b", { trustBundle: pem("B") })];
  expect(await anchors({ name: "b" })).toBe(pem("B"));
});

test("what stands between certificates is left out, and one that comes twice comes once", async () => {
  server["v1"] = [bundle("a", { trustBundle: `# of our own\n${pem("A")}\n${pem("B")}# again\n${pem("A")}` })];
  expect(await anchors({ name: "a" })).toBe(pem("A") + pem("B"));
});

test("a long certificate has lines of 64 characters", async () => {
  const long = Buffer.alloc(100, "x").toString("base64");
  const [begin, end] = ["-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"];
  server["v1"] = [bundle("a", { trustBundle: `${begin}\n${long}\n${end}\n` })];
  expect(await anchors({ name: "a" })).toBe(
    `${begin}\n${long.slice(0, 64)}\n${long.slice(64, 128)}\n${long.slice(128)}\n${end}\n`,
  );
});

test.each<[what: string, selector: object | undefined, found: unknown]>([
  ["an empty selector takes all of the signer's", {}, pem("A") + pem("B")],
  ["labels take those that have them", { matchLabels: { zone: "b" } }, pem("B")],
  [
    "expressions take those that they hold for",
    { matchExpressions: [{ key: "zone", operator: "NotIn", values: ["b"] }] },
    pem("A"),
  ],
  ["no selector takes none", undefined, { kind: "absent" }],
  ["labels that none has take none", { matchLabels: { zone: "c" } }, { kind: "absent" }],
])("of a signer, %s", async (_, labelSelector, expected) => {
  server["v1"] = [
    bundle("a", { signerName: "x.io/s", trustBundle: pem("A") }, { zone: "a" }),
    bundle("b", { signerName: "x.io/s", trustBundle: pem("B") }, { zone: "b" }),
    bundle("c", { signerName: "x.io/other", trustBundle: pem("C") }, { zone: "b" }),
  ];
  expect(await anchors({ signerName: "x.io/s", labelSelector })).toEqual(expected);
});

test("the newest version of the API that the server has is asked", async () => {
  server = { v1beta1: [bundle("a", { trustBundle: pem("A") })], v1alpha1: [] };
  expect(await anchors({ name: "a" })).toBe(pem("A"));
});

test("a server without any is asked again after a minute", async () => {
  server = {};
  expect(await anchors({ name: "a" })).toEqual({
    kind: "unknown",
    message: "the API server has no ClusterTrustBundles",
  });
  server = { v1: [bundle("a", { trustBundle: pem("A") })] };
  await clock.advance(60_000);
  await settle();
  expect(changed).toEqual(["u1"]);
  expect(await anchors({ name: "a" })).toBe(pem("A"));
});

test("a server that loses the version that is watched, as one that is set back, is asked for the others", async () => {
  server = { v1: [bundle("a", { trustBundle: pem("A") })] };
  expect(await anchors({ name: "a" })).toBe(pem("A"));
  server = { v1beta1: [{ ...bundle("a", { trustBundle: pem("B") }), metadata: { name: "a", uid: "uid-a" } }] };
  for (let minute = 0; minute < 10; minute++) await clock.advance(60_000);
  await settle();
  expect(changed).toEqual(["u1"]);
  expect(await anchors({ name: "a" })).toBe(pem("B"));
});

test("a refusal is no absence, and is counted", async () => {
  let denied = 0;
  const refused = new TrustBundles({
    kube,
    clock,
    random: () => 0,
    logger: silentLogger,
    onChange: () => {},
    onDenied: () => denied++,
  });
  server["v1"] = failure(403, "Forbidden");
  const wish = { name: "a" };
  expect((await refused.get(pod, [wish], done.signal)).get(trustKey(wish))).toMatchObject({ kind: "unknown" });
  refused.close();
  expect(denied).toBe(1);
});

test("only pods that want a bundle hear that it has changed", async () => {
  const other = podWith({}, { uid: "u2" });
  kube.intercept = ({ path, query }) => {
    if (query?.["watch"] === true) return undefined;
    return {
      kind: "List",
      metadata: { resourceVersion: "7" },
      items: path === V1 ? [bundle("a", { trustBundle: pem("A") })] : [],
    };
  };
  await bundles.get(pod, [{ name: "new" }], done.signal);
  await bundles.get(other, [{ name: "a" }], done.signal);
  const before = bundles.version([{ name: "new" }]);
  await settle();
  kube.put(`${V1}/new`, { spec: { trustBundle: pem("N") } });
  await settle();
  expect(changed).toEqual(["u1"]);
  expect(bundles.version([{ name: "new" }])).not.toBe(before);
});

test("a pod that is gone hears of nothing", async () => {
  server["v1"] = [];
  await bundles.get(pod, [{ name: "new" }], done.signal);
  bundles.release("u1");
  await settle();
  kube.put(`${V1}/new`, { spec: { trustBundle: pem("N") } });
  await settle();
  expect(changed).toEqual([]);
});
