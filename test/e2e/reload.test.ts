/**
 * The configuration changes under an agent that acts as its nodes, before a real API server: what the Node authorizer
 * and NodeRestriction let it do by itself, and what it says of the rest.
 */
import { readFile, rename, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { expect, test } from "vitest";
import { isReady, Pods, serve, shell } from "./cases/pods.ts";
import { startRealEnvironment } from "./cases/start.ts";
import { freePort } from "./harness/ports.ts";
import type { Json } from "./harness/client.ts";
import { must, waitFor } from "./harness/wait.ts";

const FIRST = "vmlet-e2e";
const SECOND = "vmlet-added";
const PATIENCE_MS = 60_000;

test(
  "nodes come, change and go with the file, as far as a node may; what it may not, an administrator is told",
  { timeout: 1_200_000 },
  async () => {
    await using place = await startRealEnvironment({ nodeName: FIRST });
    const { client, dir } = place;
    const path = join(dir, `agent-${FIRST}.yaml`);
    const before: Json = JSON.parse(await readFile(path, "utf8"));
    const write = async (nodes: Json[]) => {
      await writeFile(`${path}.new`, JSON.stringify({ ...before, nodes }));
      await rename(`${path}.new`, path);
    };
    const node = (name: string): Promise<Json> => client.get(`/api/v1/nodes/${name}`);
    const until = <T>(what: string, work: () => Promise<T>) => waitFor({ what, timeoutMs: PATIENCE_MS }, work);
    const warning = (reason: string) =>
      until(`the event ${reason}`, async () => {
        const { items } = await client.get("/api/v1/events");
        const found = items.find((each: Json) => each.reason === reason);
        must(found !== undefined, reason);
        return found.message as string;
      });
    // As `helm upgrade` does, before the file changes.
    await client.patch("/apis/rbac.authorization.k8s.io/v1/clusterroles/vmlet-agent", {
      rules: [
        {
          ...{ apiGroups: [""], resources: ["users"], verbs: ["impersonate"] },
          resourceNames: [FIRST, SECOND].map((name) => `system:node:${name}`),
        },
        { apiGroups: [""], resources: ["groups"], verbs: ["impersonate"], resourceNames: ["system:nodes"] },
      ],
    });
    const [first] = before["nodes"] as Json[];
    const added = { ...first, name: SECOND, kubelet: { ...first.kubelet, port: await freePort() } };

    await write([{ ...first, labels: { tier: "2" }, capacity: { ...first.capacity, cpu: "7" } }, added]);
    await until("the second node", async () => must(isReady(await node(SECOND)), "not Ready"));
    await until("the first node's label and capacity", async () => {
      const { metadata, status } = await node(FIRST);
      must(metadata.labels.tier === "2" && status.capacity.cpu === "7", [metadata.labels, status.capacity]);
    });

    await write([{ ...first, taints: [{ key: "new", effect: "NoSchedule" }] }, added]);
    expect(await warning("CannotTaint")).toContain(`kubectl taint node ${FIRST} --overwrite new:NoSchedule`);
    await until("the label to go", async () => {
      const { labels } = (await node(FIRST)).metadata;
      must(labels.tier === undefined, labels);
    });

    const pods = new Pods(client, "default", SECOND);
    await pods.create("stays", { containers: [shell("main", serve)] });
    const { metadata } = await pods.untilReady("stays");
    await write([first]);
    await until("the second node to be cordoned", async () => {
      const { spec } = await node(SECOND);
      must(spec.unschedulable === true, spec);
    });
    expect((await place.backend.machines()).map(({ state }: Json) => state)).toEqual(["running"]);
    expect(isReady(await node(SECOND))).toBe(true);
    await pods.delete("stays");
    await pods.untilGone("stays", metadata.uid);
    // A node may not delete its own Node; an administrator does, and it does not come back.
    await until("the agent to say so", async () => {
      const log = await place.agent.logTail(200);
      must(log.includes(`vmlet node remove ${SECOND}`), log.slice(-2_000));
    });
    await client.delete(`/api/v1/nodes/${SECOND}`);
    await until("the agent to be done with it", async () => {
      const log = await place.agent.logTail(200);
      must(log.includes("is served no more"), log.slice(-2_000));
    });
    const names = (await client.get("/api/v1/nodes")).items.map((each: Json) => each.metadata.name);
    expect(names).toEqual([FIRST]);
    expect(isReady(await node(FIRST))).toBe(true);
  },
);
