/** When containers run again, and in which order those of a machine come and go. */
import type { Check } from "../check.ts";
import { SLOW, QUICK, FOREVER, containerOf, mainOf, summary, type CheckContext } from "../context.ts";

const WAIT_MS = 1500;
const LONGEST_MS = 2000;

export const RESTART_CHECKS: readonly Check[] = [
  {
    name: "restart/every-instance-has-an-id",
    why: "The pod's containerID changes by it, and what ran before is told from what runs.",
    async run(context: CheckContext) {
      const { id } = await context.create("sleep 0.3; exit 1", { restart_policy: "always", backoff: QUICK });
      const seen = new Map<number, string>();
      await context.until(id, "two instances, each with an id of its own", (machine) => {
        const main = mainOf(machine);
        if (main.state === "running" && main.id !== undefined) seen.set(main.restart_count, main.id);
        const isNew = new Set(seen.values()).size === seen.size;
        context.expect(isNew, "another id after a restart", `it is ${main.id} again`);
        return seen.size >= 2;
      });
    },
  },
  {
    name: "restart/waits-as-told",
    why: "A crash loop without a wait keeps a host busy with nothing else.",
    async run(context: CheckContext) {
      const backoff = { initial_ms: WAIT_MS, max_ms: WAIT_MS };
      const { id } = await context.create("sleep 2; exit 17", { restart_policy: "always", backoff });
      const machine = await context.until(
        id,
        "its third instance",
        (seen) => mainOf(seen).restart_count >= 2 && mainOf(seen).state === "running",
      );
      const { started_at = "", last } = mainOf(machine);
      const waitedMs = Date.parse(started_at) - Date.parse(last?.finished_at ?? "");
      context.expect(
        waitedMs >= WAIT_MS - 100,
        `${WAIT_MS} ms between the second instance's end and the third's start`,
        `there were ${waitedMs}`,
      );
    },
  },
  {
    name: "restart/a-long-run-begins-the-waits-anew",
    why: "A program that crashes once a day is in no crash loop.",
    async run(context: CheckContext) {
      const backoff = { initial_ms: LONGEST_MS, max_ms: LONGEST_MS };
      const { id } = await context.create("sleep 4.5; exit 18", { restart_policy: "always", backoff });
      await context.until(id, "its second instance", (seen) => mainOf(seen).restart_count > 0);
      const machine = await context.until(
        id,
        "its third instance",
        (seen) => mainOf(seen).restart_count >= 2 && mainOf(seen).state === "running",
      );
      const { started_at = "", last } = mainOf(machine);
      const waitedMs = Date.parse(started_at) - Date.parse(last?.finished_at ?? "");
      context.expect(
        waitedMs < LONGEST_MS - 100,
        `a restart at once after an instance of 4.5 s, which is more than twice max_ms (${LONGEST_MS})`,
        `it came after ${waitedMs} ms`,
      );
    },
  },
  {
    name: "restart/waiting-says-so",
    why: "CrashLoopBackOff is what people look for.",
    async run(context: CheckContext) {
      const { id } = await context.create("exit 1", { restart_policy: "always", backoff: SLOW });
      await context.until(id, "its container to wait with CrashLoopBackOff", (machine) => {
        const { state, reason } = mainOf(machine);
        return state === "waiting" && reason === "CrashLoopBackOff";
      });
    },
  },
  {
    name: "restart/on-failure-restarts-failure",
    why: "A Job counts on being tried again.",
    async run(context: CheckContext) {
      const { id } = await context.create("exit 8", { restart_policy: "on_failure", backoff: QUICK });
      await context.until(id, "a restart after exit 8", (machine) => mainOf(machine).restart_count > 0);
    },
  },
  {
    name: "restart/always-restarts-success",
    why: "A server that ended without an error is gone all the same.",
    async run(context: CheckContext) {
      const { id } = await context.create("sleep 0.1; exit 0", { restart_policy: "always", backoff: QUICK });
      await context.until(id, "a restart after exit 0", (machine) => mainOf(machine).restart_count > 0);
    },
  },
  {
    name: "restart/a-stop-ends-the-loop",
    why: "A pod that crashes again and again must be deletable.",
    async run(context: CheckContext) {
      const { id } = await context.create("exit 1", { restart_policy: "always", backoff: SLOW });
      await context.until(id, "its container to wait for a restart", (machine) => {
        const { state, restart_count } = mainOf(machine);
        return state === "waiting" && restart_count > 0;
      });
      await context.stop(id, 1);
      await context.untilOver(id);
    },
  },
  {
    name: "restart/what-is-stopped-stays-stopped",
    why: "The pod's name is free for a new one from then on.",
    async run(context: CheckContext) {
      const { id } = await context.running(FOREVER, {
        restart_policy: "always",
        backoff: QUICK,
        labels: context.labelsOf("stays-stopped"),
      });
      await context.stop(id, 0);
      await context.untilOver(id);
      await context.clock.sleep(1000, context.signal);
      const machine = await context.get(id);
      context.expect(
        machine.state === "stopped" && mainOf(machine).state !== "running",
        "a machine with policy always that was stopped to stay so",
        `it is ${summary(machine)}`,
      );
    },
  },
  {
    name: "init/one-after-the-other",
    needs: ["init_containers"],
    why: "The second one relies on what the first has made.",
    async run(context: CheckContext) {
      const machine = await context.over("exit 0", {
        labels: context.labelsOf("order"),
        init_containers: [
          context.container("sleep 0.3; exit 0", { name: "first" }),
          context.container("exit 0", { name: "second" }),
        ],
      });
      const first = containerOf(machine, "first").terminated;
      const second = containerOf(machine, "second").terminated;
      const inOrder = first !== undefined && second?.started_at !== undefined && second.started_at >= first.finished_at;
      context.expect(
        inOrder,
        "the second init container to start after the first one's end",
        `it started at ${second?.started_at}, the first ended at ${first?.finished_at}`,
      );
    },
  },
  {
    name: "init/what-failed-is-tried-again",
    needs: ["init_containers"],
    why: "What an init container waits for may come later.",
    async run(context: CheckContext) {
      const { id } = await context.create(FOREVER, {
        restart_policy: "always",
        backoff: QUICK,
        init_containers: [context.container("exit 11", { name: "first" })],
      });
      const machine = await context.until(
        id,
        "another try of its init container",
        (seen) => containerOf(seen, "first").restart_count > 0,
      );
      context.expect(mainOf(machine).state === "waiting", "the main container to wait", `it is ${summary(machine)}`);
    },
  },
  {
    name: "sidecars/run-beside-the-main-containers",
    needs: ["sidecars"],
    why: "A proxy must be there as long as what it is for.",
    async run(context: CheckContext) {
      const { id } = await context.create(FOREVER, {
        labels: context.labelsOf("beside"),
        init_containers: [context.container(FOREVER, { name: "side", restart_policy: "always" })],
      });
      await context.until(
        id,
        "main container and sidecar to run",
        (machine) => mainOf(machine).state === "running" && containerOf(machine, "side").state === "running",
      );
    },
  },
  {
    name: "sidecars/run-again",
    needs: ["sidecars"],
    why: "A proxy that crashed would otherwise be gone for the pod's life.",
    async run(context: CheckContext) {
      const { id } = await context.create(FOREVER, {
        backoff: QUICK,
        init_containers: [context.container("sleep 0.2; exit 12", { name: "side", restart_policy: "always" })],
      });
      await context.until(
        id,
        "a restart of its sidecar, though the machine's policy is never",
        (machine) => containerOf(machine, "side").restart_count > 0,
      );
    },
  },
  {
    name: "ephemeral/never-restarts",
    needs: ["ephemeral_containers"],
    why: "Its end is the end of somebody's session.",
    async run(context: CheckContext) {
      const { id } = await context.running(FOREVER, { restart_policy: "always", backoff: QUICK });
      await context.provider.updatePod?.(
        id,
        { ephemeral_containers: [context.container("exit 13", { name: "debug" })] },
        { signal: context.signal },
      );
      const ended = (machine: Awaited<ReturnType<CheckContext["get"]>>) =>
        machine.containers.some(({ name, terminated }) => name === "debug" && terminated !== undefined);
      await context.until(id, "the end of its ephemeral container", ended);
      await context.clock.sleep(600, context.signal);
      const debug = containerOf(await context.get(id), "debug");
      context.expect(
        debug.state === "terminated" && debug.restart_count === 0,
        "an ephemeral container to run once, whatever the policy",
        `it is ${debug.state} after ${debug.restart_count} restarts`,
      );
    },
  },
  {
    name: "ephemeral/the-end-does-not-wait",
    needs: ["ephemeral_containers"],
    why: "A Job's pod would never be done because somebody looked into it.",
    async run(context: CheckContext) {
      const { id } = await context.running("sleep 1; exit 0", { labels: context.labelsOf("end") });
      await context.provider.updatePod?.(
        id,
        { ephemeral_containers: [context.container(FOREVER, { name: "debug" })] },
        { signal: context.signal },
      );
      await context.untilOver(id);
    },
  },
  {
    name: "probes/readiness-does-not-restart",
    needs: ["probes"],
    why: "What is not ready now may be in a minute; only liveness ends a container.",
    async run(context: CheckContext) {
      const readiness = {
        exec: { command: ["sh", "-c", "exit 1"] },
        initial_delay_s: 0,
        period_s: 1,
        timeout_s: 5,
        success: 1,
        failure: 1,
      };
      const { id } = await context.running("", {
        restart_policy: "always",
        backoff: QUICK,
        labels: context.labelsOf("unready"),
        containers: [context.container(FOREVER, { probes: { readiness } })],
      });
      await context.clock.sleep(2500, context.signal);
      const main = mainOf(await context.get(id));
      context.expect(
        main.restart_count === 0 && main.state === "running",
        "a container whose readiness probe fails to run on",
        `it is ${main.state} after ${main.restart_count} restarts`,
      );
    },
  },
];
