import { afterAll, beforeAll, describe, test } from "vitest";
import { startDevCluster, type DevCluster } from "../../../src/devcluster/index.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { connect, type Api } from "../../e2e/fidelity/api.ts";
import { controllerFidelityCases } from "../../e2e/fidelity/controllers.ts";
import { fidelityCases, prepareNamespace } from "../../e2e/fidelity/suite.ts";

describe("devcluster answers as kube-apiserver does", () => {
  let cluster: DevCluster;
  let api: Api;
  beforeAll(async () => {
    // As on the other side: what the API server itself does.
    cluster = await startDevCluster({ clock: systemClock, logger: silentLogger, controllers: false });
    api = connect({ url: cluster.url, token: cluster.token, ...(cluster.caBundle && { ca: cluster.caBundle }) });
    // What was before this is forgotten, so that revision 1 is too old, as on a server that runs for a while.
    cluster.storage.compact();
  });
  afterAll(async () => {
    api.close();
    await cluster.close();
  });

  test.for(fidelityCases)("$name", async ({ run }) => {
    await run(api, await prepareNamespace(api));
  });
});

describe("devcluster's controllers do as kube-controller-manager does", () => {
  let cluster: DevCluster;
  let api: Api;
  beforeAll(async () => {
    cluster = await startDevCluster({ clock: systemClock, logger: silentLogger, binder: false });
    api = connect({ url: cluster.url, token: cluster.token, ...(cluster.caBundle && { ca: cluster.caBundle }) });
  });
  afterAll(async () => {
    api.close();
    await cluster.close();
  });

  // Most of each case is waiting for the clock.
  test.concurrent.for(controllerFidelityCases)("$name", { timeout: 60_000 }, async ({ run }) => {
    await run(api, await prepareNamespace(api));
  });
});
