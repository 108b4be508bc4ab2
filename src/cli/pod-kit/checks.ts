/**
 * Checks of pods: what the owner of a cluster sees of a backend, through an agent. How each call of the Machine API has
 * to be answered is the kit's; here is what becomes of it.
 */
import type { Pod } from "../../kube/wire.ts";
import { Violation } from "../../provider/kit/context.ts";
import type { PodCheck } from "./check.ts";
import { describe, isReady, POLITE, type PodContext, statusOf, STUBBORN } from "./context.ts";

const BURST = 6;
const SHORT_GRACE_S = 6;
const LONG_GRACE_S = 600;
/** Less than a grace, since it is counted from before the call. */
const EARLY_MS = 200;

function must(holds: boolean, expected: string, pod: Pod): void {
  if (!holds) throw new Violation(expected, `the pod is ${describe(pod)}`);
}

function same(what: string, expected: string, came: string): void {
  if (came !== expected)
    throw new Violation(`${what} to be ${JSON.stringify(expected)}`, `it is ${JSON.stringify(came)}`);
}

const endOf = (pod: Pod, name?: string) => statusOf(pod, name)?.state?.terminated;

const COMPLETION: readonly PodCheck[] = [
  {
    name: "completion/exit-0-is-success",
    why: "A Job counts its pods by that.",
    async run(context) {
      const pod = await context.run("once", "echo done");
      const ended = await context.untilPhase(pod, "Succeeded");
      const end = endOf(ended);
      must(end?.exitCode === 0 && end.reason === "Completed", "its container to have Completed with 0", ended);
      await context.untilLog(pod, "done\n");
    },
  },
  {
    name: "completion/exit-code-is-kept",
    why: "Whoever looks for the cause, and a Job's podFailurePolicy, have nothing else.",
    async run(context) {
      const ended = await context.untilPhase(await context.run("fails", "exit 37"), "Failed");
      const end = endOf(ended);
      must(end?.exitCode === 37 && end.reason === "Error", "its container to have ended with 37 (Error)", ended);
    },
  },
  {
    name: "completion/waits-for-every-container",
    why: "A pod that has ended while one of its containers runs is deleted under it.",
    needs: ["multi_container"],
    async run(context) {
      const containers = [
        context.container({ name: "brief", script: "echo of brief" }),
        context.container({ name: "main", script: "sleep 2; echo of main; exit 3" }),
      ];
      const pod = await context.create("two", { containers });
      const ended = await context.untilPhase(pod, "Failed");
      must(endOf(ended, "brief")?.exitCode === 0, "container brief to have ended with 0", ended);
      must(endOf(ended)?.exitCode === 3, "container main to have ended with 3", ended);
      await context.untilLog(pod, "of brief\n", { container: "brief" });
      await context.untilLog(pod, "of main\n", { container: "main" });
    },
  },
];

const RESTARTS: readonly PodCheck[] = [
  {
    name: "restart/on-failure-tries-again-and-waits",
    why: "A program that fails at once would be started hundreds of times a minute, or never again.",
    async run(context) {
      const pod = await context.run("crashes", "echo tried; exit 7", { restartPolicy: "OnFailure" });
      const seen = await context.until(pod, "be restarted and wait in CrashLoopBackOff", (each) => {
        const status = statusOf(each);
        return (status?.restartCount ?? 0) > 0 && status?.state?.waiting?.reason === "CrashLoopBackOff";
      });
      must(seen.status?.phase === "Running", "a pod that backs off to be Running", seen);
      must(statusOf(seen)?.lastState?.terminated?.exitCode === 7, "its last instance to have ended with 7", seen);
    },
  },
  {
    name: "restart/on-failure-leaves-success",
    why: "A Job's work would be done twice.",
    async run(context) {
      const pod = await context.run("succeeds", "echo once", { restartPolicy: "OnFailure" });
      const ended = await context.untilPhase(pod, "Succeeded");
      must(statusOf(ended)?.restartCount === 0, "no restart", ended);
      await context.untilLog(pod, "once\n");
    },
  },
  {
    name: "restart/always-restarts-success",
    why: "A Deployment's pod has to run on when its program ends.",
    async run(context) {
      const pod = await context.run("ends", "exit 0", { restartPolicy: "Always" });
      const seen = await context.until(pod, "be restarted", (each) => (statusOf(each)?.restartCount ?? 0) > 0);
      must(seen.status?.phase === "Running", "a pod that is always restarted to be Running", seen);
    },
  },
  {
    name: "restart/the-earlier-log-can-be-read",
    why: "kubectl logs --previous is where the reason of a crash stands.",
    async run(context) {
      const script = "echo a reason; exit 1";
      const pod = await context.run("explains", script, { restartPolicy: "OnFailure" });
      await context.until(pod, "be restarted", (each) => (statusOf(each)?.restartCount ?? 0) > 0);
      await context.untilLog(pod, "a reason\n", { previous: true });
    },
  },
];

