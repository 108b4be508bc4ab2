/** The other tenant: whatever goes on beside, its pods start, log, run commands and go. */
import { expect } from "vitest";
import { HttpError, type Json } from "../../e2e/harness/client.ts";
import { must, waitFor } from "../../e2e/harness/wait.ts";
import { exec } from "./exec.ts";
import { NODES, podOn, type NodeName, type World } from "./world.ts";

const NAMESPACE = "neighbour";
/** Far beyond what any step takes on a busy machine; a node that one tenant has stopped takes for ever. */
const PATIENCE_MS = 30_000;

let serial = 0;

/** A pod's whole life on each node. @throws Error that names the step which did not come to its end */
export async function neighbourLives(world: World): Promise<void> {
  await Promise.all(NODES.map((node) => lifeOn(world, node)));
}

async function lifeOn(world: World, node: NodeName): Promise<void> {
  const { client, api } = world;
  const name = `${node}-${serial++}`;
  const pods = `/api/v1/namespaces/${NAMESPACE}/pods`;
  const step = <T>(what: string, probe: () => Promise<T>) =>
    waitFor({ what: `the neighbour's pod ${name} to ${what}`, timeoutMs: PATIENCE_MS }, probe);
  const main = { name: "main", image: "busybox", command: ["sh", "-c", "echo started; sleep 1000"] };
  await client.create(pods, { metadata: { name }, spec: podOn(node, { containers: [main] }) });
  await step("be Running", async () => {
    const { status } = await client.get(`${pods}/${name}`);
    must(status.phase === "Running", status);
  });
  await step("have its log read", async () => {
    expect(await client.text(`${pods}/${name}/log`)).toBe("started\n");
  });
  await step("run a command", async () => {
    expect(await exec(api, { namespace: NAMESPACE, name }, ["echo", "hello"])).toBe("hello\n");
  });
  await client.delete(`${pods}/${name}`);
  await step("be gone", async () => {
    const left: Json = await client.get(`${pods}/${name}`).catch((thrown: unknown) => {
      if (thrown instanceof HttpError && thrown.status === 404) return undefined;
      throw thrown;
    });
    must(left === undefined, left?.status);
  });
}

export async function settleIn(world: World): Promise<void> {
  await world.createNamespace(NAMESPACE);
}
