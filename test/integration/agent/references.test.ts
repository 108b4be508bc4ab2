import { expect, test } from "vitest";
import { must, waitFor } from "../../e2e/harness/wait.ts";
import { startPlace } from "./place.ts";

test("pods wait whose secrets the agent may not read; all others start, and the refusals are counted", async () => {
  await using place = await startPlace();
  const { client, proxy } = place;
  for (const namespace of ["closed", "open"]) {
    await place.createNamespace(namespace);
    await client.create(`/api/v1/namespaces/${namespace}/secrets`, { metadata: { name: "s" }, data: { k: "dg==" } });
  }
  proxy.failReads("closed", "/secrets", { code: 403, reason: "Forbidden" });
  const agent = await place.startAgent();
  const container = (envFrom: object[]) => ({
    spec: { containers: [{ name: "main", image: "busybox", command: ["sleep", "1000"], envFrom }] },
  });
  const secret = [{ secretRef: { name: "s" } }];
  await place.createPod("closed", "refers", container(secret));
  await place.createPod("closed", "refers-to-nothing", container([]));
  await place.createPod("open", "refers", container(secret));
  const podIn = (namespace: string, name: string) => client.get(`/api/v1/namespaces/${namespace}/pods/${name}`);
  await place.untilAllRun("open");
  const waiting = await waitFor({ what: "the pod to say why it waits" }, async () => {
    const { status } = await podIn("closed", "refers");
    const [state] = status.containerStatuses ?? [];
    must(state?.state.waiting?.reason === "CreateContainerConfigError", status);
    return status;
  });
  expect(waiting.phase).toBe("Pending");
  await waitFor({ what: "the other pod of the namespace" }, async () => {
    const { status } = await podIn("closed", "refers-to-nothing");
    must(status.phase === "Running", status);
  });
  expect(await place.metric(agent, "vmlet_references_denied_total")).toBeGreaterThan(0);
  proxy.relent();
  await place.untilAllRun("closed");
});