const ENVIRONMENT: readonly PodCheck[] = [
  {
    name: "environment/variables-and-arguments",
    why: "Nearly every pod is configured by them.",
    async run(context) {
      const map = await context.configMap("words", { word: "from a map", lines: "two\nlines" });
      const script = 'printf "%s|" "$GREETING" "$WORD" "$LINES_" "$NAME" "$@"';
      const main = context.container({
        name: "main",
        script,
        args: ["zero", "$(GREETING)!", "a b", ""],
        env: [
          { name: "WHOM", value: "pods" },
          { name: "GREETING", value: "hello $(WHOM)" },
          { name: "WORD", valueFrom: { configMapKeyRef: { name: map, key: "word" } } },
          { name: "LINES_", valueFrom: { configMapKeyRef: { name: map, key: "lines" } } },
          { name: "NAME", valueFrom: { fieldRef: { fieldPath: "metadata.name" } } },
        ],
      });
      const pod = await context.create("env", { containers: [main] });
      await context.untilPhase(pod, "Succeeded");
      const words = ["hello pods", "from a map", "two\nlines", pod.metadata!.name!, "hello pods!", "a b", ""];
      await context.untilLog(pod, words.map((word) => `${word}|`).join(""));
    },
  },
];

const VOLUMES: readonly PodCheck[] = [
  {
    name: "volumes/a-config-map-is-files",
    why: "That is how programs get their configuration.",
    needs: ["volumes.files"],
    async run(context) {
      const map = await context.configMap("files", { "app.conf": "port = 80\n", other: "x" });
      const volumeMounts = [{ name: "config", mountPath: "/etc/of-the-app", readOnly: true }];
      const main = context.container({
        name: "main",
        script: "cd /etc/of-the-app && ls && cat app.conf",
        volumeMounts,
      });
      const pod = await context.create("files", {
        containers: [main],
        volumes: [{ name: "config", configMap: { name: map } }],
      });
      await context.untilPhase(pod, "Succeeded");
      await context.untilLog(pod, "app.conf\nother\nport = 80\n");
    },
  },
  {
    name: "volumes/an-empty-dir-outlives-a-restart",
    why: "Containers keep there what they need again after a crash.",
    needs: ["volumes.empty_dir"],
    async run(context) {
      const volumeMounts = [{ name: "scratch", mountPath: "/scratch" }];
      const script = "if [ -e /scratch/tried ]; then echo again; exit 0; fi; touch /scratch/tried; exit 9";
      const pod = await context.create("scratch", {
        restartPolicy: "OnFailure",
        containers: [context.container({ name: "main", script, volumeMounts })],
        volumes: [{ name: "scratch", emptyDir: {} }],
      });
      const ended = await context.untilPhase(pod, "Succeeded");
      must(statusOf(ended)?.restartCount === 1, "one restart", ended);
      await context.untilLog(pod, "again\n");
    },
  },
];

const STREAMS: readonly PodCheck[] = [
  {
    name: "logs/follow-to-the-end",
    why: "kubectl logs -f and log collectors wait for that end.",
    async run(context) {
      const pod = await context.run("talks", "for i in 1 2 3 4; do echo line $i; sleep 0.5; done");
      await context.until(pod, "have started", ({ status }) => !["Pending", undefined].includes(status?.phase));
      same("the log that was followed", "line 1\nline 2\nline 3\nline 4\n", await context.followedLog(pod));
    },
  },
  {
    name: "exec/output-and-exit-code",
    why: "Scripts around kubectl exec go by them.",
    needs: ["exec"],
    async run(context) {
      const pod = await context.run("serves", POLITE);
      await context.untilReady(pod);
      const { stdout, stderr, exitCode } = await context.exec(pod, "echo to out; echo to err >&2; exit 5");
      same("standard output", "to out\n", stdout);
      same("standard error", "to err\n", stderr);
      same("the exit code", "5", String(exitCode));
    },
  },
];

