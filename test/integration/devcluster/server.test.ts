import { connect as connectTcp } from "node:net";
import { KubeConfig } from "@kubernetes/client-node";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { parse } from "yaml";
import { connect } from "../../e2e/fidelity/api.ts";
import { create, pod, PODS, runDevCluster, type Running } from "./support.ts";

const MERGE = { "content-type": "application/merge-patch+json" };
const MAPS = "/api/v1/namespaces/default/configmaps";

describe("devcluster", () => {
  let running: Running;
  beforeEach(async () => {
    running = await runDevCluster({ binder: false, bookmarkIntervalMs: 20 });
  });
  afterEach(() => running[Symbol.asyncDispose]());

  test("sends 410 Expired to a watch from before the compaction", async () => {
    const { api, cluster } = running;
    const start = cluster.storage.revision;
    await create(api, MAPS, { metadata: { name: "m" } });
    cluster.storage.compact();
    const watch = await api.watch(`${MAPS}?watch=true&resourceVersion=${start}`);
    expect(await watch.next()).toMatchObject({
      type: "ERROR",
      object: { kind: "Status", code: 410, reason: "Expired" },
    });
    await watch.ended();
  });

  test("answers an expired continue token with 410 and a token that goes on", async () => {
    const { api, cluster } = running;
    for (const name of ["a", "b", "c"]) await create(api, MAPS, { metadata: { name } });
    const first = await api.request("GET", `${MAPS}?limit=2`);
    await create(api, MAPS, { metadata: { name: "d" } });
    cluster.storage.compact();
    const gone = await api.request("GET", `${MAPS}?limit=2&continue=${first.body.metadata.continue}`);
    expect(gone.body).toMatchObject({ code: 410, reason: "Expired" });
    const rest = await api.request("GET", `${MAPS}?continue=${gone.body.metadata.continue}`);
    expect(rest.body.items.map((item: { metadata: { name: string } }) => item.metadata.name)).toEqual([
      "c",
      "d",
      "kube-root-ca.crt",
    ]);
  });

  test("outlives a client that breaks off while its upgrade is refused", async () => {
    const { api, cluster } = running;
    const refused = Promise.withResolvers<void>();
    const socket = connectTcp(Number(new URL(cluster.url).port), "127.0.0.1");
    socket.write(`GET ${PODS}/p/exec HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n`);
    socket.once("data", () => {
      // What is not read yet when a socket closes makes the other side see a reset.
      socket.resetAndDestroy();
      refused.resolve();
    });
    await refused.promise;
    expect((await api.request("GET", "/version")).status).toBe(200);
  });

  test("takes a service account's token only for what it was made for", async () => {
    const { api, cluster } = running;
    const path = "/api/v1/namespaces/default/serviceaccounts/default/token";
    const statusWith = async (audiences: string[]) => {
      const { body } = await api.request("POST", path, { spec: { audiences } });
      const other = connect({ url: cluster.url, token: body.status.token });
      const { status } = await other.request("GET", "/version");
      other.close();
      return status;
    };
    expect([await statusWith([]), await statusWith(["vault"])]).toEqual([200, 401]);
  });

  test("forgets the oldest changes when the log is full", async () => {
    await using small = await runDevCluster({ logSize: 10 });
    const start = small.cluster.storage.revision;
    for (let i = 0; i < 20; i++) await create(small.api, MAPS, { metadata: { name: `m${i}` } });
    const watch = await small.api.watch(`${MAPS}?watch=true&resourceVersion=${start}`);
    expect(await watch.next()).toMatchObject({ type: "ERROR", object: { code: 410 } });
  });

  test("sends bookmarks with the newest revision to watches that allow them", async () => {
    const { api, cluster } = running;
    const watch = await api.watch(
      `${PODS}?watch=true&allowWatchBookmarks=true&resourceVersion=${cluster.storage.revision}`,
    );
    await create(api, MAPS, { metadata: { name: "m" } });
    const wanted = String(cluster.storage.revision);
    let event = await watch.next();
    while (event.object.metadata.resourceVersion !== wanted) event = await watch.next();
    expect(event).toMatchObject({ type: "BOOKMARK", object: { kind: "Pod", apiVersion: "v1" } });
    watch.close();
  });

  test("empties a namespace that is deleted, waits for its pods, and takes it away", async () => {
    const { api } = running;
    await create(api, "/api/v1/namespaces", { metadata: { name: "doomed" } });
    await create(api, "/api/v1/namespaces/doomed/configmaps", { metadata: { name: "m" } });
    await create(api, "/api/v1/namespaces/doomed/pods", pod("p", { nodeName: "n" }));
    await api.request("DELETE", "/api/v1/namespaces/doomed");
    expect((await api.request("GET", "/api/v1/namespaces/doomed")).body.status.phase).toBe("Terminating");
    expect((await api.request("GET", "/api/v1/namespaces/doomed/configmaps/m")).status).toBe(404);
    expect(
      (await api.request("GET", "/api/v1/namespaces/doomed/pods/p")).body.metadata.deletionGracePeriodSeconds,
    ).toBe(30);
    await api.request("DELETE", "/api/v1/namespaces/doomed/pods/p", { gracePeriodSeconds: 0 });
    expect((await api.request("GET", "/api/v1/namespaces/doomed")).status).toBe(404);
  });

  test("shows every watcher changes in their order, even those that a change sets off", async () => {
    const { api } = running;
    await create(api, "/api/v1/namespaces", { metadata: { name: "doomed" } });
    const watch = await api.watch("/api/v1/namespaces?watch=true&fieldSelector=metadata.name%3Ddoomed");
    expect((await watch.nextChange()).type).toBe("ADDED");
    await api.request("DELETE", "/api/v1/namespaces/doomed");
    expect([(await watch.nextChange()).type, (await watch.nextChange()).type]).toEqual(["MODIFIED", "DELETED"]);
    watch.close();
  });

  test("gives every namespace a default service account and the CA", async () => {
    const { api } = running;
    await create(api, "/api/v1/namespaces", { metadata: { name: "new" } });
    expect((await api.request("GET", "/api/v1/namespaces/new/serviceaccounts/default")).status).toBe(200);
    expect((await api.request("GET", "/api/v1/namespaces/new/configmaps/kube-root-ca.crt")).body.data).toHaveProperty(
      "ca.crt",
    );
  });

  test("stops accepting a pod's token when the pod is gone", async () => {
    const { api } = running;
    const created = await create(api, PODS, pod("p"));
    const issued = await create(api, "/api/v1/namespaces/default/serviceaccounts/default/token", {
      spec: { boundObjectRef: { kind: "Pod", apiVersion: "v1", name: "p", uid: created.metadata.uid } },
    });
    const review = async () =>
      (
        await api.request("POST", "/apis/authentication.k8s.io/v1/tokenreviews", {
          spec: { token: issued.status.token },
        })
      ).body.status.authenticated;
    expect(await review()).toBe(true);
    await api.request("DELETE", `${PODS}/p`);
    expect(await review()).toBeUndefined();
  });

  test("lets a service account do only what `allow` says", async () => {
    await using open = await runDevCluster({
      allow: (user, { verb, resource }) =>
        user.username === "system:serviceaccount:default:default" && verb === "list" && resource === "pods",
    });
    const issued = await create(open.api, "/api/v1/namespaces/default/serviceaccounts/default/token", { spec: {} });
    const asPod = connect({ url: open.cluster.url, token: issued.status.token });
    expect((await asPod.request("GET", PODS)).status).toBe(200);
    expect((await asPod.request("GET", MAPS)).status).toBe(403);
    asPod.close();
  });

  test("compresses long answers for clients that take gzip", async () => {
    const { api } = running;
    await create(api, MAPS, { metadata: { name: "m" }, data: { long: "x".repeat(200_000) } });
    const answer = await api.request("GET", `${MAPS}/m`, undefined, { "accept-encoding": "gzip" });
    expect(answer.headers["content-encoding"]).toBe("gzip");
  });

  test("answers a kubelet request for a pod without a node with 400, for a node without address with 404", async () => {
    const { api } = running;
    await create(api, PODS, pod("p"));
    expect((await api.request("GET", `${PODS}/p/log`)).status).toBe(400);
    await create(api, "/api/v1/nodes", { metadata: { name: "n" } });
    expect((await api.request("GET", "/api/v1/nodes/n/proxy/pods")).status).toBe(404);
  });

  test("ends open watches when it closes", async () => {
    const closing = await runDevCluster();
    const watch = await closing.api.watch(`${PODS}?watch=true`);
    await closing.cluster.close();
    await watch.ended();
    closing.api.close();
  });

  test("does nothing with a dry run of any verb", async () => {
    const { api, cluster } = running;
    await create(api, MAPS, { metadata: { name: "m" }, data: { a: "1" } });
    const before = cluster.storage.revision;
    await api.request("PATCH", `${MAPS}/m?dryRun=All`, { data: { a: "2" } }, MERGE);
    await api.request("DELETE", `${MAPS}/m?dryRun=All`);
    await api.request("DELETE", `${MAPS}/m`, { dryRun: ["All"] });
    expect(cluster.storage.revision).toBe(before);
  });
});

describe("a devcluster over TLS", () => {
  test("writes a kubeconfig that client-node loads, with a certificate that verifies", async () => {
    await using running = await runDevCluster({ tls: true });
    const { cluster, api } = running;
    const config = new KubeConfig();
    config.loadFromString(cluster.kubeConfigYaml);
    expect(config.getCurrentCluster()?.server).toBe(cluster.url);
    expect(config.getCurrentUser()?.token).toBe(cluster.token);
    expect(parse(cluster.kubeConfigYaml)).toEqual(cluster.kubeconfig);
    expect((await api.request("GET", "/version")).body.minor).toBe("37");
  });
});
