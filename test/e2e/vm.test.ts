/**
 * A part of the kubelet's checklist, and kubectl, on a real control plane with engine vm: what differs when containers run
 * in another kernel. The rest of the checklist is the engine oci's: supervisor and OCI bundles are the same.
 */
import { randomBytes } from "node:crypto";
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { expect } from "vitest";
import { engineOnThisHost } from "../support/engines.ts";
import { leaveOut } from "../support/left-out.ts";
import { missingForNfs, startNfsServer } from "../support/nfs-server.ts";
import { missingForImages } from "../support/registry.ts";
import type { ChecklistCase } from "./cases/checklist/case.ts";
import { checklist } from "./cases/checklist/index.ts";
import { describeChecklist, containerPlace } from "./cases/checklist/suite.ts";
import { startRealEnvironment } from "./cases/start.ts";
import { createKubectl } from "./harness/kubectl.ts";
import { startForward } from "./kubectl-support.ts";
import { waitFor } from "./harness/wait.ts";

const names = [
  "a pod that runs has the node's address, an address of its own, a start time in whole seconds and its QoS class",
  "a pod that has failed tells exit code, reason and both times, and is not Ready because it failed",
  "a restarted container has a new id, counts its restart and tells how it ended before",
  "a program that ignores SIGTERM ends with 137 when its grace is over",
  "a container that takes more memory than its limit ends with OOMKilled and 137",
  "a container's last words are what it wrote to its termination log, else the end of its log where that is asked for",
  "an ephemeral container sees the processes of the container that it is to debug",
];

const kubectlCase: ChecklistCase = {
  ids: [],
  name: "kubectl logs, exec, cp and port-forward reach the container",
  async run({ env, pods, create, shell, httpd }) {
    const script = `mkdir /www; echo from the pod > /www/page; echo serving; exec ${httpd(8080, "/www")}`;
    await create("talk", { containers: [shell("main", script)] });
    await pods.untilReady("talk");
    const kubectl = await createKubectl(env.kubeconfig);
    const here = ["--namespace", pods.namespace];
    await waitFor({ what: "the log" }, async () =>
      expect(await kubectl.run([...here, "logs", "talk"])).toBe("serving\n"),
    );
    expect(await kubectl.run([...here, "exec", "-i", "talk", "--", "cat"], { input: "typed" })).toBe("typed");
    expect((await kubectl.try([...here, "exec", "talk", "--", "sh", "-c", "exit 7"])).code).toBe(7);
    const [from, back] = ["from", "back"].map((name) => join(env.dir, `vm-${name}`));
    await writeFile(from!, randomBytes(100_000));
    await kubectl.run([...here, "cp", from!, "talk:/there"]);
    await kubectl.run([...here, "cp", "talk:/there", back!]);
    expect((await readFile(back!)).equals(await readFile(from!))).toBe(true);
    const forward = await startForward(kubectl, "pod/talk", 8080, here);
    try {
      expect(await (await fetch(`http://127.0.0.1:${forward.port}/page`)).text()).toBe("from the pod\n");
    } finally {
      await forward.stop();
    }
  },
};

const nfsCase: ChecklistCase = {
  ids: [],
  name: "pods of an NFS server's PersistentVolume share its folder",
  async run({ env, pods, create, shell }) {
    const server = await startNfsServer();
    const kubectl = await createKubectl(env.kubeconfig);
    try {
      const objects = [
        {
          ...{ apiVersion: "v1", kind: "PersistentVolume", metadata: { name: "nfs" } },
          spec: {
            ...{ capacity: { storage: "1Gi" }, accessModes: ["ReadWriteMany"], storageClassName: "" },
            ...{ mountOptions: ["nfsvers=4.1"], nfs: { server: server.address, path: "/share" } },
          },
        },
        {
          ...{ apiVersion: "v1", kind: "PersistentVolumeClaim" },
          metadata: { name: "nfs", namespace: pods.namespace },
          spec: {
            ...{ accessModes: ["ReadWriteMany"], storageClassName: "", volumeName: "nfs" },
            resources: { requests: { storage: "1Gi" } },
          },
        },
      ];
      for (const each of objects) await kubectl.run(["apply", "-f", "-"], { input: JSON.stringify(each) });
      const volumes = [{ name: "v", persistentVolumeClaim: { claimName: "nfs" } }];
      const mounted = (script: string) => ({
        ...shell("main", script),
        volumeMounts: [{ name: "v", mountPath: "/v" }],
      });
      await create("writer", { volumes, containers: [mounted("echo shared > /v/said; sleep 1000")] });
      await create("reader", {
        ...{ volumes, restartPolicy: "Never" },
        containers: [mounted("until cat /v/said; do sleep 1; done")],
      });
      await waitFor({ what: "the reader to have read", timeoutMs: 180_000 }, async () =>
        expect(await kubectl.run(["--namespace", pods.namespace, "logs", "reader"])).toContain("shared\n"),
      );
      expect(await readFile(join(server.folder, "said"), "utf8")).toBe("shared\n");
    } finally {
      await kubectl.try(["--namespace", pods.namespace, "delete", "pod", "writer", "reader", "--now"]);
      await kubectl.try(["delete", "pv", "nfs", "--wait=false"]);
      await server.stop();
    }
  },
};

const { capabilities, missing: lacks } = await engineOnThisHost("vm");
const missing = [...lacks, ...[missingForImages() ?? [], missingForNfs() ?? []].flat()];

if (missing.length > 0) leaveOut("the kubelet's checklist, engine vm", missing);
else {
  describeChecklist(
    "the kubelet's checklist on a real control plane, engine vm",
    await containerPlace("vm", capabilities, true),
    {
      start: startRealEnvironment,
      startTimeoutMs: 1_200_000,
      only: [...checklist.filter(({ name }) => names.includes(name)), kubectlCase, nfsCase],
    },
  );
}