const PROBES: readonly PodCheck[] = [
  {
    name: "probes/readiness-decides-who-is-ready",
    why: "A Service sends its clients to pods that cannot serve them yet.",
    needs: ["probes"],
    async run(context) {
      const probed = (name: string, script: string) => {
        const readinessProbe = { exec: { command: ["sh", "-c", script] }, periodSeconds: 1 };
        return context.create(name, {
          containers: [context.container({ name: "main", script: POLITE, readinessProbe })],
        });
      };
      const never = await probed("not-ready", "exit 1");
      const ready = await probed("ready", "exit 0");
      await context.untilReady(ready);
      const running = await context.untilPhase(never, "Running");
      must(!isReady(running), "a pod whose readiness probe fails not to be Ready", running);
    },
  },
  {
    name: "probes/liveness-restarts",
    why: "A program that hangs would hang for ever.",
    needs: ["probes"],
    async run(context) {
      const livenessProbe = { exec: { command: ["sh", "-c", "exit 1"] }, periodSeconds: 1, failureThreshold: 2 };
      const pod = await context.create("hangs", {
        restartPolicy: "Always",
        terminationGracePeriodSeconds: 1,
        containers: [context.container({ name: "main", script: POLITE, livenessProbe })],
      });
      await context.until(pod, "be restarted", (each) => (statusOf(each)?.restartCount ?? 0) > 0);
    },
  },
];

const seconds = (time: string | undefined) => Date.parse(time ?? "");

const INIT: readonly PodCheck[] = [
  {
    name: "init/one-after-another",
    why: "What the next one needs has to be there when it begins.",
    needs: ["init_containers"],
    async run(context) {
      const initContainers = [
        context.container({ name: "first", script: "sleep 2" }),
        context.container({ name: "second", script: "sleep 2" }),
      ];
      const containers = [context.container({ name: "main", script: "echo last" })];
      const ended = await context.untilPhase(
        await context.create("ordered", { initContainers, containers }),
        "Succeeded",
      );
      const times = ["first", "second", "main"].map((name) => endOf(ended, name));
      for (const [at, next] of times.slice(1).entries())
        must(
          seconds(next?.startedAt) >= seconds(times[at]?.finishedAt),
          "each init container to end before the next container begins",
          ended,
        );
    },
  },
  {
    name: "init/a-failure-keeps-the-rest-from-starting",
    why: "The program would run without what was to be prepared.",
    needs: ["init_containers"],
    async run(context) {
      const initContainers = [context.container({ name: "prepare", script: "exit 5" })];
      const containers = [context.container({ name: "main", script: "echo must not run" })];
      const pod = await context.create("unprepared", { initContainers, containers });
      const ended = await context.untilPhase(pod, "Failed");
      must(endOf(ended, "prepare")?.exitCode === 5, "container prepare to have ended with 5", ended);
      must(statusOf(ended)?.containerID === undefined, "container main never to have begun", ended);
    },
  },
];

const DELETION: readonly PodCheck[] = [
  {
    name: "deletion/does-not-wait-for-the-grace",
    why: "A drain or a rollout would take minutes for each pod.",
    async run(context) {
      const pod = await context.run("polite", POLITE, { terminationGracePeriodSeconds: LONG_GRACE_S });
      await context.untilReady(pod);
      await context.delete(pod);
      await context.untilGone(pod);
      await context.untilNoMachine(pod);
    },
  },
  {
    name: "deletion/gives-the-grace-and-no-more",
    why: "A program is cut off while it still writes, or a pod is never gone.",
    async run(context) {
      const pod = await context.run("stubborn", STUBBORN, { terminationGracePeriodSeconds: SHORT_GRACE_S });
      await context.untilReady(pod);
      await context.delete(pod);
      const took = await context.untilGone(pod);
      if (took < SHORT_GRACE_S * 1000 - EARLY_MS)
        throw new Violation(
          `a program that ignores SIGTERM to have its ${SHORT_GRACE_S} s of grace`,
          `its pod was gone after ${(took / 1000).toFixed(1)} s`,
        );
      await context.untilNoMachine(pod);
    },
  },
  {
    name: "deletion/before-it-runs-leaves-nothing",
    why: "Machines that nobody knows of are paid for.",
    async run(context) {
      const pod = await context.run("brief", POLITE);
      await context.delete(pod, 1);
      await context.untilGone(pod);
      await context.untilNoMachine(pod);
    },
  },
  {
    name: "deletion/the-same-name-again-is-another-pod",
    why: "A StatefulSet makes its pods again under their old names.",
    async run(context) {
      const first = await context.run("again", POLITE);
      const before = await context.untilReady(first);
      await context.delete(first, 1);
      await context.untilGone(first);
      const second = await context.run("again", POLITE);
      const after = await context.untilReady(second);
      must(
        statusOf(after)?.containerID !== statusOf(before)?.containerID,
        "the second pod of a name to have a container of its own",
        after,
      );
    },
  },
];

