/**
 * A database on a volume that is a disk: PostgreSQL as a StatefulSet, on a real control plane with the real sidecars, under
 * load while agent, backend, containerd and the machine itself are killed in turn. What it has said is committed is there.
 * By hand: it needs Debian's postgresql beside what the engine needs (`VMLET_TEST_ENGINE=oci` has it on that).
 */
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { chosenEngine, engineOnThisHost } from "../support/engines.ts";
import { testNetwork } from "../support/host.ts";
import { startRegistry, type TestRegistry } from "../support/registry.ts";
import { inject } from "./cases/environment.ts";
import { podSpec, Pods } from "./cases/pods.ts";
import { startRealEnvironment } from "./cases/start.ts";
import { createKubectl } from "./harness/kubectl.ts";
import { must, waitFor } from "./harness/wait.ts";
import { Load, postgresImage, postgresStatefulSet, postgresVersion, query } from "./postgres.ts";
import { startVolumeDriver } from "./volume-driver.ts";

const WAIT_MS = 180_000;
/** Of each round: so many that writes are under way whenever something is killed. */
const ROWS = 100;
const version = await postgresVersion();
const engine = chosenEngine("cri");
const { missing } = await engineOnThisHost(engine);

describe.skipIf(version === undefined || missing.length > 0)("PostgreSQL on a volume", () => {
  let registry: TestRegistry;
  let env: Awaited<ReturnType<typeof startRealEnvironment>>;
  let pods: Pods;
  let load: Load;
  const setPath = "/apis/apps/v1/namespaces/default/statefulsets/pg";

  beforeAll(async () => {
    registry = await startRegistry();
    await registry.push("t/postgres:1", await postgresImage(version!));
    const { dir: _dir, ...network } = testNetwork("");
    env = await startRealEnvironment({
      engine: { type: engine, network, images: { insecureRegistries: [registry.host] } },
    });
    const { cluster, backend, nodeName } = env;
    await startVolumeDriver({
      ...{ cluster, nodes: [{ name: nodeName, provider: backend.provider }], clusterId: "e2e" },
      csi: {
        storageClasses: [{ name: "vmlet", annotations: { "storageclass.kubernetes.io/is-default-class": "true" } }],
      },
    });
    pods = new Pods(cluster.admin, "default", nodeName);
    const set = postgresStatefulSet(`${registry.host}/t/postgres:1`, (spec) => podSpec(nodeName, spec));
    await env.client.create("/apis/apps/v1/namespaces/default/statefulsets", set);
    await untilReady();
    await query(await address(), "create table rows (id int primary key)");
    load = new Load(address);
    await load.goesOn(ROWS, WAIT_MS);
  }, 900_000);
  afterAll(async () => {
    await load?.stop();
    await env?.[Symbol.asyncDispose]();
    await registry?.stop();
  });

  const untilReady = () =>
    pods.until("pg-0", "to be Ready", (pod) => pod.status.containerStatuses?.[0]?.ready === true, WAIT_MS);
  const address = async (): Promise<string> => {
    const { status } = await pods.get("pg-0");
    must(typeof status.podIP === "string", status);
    return status.podIP;
  };
  /** Rows that the database has said are committed, and does not have. */
  const lost = async (): Promise<number[]> => {
    const committed = [...load.committed];
    const text = await waitFor({ what: "the database to answer", timeoutMs: WAIT_MS }, async () =>
      query(await address(), "select id from rows"),
    );
    const there = new Set(text.split("\n").map(Number));
    return committed.filter((id) => !there.has(id));
  };

  test.each(["the agent", "the backend", ...(engine === "cri" ? (["the runtime"] as const) : [])] as const)(
    "has every committed row when %s is killed, and works on",
    async (fault) => {
      await inject(env, fault);
      await load.goesOn(ROWS, WAIT_MS);
      expect(await lost()).toEqual([]);
    },
    2 * WAIT_MS,
  );

  test(
    "has every committed row when its server drops everything, and starts again in the same pod",
    async () => {
      const before = await pods.get("pg-0");
      const kubectl = await createKubectl(env.cluster.adminKubeconfig);
      // PostgreSQL's immediate shutdown: no checkpoint, as if it had crashed.
      await kubectl.run(["exec", "pg-0", "--", "sh", "-c", "kill -QUIT 1"]);
      await pods.until(
        "pg-0",
        "to have been restarted",
        ({ status }) => status.containerStatuses?.[0]?.restartCount > before.status.containerStatuses[0].restartCount,
        WAIT_MS,
      );
      await load.goesOn(ROWS, WAIT_MS);
      expect(await lost()).toEqual([]);
      expect((await pods.get("pg-0")).metadata.uid).toBe(before.metadata.uid);
    },
    2 * WAIT_MS,
  );

  test(
    "has every committed row when its machine goes without a warning, and the next pod takes over",
    async () => {
      const before = await pods.get("pg-0");
      await pods.delete("pg-0", 0);
      await pods.untilGone("pg-0", before.metadata.uid, WAIT_MS);
      await untilReady();
      await load.goesOn(ROWS, WAIT_MS);
      expect(await lost()).toEqual([]);
    },
    2 * WAIT_MS,
  );

  test(
    "has them all, each once, when agent and backend were killed together and the StatefulSet is made anew",
    async () => {
      await Promise.all([env.agent.kill("SIGKILL"), env.backend.kill("SIGKILL")]);
      await env.backend.start();
      await env.agent.start();
      await load.goesOn(ROWS, WAIT_MS);
      await load.stop();
      const before = await pods.get("pg-0");
      await env.client.patch(setPath, { spec: { replicas: 0 } });
      await pods.untilGone("pg-0", before.metadata.uid, WAIT_MS);
      await env.client.patch(setPath, { spec: { replicas: 1 } });
      await untilReady();
      expect(await lost()).toEqual([]);
      expect(Number(await query(await address(), "select count(*) - count(distinct id) from rows"))).toBe(0);
    },
    3 * WAIT_MS,
  );
});
