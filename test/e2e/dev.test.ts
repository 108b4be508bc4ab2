/** `vmlet dev --kubeconfig`: somebody tries vmlet with a cluster of their own. */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { isReady, Pods, serve } from "./cases/pods.ts";
import { startCluster } from "./harness/cluster.ts";
import { must, waitFor } from "./harness/wait.ts";

const program = join(import.meta.dirname, "../../src/cli/main.ts");

test(
  "joins a real cluster, runs a pod there, and leaves the node and its machines when it ends",
  { timeout: 1_200_000 },
  async () => {
    const cluster = await startCluster();
    const dir = await mkdtemp(join(tmpdir(), "vmlet-dev-"));
    const dev = spawn(process.execPath, [program, "dev", "--kubeconfig", cluster.adminKubeconfig, "--state-dir", dir], {
      stdio: ["ignore", "pipe", "inherit"],
    });
    const ended = once(dev, "exit");
    let said = "";
    dev.stdout.on("data", (chunk: Buffer) => (said += chunk.toString()));
    try {
      await waitFor({ what: "the node to join", timeoutMs: 60_000 }, async () =>
        must(said.includes("The virtual node has joined the cluster."), said),
      );
      await waitFor({ what: "the default ServiceAccount", timeoutMs: 60_000 }, () =>
        cluster.admin.get("/api/v1/namespaces/default/serviceaccounts/default"),
      );
      const pods = new Pods(cluster.admin, "default", "vmlet-dev");
      await pods.create("hello", {
        terminationGracePeriodSeconds: 5,
        containers: [{ name: "main", image: "none", command: ["/bin/sh", "-c", `echo hello; ${serve}`] }],
      });
      const { metadata } = await pods.untilReady("hello");
      expect(await cluster.admin.text(`${pods.path}/hello/log`)).toBe("hello\n");
      await pods.delete("hello");
      await pods.untilGone("hello", metadata.uid);
      dev.kill("SIGTERM");
      expect((await ended)[0]).toBe(0);
      expect(said).toContain("kubectl delete node vmlet-dev removes it");
      expect(isReady(await cluster.admin.get("/api/v1/nodes/vmlet-dev"))).toBe(true);
    } finally {
      dev.kill("SIGKILL");
      await cluster.stop();
      await rm(dir, { recursive: true, force: true });
    }
  },
);
