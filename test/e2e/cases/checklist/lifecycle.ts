import { expect } from "vitest";
import { must, waitFor } from "../../harness/wait.ts";
import type { Json } from "../../harness/client.ts";
import { containerStatus, serve, stubborn } from "../pods.ts";
import type { CaseEnvironment } from "../environment.ts";
import { condition, type ChecklistCase } from "./case.ts";

/** Machines of the backend that belong to this pod and are not tombstones. */
async function machinesOf({ backend }: CaseEnvironment, uid: string): Promise<Json[]> {
  const all = await backend.machines();
  return all.filter((machine) => machine.labels["vmlet.dev/uid"] === uid && machine.state !== "deleted");
}

export const lifecycleCases: readonly ChecklistCase[] = [
  {
    ids: ["P01", "P25", "P24"],
    name: "a pod that runs has the node's address, an address of its own, a start time in whole seconds and its QoS class",
    async run({ env, pods, create, shell }) {
      await create("runs", { containers: [shell("main", serve)] });
      const { status } = await pods.untilReady("runs");
      const node = await env.client.get(`/api/v1/nodes/${env.nodeName}`);
      const address = node.status.addresses.find((each: Json) => each.type === "InternalIP").address;
      expect(status).toMatchObject({
        phase: "Running",
        hostIP: address,
        hostIPs: [{ ip: address }],
        qosClass: "BestEffort",
      });
      expect(status.podIP).toBe(status.podIPs[0].ip);
      expect(status.startTime).toMatch(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/);
    },
  },
  {
    ids: ["P02"],
    name: "the first status names every container and what it waits for",
    needs: ["init_containers"],
    async run({ pods, create, shell, statuses }) {
      await create("first", { initContainers: [shell("init", "exit 0")], containers: [shell("main", serve)] });
      await pods.untilReady("first");
      const [first] = statuses("first").filter((status) => status.containerStatuses !== undefined);
      expect(first!.containerStatuses[0]).toMatchObject({
        name: "main",
        state: { waiting: { reason: "PodInitializing" } },
        ready: false,
        restartCount: 0,
        lastState: {},
      });
      expect(first!.initContainerStatuses[0].name).toBe("init");
    },
  },
  {
    ids: ["P03", "P13"],
    name: "a Ready pod has kubelet's five conditions, each with the generation that it was computed from",
    async run({ pods, create, shell }) {
      await create("conditions", { containers: [shell("main", serve)] });
      const pod = await pods.untilReady("conditions");
      for (const type of ["PodScheduled", "PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready"]) {
        const found = condition(pod, type);
        expect(found, type).toMatchObject({ status: "True" });
        if (type !== "PodScheduled") expect(found.observedGeneration).toBe(pod.metadata.generation);
      }
      expect(pod.status.observedGeneration).toBe(pod.metadata.generation);
    },
  },
  {
    ids: ["P04"],
    name: "a pod that has succeeded is not Ready because it is complete",
    async run({ pods, create, shell }) {
      await create("done", { restartPolicy: "Never", containers: [shell("main", "exit 0")] });
      const pod = await pods.untilPhase("done", "Succeeded");
      expect(condition(pod, "Ready")).toMatchObject({ status: "False", reason: "PodCompleted" });
      expect(condition(pod, "Initialized")).toMatchObject({ status: "True", reason: "PodCompleted" });
    },
  },
  {
    ids: ["P05"],
    name: "a pod that has failed tells exit code, reason and both times, and is not Ready because it failed",
    async run({ pods, create, shell }) {
      await create("failed", { restartPolicy: "Never", containers: [shell("main", "exit 4")] });
      const pod = await pods.untilPhase("failed", "Failed");
      const { terminated } = containerStatus(pod, "main").state;
      expect(terminated).toMatchObject({ exitCode: 4, reason: "Error" });
      expect(Date.parse(terminated.finishedAt)).toBeGreaterThanOrEqual(Date.parse(terminated.startedAt));
      expect(condition(pod, "Ready")).toMatchObject({ status: "False", reason: "PodFailed" });
    },
  },
  {
    ids: ["P06", "P16"],
    name: "a restarted container has a new id, counts its restart and tells how it ended before",
    async run({ pods, create, shell, file }) {
      const script = `if [ -e ${file("seen")} ]; then ${serve}; fi; touch ${file("seen")}; sleep 3; exit 5`;
      await create("again", { restartPolicy: "Always", containers: [shell("main", script)] });
      const first = await pods.until(
        "again",
        "to run",
        (pod) => containerStatus(pod, "main")?.state.running !== undefined,
      );
      const second = await pods.until(
        "again",
        "to have restarted",
        (pod) =>
          containerStatus(pod, "main").restartCount > 0 && containerStatus(pod, "main").state.running !== undefined,
      );
      const [before, after] = [containerStatus(first, "main"), containerStatus(second, "main")];
      expect(after.containerID).toMatch(/^[a-z]+:\/\/./);
      expect(after.containerID).not.toBe(before.containerID);
      expect(after.lastState.terminated).toMatchObject({ exitCode: 5, containerID: before.containerID });
    },
  },
  {
    ids: ["P07"],
    name: "a container that keeps failing waits ten seconds in CrashLoopBackOff, says so, and the pod stays Running",
    async run({ pods, create, shell, untilEvent }) {
      const { metadata } = await create("loops", { containers: [shell("main", "exit 1")] });
      const pod = await pods.until("loops", "to back off", (each) => {
        const status = containerStatus(each, "main");
        return status?.state.waiting?.reason === "CrashLoopBackOff" && status.restartCount > 0;
      });
      const name = `loops_${pods.namespace}(${metadata.uid})`;
      expect(containerStatus(pod, "main").state.waiting.message).toBe(
        `back-off 10s restarting failed container=main pod=${name}`,
      );
      expect(pod.status.phase).toBe("Running");
      const event = await untilEvent("loops", "BackOff", `Back-off restarting failed container main in pod ${name}`);
      expect(event).toMatchObject({ type: "Warning", involvedObject: { fieldPath: "spec.containers{main}" } });
    },
  },
  {
    ids: ["P08", "P09"],
    name: "whoever watches a deletion sees the end of the containers before the object goes",
    async run({ env, pods, create, shell }) {
      const { metadata } = await create("watched", {
        containers: [shell("main", serve)],
        terminationGracePeriodSeconds: 20,
      });
      await pods.untilReady("watched");
      await pods.delete("watched");
      await pods.untilGone("watched", metadata.uid);
      const versions = await waitFor({ what: "the DELETED event" }, () => {
        const all = env.history.versions(pods.namespace);
        must(all.at(-1)?.type === "DELETED", all.at(-1));
        return all;
      });
      const last = versions.findLast(({ type }) => type === "MODIFIED")!.pod;
      expect(last.metadata.deletionTimestamp).toBeDefined();
      expect(["Succeeded", "Failed"]).toContain(last.status.phase);
      expect(containerStatus(last, "main").state.terminated).toMatchObject({ exitCode: 0 });
    },
  },
  {
    ids: ["P08"],
    name: "a program that ignores SIGTERM ends with 137 when its grace is over",
    async run({ env, pods, create, shell, untilEvent }) {
      const { metadata } = await create("deaf", {
        containers: [shell("main", stubborn)],
        terminationGracePeriodSeconds: 2,
      });
      await pods.untilReady("deaf");
      await pods.delete("deaf");
      await pods.untilGone("deaf", metadata.uid);
      await waitFor({ what: "the last status" }, () => {
        const last = env.history.versions(pods.namespace).findLast(({ type }) => type === "MODIFIED")!.pod;
        must(containerStatus(last, "main").state.terminated?.exitCode === 137, last.status);
      });
      await untilEvent("deaf", "Killing", "Stopping container main");
    },
  },
  {
    ids: ["P10"],
    name: "a pod deleted by force leaves no machine",
    async run({ env, pods, create, shell }) {
      const { metadata } = await create("forced", { containers: [shell("main", serve)] });
      await pods.untilReady("forced");
      env.history.forced(metadata.uid);
      await pods.delete("forced", 0);
      await waitFor({ what: "its machine to be gone", timeoutMs: 60_000 }, async () => {
        const left = await machinesOf(env, metadata.uid);
        must(left.length === 0, left);
      });
    },
  },
  {
    ids: ["P14"],
    name: "readiness gates hold Ready back, and conditions of others stay",
    async run({ env, pods, create, shell }) {
      await create("gated", {
        readinessGates: [{ conditionType: "example.com/gate" }],
        containers: [shell("main", serve)],
      });
      const held = await pods.until(
        "gated",
        "to be held back",
        (pod) => condition(pod, "ContainersReady")?.status === "True",
      );
      expect(condition(held, "Ready")).toMatchObject({
        status: "False",
        reason: "ReadinessGatesNotReady",
        message: 'corresponding condition of pod readiness gate "example.com/gate" does not exist.',
      });
      const conditions = [
        { type: "example.com/gate", status: "True" },
        { type: "example.com/other", status: "False", reason: "Kept" },
      ];
      await env.client.patch(
        `${pods.path}/gated/status`,
        { status: { conditions } },
        "application/strategic-merge-patch+json",
      );
      const pod = await pods.untilReady("gated");
      expect(condition(pod, "example.com/other")).toMatchObject({ status: "False", reason: "Kept" });
    },
  },
  {
    ids: ["P15"],
    name: "what is over stays over, whatever is changed of the pod",
    async run({ env, pods, create, shell }) {
      await create("over", { restartPolicy: "Never", containers: [shell("main", "exit 0")] });
      const before = await pods.untilPhase("over", "Succeeded");
      await env.client.patch(`${pods.path}/over`, { metadata: { labels: { touched: "yes" } } });
      // Another pod of the same agent from beginning to end, so that it has had its turn.
      await create("other", { restartPolicy: "Never", containers: [shell("main", "exit 0")] });
      await pods.untilPhase("other", "Succeeded");
      const after = await pods.get("over");
      expect(after.status.containerStatuses).toEqual(before.status.containerStatuses);
      expect(after.status.phase).toBe("Succeeded");
    },
  },
  {
    ids: ["P16"],
    name: "an image is reported with its digest",
    needs: ["images"],
    async run({ pods, create, shell }) {
      await create("digest", { containers: [shell("main", serve)] });
      const pod = await pods.untilReady("digest");
      expect(containerStatus(pod, "main").imageID).toMatch(/@sha256:[0-9a-f]{64}$/);
    },
  },
  {
    ids: ["P17"],
    name: "a container that takes more memory than its limit ends with OOMKilled and 137",
    needs: ["resource_limits"],
    async run({ pods, create, shell }) {
      const resources = { limits: { memory: "16Mi" } };
      await create("greedy", {
        restartPolicy: "Never",
        containers: [shell("main", "exec tail /dev/zero", { resources })],
      });
      const pod = await pods.untilPhase("greedy", "Failed");
      expect(containerStatus(pod, "main").state.terminated).toMatchObject({ exitCode: 137, reason: "OOMKilled" });
    },
  },
  {
    ids: ["P18"],
    name: "a container's last words are what it wrote to its termination log, else the end of its log where that is asked for",
    needs: ["termination_message", "multi_container"],
    async run({ pods, create, shell }) {
      const fallback = { terminationMessagePolicy: "FallbackToLogsOnError" };
      await create("words", {
        restartPolicy: "Never",
        containers: [
          shell("file", "printf written > /dev/termination-log; exit 1"),
          shell("own", "printf elsewhere > /tmp/last; exit 1", { terminationMessagePath: "/tmp/last" }),
          shell("log", "echo from the log; exit 1", fallback),
          shell("fine", "echo not needed; exit 0", fallback),
          shell("long", "head -c 9000 /dev/zero | tr '\\0' x > /dev/termination-log"),
        ],
      });
      const pod = await pods.untilPhase("words", "Failed");
      const message = (name: string) => containerStatus(pod, name).state.terminated.message;
      expect(message("file")).toBe("written");
      expect(message("own")).toBe("elsewhere");
      expect(message("log")).toBe("from the log\n");
      expect(message("fine")).toBeUndefined();
      // 12 KiB for all, divided by five.
      expect(message("long")).toBe("x".repeat(2457));
    },
  },
  {
    ids: ["P19"],
    name: "a pod that outlives its deadline fails with DeadlineExceeded and says so by an event",
    async run({ pods, create, shell, untilEvent }) {
      await create("late", {
        activeDeadlineSeconds: 2,
        terminationGracePeriodSeconds: 1,
        containers: [shell("main", serve)],
      });
      const { status } = await pods.untilPhase("late", "Failed");
      const message = "Pod was active on the node longer than the specified deadline";
      expect(status).toMatchObject({ reason: "DeadlineExceeded", message });
      await untilEvent("late", "DeadlineExceeded", message);
    },
  },
  {
    ids: ["P20"],
    name: "an ephemeral container runs beside the others and shows in a status of its own",
    needs: ["ephemeral_containers"],
    async run({ env, pods, create, shell, output }) {
      await create("debugged", { containers: [shell("main", serve)] });
      const before = await pods.untilReady("debugged");
      const debug = shell("debug", "echo debugging; exit 3", { targetContainerName: "main" });
      await env.client.patch(
        `${pods.path}/debugged/ephemeralcontainers`,
        { spec: { ephemeralContainers: [debug] } },
        "application/strategic-merge-patch+json",
      );
      const pod = await pods.until(
        "debugged",
        "to have run its ephemeral container",
        ({ status }) => status.ephemeralContainerStatuses?.[0].state.terminated !== undefined,
      );
      expect(pod.status.ephemeralContainerStatuses[0]).toMatchObject({
        name: "debug",
        ready: false,
        state: { terminated: { exitCode: 3 } },
      });
      expect(await output("debugged", "debug")).toEqual(["debugging"]);
      expect(condition(pod, "Ready").status).toBe("True");
      expect(containerStatus(pod, "main")).toEqual(containerStatus(before, "main"));
    },
  },
  {
    ids: ["P20"],
    name: "an ephemeral container sees the processes of the container that it is to debug",
    needs: ["ephemeral_containers"],
    async run({ env, pods, create, shell }) {
      await create("target", { containers: [shell("main", `sleep 4712 & ${serve}`)] });
      await pods.untilReady("target");
      // The brackets keep the search from finding itself.
      const script = "cat /proc/[0-9]*/cmdline | tr '\\000' ' ' | grep -q 'sleep 47[1]2'";
      const debug = shell("debug", script, { targetContainerName: "main" });
      await env.client.patch(
        `${pods.path}/target/ephemeralcontainers`,
        { spec: { ephemeralContainers: [debug] } },
        "application/strategic-merge-patch+json",
      );
      const pod = await pods.until(
        "target",
        "to have run its ephemeral container",
        ({ status }) => status.ephemeralContainerStatuses?.[0].state.terminated !== undefined,
      );
      expect(pod.status.ephemeralContainerStatuses[0].state.terminated.exitCode).toBe(0);
    },
  },
  {
    ids: ["P21"],
    name: "a container's own restart policy and rules come before the pod's",
    needs: ["restart_rules", "multi_container"],
    async run({ pods, create, shell, file }) {
      const once = (name: string, code: number) =>
        `if [ -e ${file(name)} ]; then exit 0; fi; touch ${file(name)}; exit ${code}`;
      await create("rules", {
        restartPolicy: "Never",
        containers: [
          shell("ruled", once("ruled", 42), {
            restartPolicy: "Never",
            restartPolicyRules: [{ action: "Restart", exitCodes: { operator: "In", values: [42] } }],
          }),
          shell("own", once("own", 1), { restartPolicy: "OnFailure" }),
        ],
      });
      const pod = await pods.untilPhase("rules", "Succeeded");
      expect(containerStatus(pod, "ruled").restartCount).toBe(1);
      expect(containerStatus(pod, "own").restartCount).toBe(1);
    },
  },
  {
    ids: ["P22"],
    name: "a pod whose machine somebody else takes away fails, and stays until its owner deletes it",
    async run({ env, pods, create, shell }) {
      const { metadata } = await create("robbed", { restartPolicy: "Never", containers: [shell("main", serve)] });
      await pods.untilReady("robbed");
      const [machine] = await machinesOf(env, metadata.uid);
      await env.backend.removeMachine(machine!.id);
      const pod = await pods.untilPhase("robbed", "Failed");
      expect(containerStatus(pod, "main").state.terminated.exitCode).toBe(137);
    },
  },
  {
    ids: ["P26", "P27"],
    name: "container statuses are sorted, and no two statuses of a pod that follow each other are the same",
    needs: ["multi_container"],
    async run({ pods, create, shell, statuses }) {
      await create("sorted", {
        restartPolicy: "Never",
        containers: ["c", "a", "b"].map((name) => shell(name, "sleep 1")),
      });
      const pod = await pods.untilPhase("sorted", "Succeeded");
      expect(pod.status.containerStatuses.map(({ name }: Json) => name)).toEqual(["a", "b", "c"]);
      const all = statuses("sorted").map((status) => JSON.stringify(status));
      expect(all.filter((status, index) => status === all[index - 1])).toEqual([]);
    },
  },
  {
    ids: ["P28"],
    name: "five hundred changes of a pod in a row are all seen in the end",
    async run({ env, pods, create, shell }) {
      await create("busy", { activeDeadlineSeconds: 5_000, containers: [shell("main", serve)] });
      await pods.untilReady("busy");
      for (let change = 1; change < 500; change++) {
        await env.client.patch(`${pods.path}/busy`, { spec: { activeDeadlineSeconds: 5_000 - change } });
      }
      await pods.until(
        "busy",
        "to have seen generation 500",
        ({ status, metadata }) => metadata.generation === 500 && status.observedGeneration === 500,
      );
    },
  },
  {
    ids: ["P29"],
    name: "the machine of a pod that is over stays for its logs and goes with the pod",
    async run({ env, pods, create, shell, output }) {
      const { metadata } = await create("ended", {
        restartPolicy: "Never",
        containers: [shell("main", "echo said; exit 0")],
      });
      await pods.untilPhase("ended", "Succeeded");
      expect(await output("ended")).toEqual(["said"]);
      await pods.delete("ended");
      await pods.untilGone("ended", metadata.uid, 10_000);
      await waitFor({ what: "its machine to be gone" }, async () => {
        const left = await machinesOf(env, metadata.uid);
        must(left.length === 0, left);
      });
    },
  },
  {
    ids: ["P30"],
    name: "a second delete can shorten the grace",
    async run({ pods, create, shell }) {
      const { metadata } = await create("hurried", {
        terminationGracePeriodSeconds: 600,
        containers: [shell("main", stubborn)],
      });
      await pods.untilReady("hurried");
      await pods.delete("hurried");
      await pods.delete("hurried", 1);
      await pods.untilGone("hurried", metadata.uid, 30_000);
    },
  },
  {
    ids: ["P31"],
    name: "a pod that a finalizer holds is left alone once it is over, and goes with the finalizer",
    async run({ env, pods, create, shell }) {
      await create("held", { containers: [shell("main", serve)] });
      await env.client.patch(`${pods.path}/held`, { metadata: { finalizers: ["example.com/hold"] } });
      const { metadata } = await pods.untilReady("held");
      await pods.delete("held", 1);
      const over = await pods.until(
        "held",
        "to be over",
        ({ status, metadata: { deletionGracePeriodSeconds } }) =>
          ["Succeeded", "Failed"].includes(status.phase) && deletionGracePeriodSeconds === 0,
      );
      await create("meanwhile", { restartPolicy: "Never", containers: [shell("main", "exit 0")] });
      await pods.untilPhase("meanwhile", "Succeeded");
      expect((await pods.get("held")).metadata.resourceVersion).toBe(over.metadata.resourceVersion);
      await env.client.patch(`${pods.path}/held`, { metadata: { finalizers: null } });
      await pods.untilGone("held", metadata.uid);
    },
  },
  {
    ids: ["P28"],
    name: "a container whose image is changed is restarted with the new one",
    needs: ["patch_image"],
    async run({ env, pods, create, shell, image, untilEvent }) {
      await create("changed", { containers: [shell("main", serve)] });
      await pods.untilReady("changed");
      const [name] = image.split(/:[^/]*$/);
      await env.client.patch(
        `${pods.path}/changed`,
        { spec: { containers: [{ name: "main", image: `${name}:2` }] } },
        "application/strategic-merge-patch+json",
      );
      const pod = await pods.until(
        "changed",
        "to run the new image",
        (each) =>
          containerStatus(each, "main").image.endsWith(":2") &&
          containerStatus(each, "main").state.running !== undefined,
      );
      expect(containerStatus(pod, "main").restartCount).toBe(1);
      await untilEvent("changed", "Killing", "Container main definition changed, will be restarted");
    },
  },
  {
    ids: ["K01"],
    name: "events come from the kubelet of the node, name the container, and count what repeats",
    async run({ env, create, shell, events }) {
      await create("eventful", { restartPolicy: "Always", containers: [shell("main", "exit 1")] });
      const backOff = await waitFor({ what: "a restart's event to be counted", timeoutMs: 60_000 }, async () => {
        const all = await events("eventful");
        const counted = all.find(
          ({ reason, count }) => ["Created", "Started", "BackOff"].includes(reason) && count > 1,
        );
        must(
          counted !== undefined,
          all.map(({ reason, count }) => [reason, count]),
        );
        return counted;
      });
      expect(backOff).toMatchObject({
        source: { component: "kubelet", host: env.nodeName },
        reportingComponent: "kubelet",
        involvedObject: { kind: "Pod", fieldPath: "spec.containers{main}" },
      });
      expect(backOff.firstTimestamp).not.toBe("");
    },
  },
];
