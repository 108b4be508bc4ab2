/**
 * Cases that need no workload controller: bare pods. The same table runs on devcluster (test/integration) and on the real
 * control plane (test/e2e), each case once for everything that may be killed in its middle.
 */
import { join } from "node:path";
import { expect } from "vitest";
import type { CaseEnvironment } from "./environment.ts";
import { workloadProcesses } from "./history.ts";
import { containerStatus, Pods, serve, shell, stubborn } from "./pods.ts";
import { scratch } from "./workload.ts";
import { must, waitFor } from "../harness/wait.ts";

export interface CaseContext {
  env: CaseEnvironment;
  pods: Pods;
  /** The middle of the case: whatever is to be killed in this run is killed, and started again. */
  disturb(): Promise<void>;
}

export interface Case {
  /** A behaviour, as a sentence. */
  name: string;
  /** Run it also with the API server killed in its middle. */
  restartsApiServer?: true;
  run(context: CaseContext): Promise<void>;
}

export const podCases: readonly Case[] = [
  {
    name: "a pod whose command ends with 0 becomes Succeeded",
    restartsApiServer: true,
    async run({ pods, disturb }) {
      await pods.create("once", { restartPolicy: "Never", containers: [shell("main", "sleep 1; exit 0")] });
      await disturb();
      const pod = await pods.untilPhase("once", "Succeeded");
      expect(containerStatus(pod, "main").state.terminated).toMatchObject({ exitCode: 0, reason: "Completed" });
    },
  },
  {
    name: "a pod whose command fails becomes Failed and keeps the exit code",
    async run({ pods, disturb }) {
      await pods.create("fails", { restartPolicy: "Never", containers: [shell("main", "sleep 1; exit 3")] });
      await disturb();
      const pod = await pods.untilPhase("fails", "Failed");
      expect(containerStatus(pod, "main").state.terminated).toMatchObject({ exitCode: 3, reason: "Error" });
    },
  },
  {
    name: "a running pod is not restarted",
    restartsApiServer: true,
    async run({ pods, disturb }) {
      await pods.create("stays", { containers: [shell("main", serve)] });
      const before = await pods.untilReady("stays");
      await disturb();
      // Something that only a living agent and backend can do, so that what is checked comes after the fault.
      await pods.create("later", { restartPolicy: "Never", containers: [shell("main", "exit 0")] });
      await pods.untilPhase("later", "Succeeded");
      const after = await pods.untilReady("stays");
      expect(containerStatus(after, "main")).toEqual(containerStatus(before, "main"));
    },
  },
  {
    name: "init containers run one after another before the main container",
    async run({ env, pods, disturb }) {
      const { dir, pod: volumes, container: mounts } = scratch(env.dir);
      const file = join(dir, `order-${pods.namespace}`);
      const say = (word: string) => `sleep 0.3; echo ${word} >> ${file}`;
      const count = `echo main >> ${file}; cat ${file} | wc -l | { read n; exit $n; }`;
      await pods.create("ordered", {
        ...volumes,
        restartPolicy: "Never",
        initContainers: [shell("first", say("first"), mounts), shell("second", say("second"), mounts)],
        containers: [shell("main", count, mounts)],
      });
      await disturb();
      const pod = await pods.untilPhase("ordered", "Failed");
      expect(containerStatus(pod, "main").state.terminated.exitCode).toBe(3);
      expect(containerStatus(pod, "second").state.terminated.exitCode).toBe(0);
    },
  },
  {
    name: "a container that fails once is started again under restartPolicy OnFailure",
    async run({ env, pods, disturb }) {
      const { dir, pod: volumes, container: mounts } = scratch(env.dir);
      const file = join(dir, `tried-${pods.namespace}`);
      const script = `if [ -e ${file} ]; then exit 0; fi; touch ${file}; exit 1`;
      const containers = [shell("main", script, mounts)];
      await pods.create("retries", { ...volumes, restartPolicy: "OnFailure", containers });
      await disturb();
      const pod = await pods.untilPhase("retries", "Succeeded");
      expect(containerStatus(pod, "main")).toMatchObject({
        restartCount: 1,
        lastState: { terminated: { exitCode: 1 } },
      });
    },
  },
  {
    name: "a container that keeps failing waits in CrashLoopBackOff",
    async run({ pods, disturb }) {
      await pods.create("crashes", { containers: [shell("main", "exit 7")] });
      await disturb();
      const pod = await pods.until("crashes", "to back off", (each) => {
        // A backend that was killed may wait before the first restart already: it cannot know that there was none.
        const status = containerStatus(each, "main");
        return status?.state.waiting?.reason === "CrashLoopBackOff" && status.restartCount > 0;
      });
      expect(containerStatus(pod, "main").lastState.terminated.exitCode).toBe(7);
      expect(pod.status.phase).toBe("Running");
    },
  },
  {
    name: "a deleted pod whose program ends when asked is gone long before its grace is over",
    restartsApiServer: true,
    async run({ pods, disturb }) {
      const { metadata } = await pods.create("polite", {
        terminationGracePeriodSeconds: 60,
        containers: [shell("main", serve)],
      });
      await pods.untilReady("polite");
      await pods.delete("polite");
      await disturb();
      await pods.untilGone("polite", metadata.uid, 30_000);
    },
  },
  {
    name: "a deleted pod whose program ignores SIGTERM is killed when its grace is over, not before",
    async run({ pods, disturb }) {
      const { metadata } = await pods.create("stubborn", {
        terminationGracePeriodSeconds: 3,
        containers: [shell("main", stubborn)],
      });
      await pods.untilReady("stubborn");
      const asked = performance.now();
      await pods.delete("stubborn");
      await disturb();
      await pods.untilGone("stubborn", metadata.uid);
      expect(performance.now() - asked).toBeGreaterThan(2_900);
    },
  },
  {
    name: "a pod deleted by force is gone at once, and its program soon after",
    restartsApiServer: true,
    async run({ env, pods, disturb }) {
      const { metadata } = await pods.create("forced", {
        terminationGracePeriodSeconds: 60,
        containers: [shell("main", stubborn)],
      });
      await pods.untilReady("forced");
      env.history.forced(metadata.uid);
      await pods.delete("forced", 0);
      await pods.untilGone("forced", metadata.uid, 5_000);
      await disturb();
      // An agent that starts now has never seen this pod: it believes the machine's being an orphan only after two sweeps.
      await waitFor({ what: "the program to be killed", timeoutMs: 120_000 }, () => {
        const left = workloadProcesses().filter((each) => each.uid === metadata.uid);
        must(left.length === 0, left);
      });
    },
  },
  {
    name: "a pod that is deleted before it could start leaves nothing behind",
    async run({ pods, disturb }) {
      const { metadata } = await pods.create("brief", { containers: [shell("main", serve)] });
      await pods.delete("brief", 1);
      await disturb();
      await pods.untilGone("brief", metadata.uid);
    },
  },
  {
    name: "a pod made again under the same name is another pod",
    async run({ pods, disturb }) {
      const { metadata } = await pods.create("again", { containers: [shell("main", serve)] });
      await pods.untilReady("again");
      await pods.delete("again", 1);
      await disturb();
      await pods.untilGone("again", metadata.uid);
      await pods.create("again", { containers: [shell("main", serve)] });
      const second = await pods.untilReady("again");
      expect(second.metadata.uid).not.toBe(metadata.uid);
      expect(workloadProcesses().map((each) => each.uid)).toContain(second.metadata.uid);
    },
  },
  {
    name: "a Node that somebody deletes registers again and keeps its pods",
    async run({ env, pods, disturb }) {
      const { metadata } = await pods.create("survives", { containers: [shell("main", serve)] });
      const before = await pods.untilReady("survives");
      const node = await env.client.get(`/api/v1/nodes/${env.nodeName}`);
      await env.client.delete(`/api/v1/nodes/${env.nodeName}`);
      await disturb();
      await waitFor({ what: "the Node to be Ready again", timeoutMs: 60_000 }, async () => {
        const now = await env.client.get(`/api/v1/nodes/${env.nodeName}`);
        must(now.metadata.uid !== node.metadata.uid, "still the old Node");
        must(
          now.status.conditions.some((each: any) => each.type === "Ready" && each.status === "True"),
          now.status.conditions,
        );
      });
      const after = await pods.untilReady("survives");
      expect(after.metadata.uid).toBe(metadata.uid);
      expect(containerStatus(after, "main")).toEqual(containerStatus(before, "main"));
    },
  },
  {
    name: "twenty pods at once all run, and all go",
    async run({ pods, disturb }) {
      const names = Array.from({ length: 20 }, (_, index) => `one-of-many-${index}`);
      await Promise.all(names.map((name) => pods.create(name, { containers: [shell("main", serve)] })));
      await disturb();
      for (const name of names) await pods.untilReady(name);
      const made = await pods.list();
      await Promise.all(names.map((name) => pods.delete(name, 5)));
      await disturb();
      for (const pod of made) await pods.untilGone(pod.metadata.name, pod.metadata.uid);
    },
  },
];
