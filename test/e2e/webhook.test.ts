/** `vmlet webhook` and a real API server: namespaces choose by label where their pods go. */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import type { Readable } from "node:stream";
import { expect, test } from "vitest";
import { BURST_LABEL } from "../../src/webhook/placement.ts";
import { caCert, serverCert, serverKey } from "../support/tls.ts";
import type { Client, Json } from "./harness/client.ts";
import { startCluster } from "./harness/cluster.ts";
import { must, waitFor } from "./harness/wait.ts";

const program = join(import.meta.dirname, "../../src/cli/main.ts");

async function startWebhook(dir: string) {
  const [certFile, keyFile] = [join(dir, "tls.crt"), join(dir, "tls.key")];
  await writeFile(certFile, serverCert);
  await writeFile(keyFile, serverKey);
  const flags = ["--cert-file", certFile, "--key-file", keyFile, "--address", "127.0.0.1", "--port", "0"];
  return spawn(process.execPath, [program, "webhook", ...flags, "--health-port", "0", "--log-format", "json"], {
    stdio: ["ignore", "ignore", "pipe"],
  });
}

/** Where it answers, by what it logs. */
async function addressOf(log: Readable): Promise<string> {
  for await (const line of createInterface(log)) {
    const { url } = JSON.parse(line) as { url?: string };
    if (url !== undefined) return url;
  }
  throw new Error("the webhook has ended before it answered");
}

const configuration = (url: string): Json => ({
  apiVersion: "admissionregistration.k8s.io/v1",
  kind: "MutatingWebhookConfiguration",
  metadata: { name: "burst" },
  webhooks: ["enforce", "overflow"].map((policy) => ({
    name: `${policy}.burst.vmlet.dev`,
    admissionReviewVersions: ["v1"],
    sideEffects: "None",
    failurePolicy: "Ignore",
    timeoutSeconds: 2,
    clientConfig: { url: `${url}/${policy}`, caBundle: Buffer.from(caCert).toString("base64") },
    namespaceSelector: { matchLabels: { [BURST_LABEL]: policy } },
    rules: [{ apiGroups: [""], apiVersions: ["v1"], operations: ["CREATE"], resources: ["pods"], scope: "Namespaced" }],
  })),
});

/** As the API server would create it. */
async function created(admin: Client, namespace: string): Promise<Json> {
  return await admin.create(`/api/v1/namespaces/${namespace}/pods?dryRun=All`, {
    apiVersion: "v1",
    kind: "Pod",
    metadata: { generateName: "p-" },
    spec: { automountServiceAccountToken: false, containers: [{ name: "c", image: "none" }] },
  });
}

test(
  "pods go where the label of their namespace says, and as they are written when the webhook is gone",
  { timeout: 300_000 },
  async () => {
    const cluster = await startCluster();
    const dir = await mkdtemp(join(tmpdir(), "vmlet-webhook-"));
    const child = await startWebhook(dir);
    const ended = once(child, "exit");
    try {
      const url = await addressOf(child.stderr);
      const { admin } = cluster;
      for (const policy of ["enforce", "overflow", "off"]) {
        const labels = { [BURST_LABEL]: policy };
        await admin.create("/api/v1/namespaces", { metadata: { name: policy, labels } });
        await waitFor({ what: "the default ServiceAccount", timeoutMs: 60_000 }, () =>
          admin.get(`/api/v1/namespaces/${policy}/serviceaccounts/default`),
        );
      }
      await admin.create("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations", configuration(url));
      const enforced = await waitFor({ what: "the webhook to be asked", timeoutMs: 60_000 }, async () => {
        const { spec }: Json = await created(admin, "enforce");
        must(spec.nodeSelector !== undefined, "the pod is as it was written");
        return spec;
      });
      expect(enforced.nodeSelector).toEqual({ type: "virtual-kubelet" });
      expect(enforced.tolerations).toContainEqual({
        key: "virtual-kubelet.io/provider",
        operator: "Exists",
        effect: "NoSchedule",
      });
      const { spec: overflowing } = await created(admin, "overflow");
      expect(overflowing.nodeSelector).toBeUndefined();
      expect(overflowing.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution).toHaveLength(1);
      expect(overflowing.tolerations).toContainEqual({
        key: "virtual-kubelet.io/provider",
        operator: "Exists",
        effect: "NoSchedule",
      });
      const { spec: own } = await created(admin, "off");
      expect([own.nodeSelector, own.affinity]).toEqual([undefined, undefined]);

      child.kill("SIGTERM");
      expect((await ended)[0]).toBe(0);
      const { spec: unplaced } = await created(admin, "enforce");
      expect(unplaced.nodeSelector).toBeUndefined();
    } finally {
      child.kill("SIGKILL");
      await cluster.stop();
      await rm(dir, { recursive: true, force: true });
    }
  },
);