async function mustHaveOneMachine(context: PodContext, pod: Pod): Promise<void> {
  const machines = await context.machinesOf(pod);
  if (machines.length !== 1)
    throw new Violation(
      `one machine for pod ${pod.metadata!.name}`,
      `there are ${machines.length} (${machines.map(({ id }) => id).join(", ")})`,
    );
}

/** It runs before the restart and is the same container, started once, after it. */
async function runsOn(context: PodContext): Promise<void> {
  const pod = await context.run("stays", `echo begun; ${POLITE}`);
  const before = await context.untilReady(pod);
  await context.disturb();
  // What only a living agent and backend can do: what is looked at comes after the restart.
  await context.untilPhase(await context.run("later", "exit 0"), "Succeeded");
  const after = await context.untilReady(pod);
  same("the container's id", String(statusOf(before)?.containerID), String(statusOf(after)?.containerID));
  must(statusOf(after)?.restartCount === 0, "no restart", after);
  await context.untilLog(pod, "begun\n");
  await mustHaveOneMachine(context, pod);
}

/** It is asked to end before the restart, and is gone after it. */
async function goesOnEnding(context: PodContext): Promise<void> {
  const pod = await context.run("ends", STUBBORN, { terminationGracePeriodSeconds: SHORT_GRACE_S });
  await context.untilReady(pod);
  await context.delete(pod);
  await context.disturb();
  await context.untilGone(pod);
  await context.untilNoMachine(pod);
}

const DISTURBED: readonly PodCheck[] = [
  {
    name: "agent-restart/a-running-pod-stays-as-it-is",
    why: "An upgrade of the agent would restart every program of the node.",
    restarts: "agent",
    run: runsOn,
  },
  {
    name: "agent-restart/nothing-is-lost-or-doubled",
    why: "A burst that is being made when the agent dies must run, and run once.",
    restarts: "agent",
    async run(context) {
      const names = Array.from({ length: BURST }, (_, at) => `burst-${at}`);
      const pods = await Promise.all(names.map((name) => context.run(name, "echo begun; sleep 2")));
      await context.disturb();
      for (const pod of pods) {
        const ended = await context.untilPhase(pod, "Succeeded");
        must(statusOf(ended)?.restartCount === 0, "each container to be started once", ended);
        await context.untilLog(pod, "begun\n");
        await mustHaveOneMachine(context, pod);
      }
    },
  },
  {
    name: "agent-restart/an-end-meanwhile-is-seen",
    why: "A Job would wait for ever for a pod that ended while nobody looked.",
    restarts: "agent",
    async run(context) {
      const pod = await context.run("ends", "sleep 1; exit 4");
      await context.disturb();
      const ended = await context.untilPhase(pod, "Failed");
      must(endOf(ended)?.exitCode === 4, "its container to have ended with 4", ended);
    },
  },
  {
    name: "agent-restart/a-deletion-goes-on",
    why: "A pod that is being deleted when the agent dies would stay, and so would its node's drain.",
    restarts: "agent",
    run: goesOnEnding,
  },
  {
    name: "backend-restart/a-running-pod-stays-as-it-is",
    why: "An upgrade of the backend would restart every program of the node, or lose it.",
    restarts: "backend",
    run: runsOn,
  },
  {
    name: "backend-restart/a-deletion-goes-on",
    why: "A pod that is being deleted when the backend dies would stay.",
    restarts: "backend",
    run: goesOnEnding,
  },
];

export const POD_CHECKS: readonly PodCheck[] = [
  ...COMPLETION,
  ...RESTARTS,
  ...ENVIRONMENT,
  ...VOLUMES,
  ...STREAMS,
  ...PROBES,
  ...INIT,
  ...DELETION,
  ...DISTURBED,
];

/** When not even this one passes, all others would only tell the same. */
export const FIRST_POD_CHECK = POD_CHECKS[0]!;
