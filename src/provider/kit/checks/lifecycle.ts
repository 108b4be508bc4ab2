/** Create, get, stop, delete: the rules that the agent's protocol stands on. */
import type { Capability } from "../../capabilities.ts";
import type { MachineSpec } from "../../machine.ts";
import type { Check } from "../check.ts";
import { FOREVER, mainOf, summary, type CheckContext } from "../context.ts";

/** Says `ready` once the stop signal is ignored. */
const STUBBORN = "trap '' TERM; echo ready; sleep 3600";
/** Ends with 5 when the stop signal comes. */
const OBEDIENT = "trap 'exit 5' TERM; echo ready; while true; do sleep 0.1; done";

const UTC = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/;

/** Specifications that need one capability beyond the core. */
const DEMANDING: readonly { capability: Capability; field: string; ask: Partial<MachineSpec> }[] = [
  {
    capability: "volumes.host_path",
    field: "volumes.0",
    ask: { volumes: [{ name: "v", type: "host_path", path: "/" }] },
  },
  { capability: "host_network", field: "host.network", ask: { host: { network: true } } },
  {
    capability: "share_process_namespace",
    field: "security.share_process_namespace",
    ask: { security: { share_process_namespace: true } },
  },
  {
    capability: "sysctls",
    field: "security.sysctls",
    ask: { security: { sysctls: [{ name: "kernel.shm_rmid_forced", value: "1" }] } },
  },
  { capability: "instance_types", field: "instance_type", ask: { instance_type: "conformance" } },
];

const firstMissing = (context: CheckContext) => DEMANDING.find(({ capability }) => !context.has(capability));

export const LIFECYCLE_CHECKS: readonly Check[] = [
  {
    name: "info/says-what-it-is",
    why: "The agent shows name and version on the node and refuses pods by the capabilities.",
    async run(context: CheckContext) {
      const { name, version, capabilities } = context.info;
      context.expect(name !== "" && version !== "", "a name and a version", `they are "${name}" and "${version}"`);
      context.expect(new Set(capabilities).size === capabilities.length, "each capability once", "one is named twice");
    },
  },
  {
    name: "create/returns-the-machine",
    why: "The agent writes the first status from this reply.",
    async run(context: CheckContext) {
      const machine = await context.create(FOREVER);
      context.expect(
        machine.labels["vmlet.dev/conformance"] === context.labels["vmlet.dev/conformance"],
        "the labels of the specification",
        `they are ${JSON.stringify(machine.labels)}`,
      );
      context.expect(
        ["pending", "creating", "starting", "running"].includes(machine.state),
        "a machine on its way or running",
        `it is ${machine.state}`,
      );
      mainOf(machine);
    },
  },
  {
    name: "create/replays-make-one-machine",
    why: "Every reply can be lost; repeating the create must be the cure, not a second machine.",
    async run(context: CheckContext) {
      const id = context.id();
      const spec = context.spec(FOREVER);
      const machines = await Promise.all(
        Array.from({ length: 8 }, () => context.provider.createPod(id, spec, { signal: context.signal })),
      );
      const births = new Set(machines.map(({ created_at }) => created_at));
      context.expect(
        births.size === 1,
        "eight creates of one id to return one machine",
        `they have ${births.size} times of birth`,
      );
      let found = 0;
      await context.untilTrue("the machine in the list", async () => {
        found = (await context.list()).items.filter((machine) => machine.id === id).length;
        return found > 0;
      });
      context.expect(found === 1, "the list to have the machine once", `it is there ${found} times`);
    },
  },
  {
    name: "create/another-spec-is-a-conflict",
    why: "To run something else than was asked for under the same id would be silent corruption.",
    async run(context: CheckContext) {
      const id = context.id();
      await context.provider.createPod(id, context.spec(FOREVER), { signal: context.signal });
      const call = context.provider.createPod(id, context.spec("sleep 3601"), { signal: context.signal });
      await context.expectCode(call, "conflict", "a create with another specification");
    },
  },
  {
    name: "create/an-aborted-call-can-be-repeated",
    why: "A client that gave up waiting does not know whether the machine was made; it asks again.",
    async run(context: CheckContext) {
      const id = context.id();
      const spec = context.spec(FOREVER);
      const impatient = new AbortController();
      const call = context.provider.createPod(id, spec, { signal: impatient.signal });
      impatient.abort();
      await call.catch(() => undefined);
      await context.provider.createPod(id, spec, { signal: context.signal });
      let count = 0;
      await context.untilTrue("the machine in the list", async () => (count = (await context.list()).items.length) > 0);
      context.expect(count === 1, "one machine", `there are ${count}`);
    },
  },
  {
    name: "create/what-is-unsupported-is-refused",
    why: "A field that is dropped silently runs a pod without the thing it asked for.",
    skip: (context) =>
      firstMissing(context) === undefined ? "the backend can do everything that this check could ask for" : undefined,
    async run(context: CheckContext) {
      const { capability, field, ask } = firstMissing(context)!;
      const error = await context.expectCode(
        context.create("true", ask),
        "unsupported",
        `a specification that needs ${capability}`,
      );
      context.expect(
        error.field === field,
        `the error to name the field ${field}`,
        `it names ${error.field ?? "none"}`,
      );
    },
  },
  {
    name: "create/a-device-of-nobody-is-refused",
    why: "A pod that runs without the device that it asked for computes for days on what it was not to run on.",
    async run(context: CheckContext) {
      const [container] = context.spec("true").containers;
      const containers = [{ ...container!, cdi_devices: ["conformance.vmlet.dev/none=none"] }];
      // Invalid: to a backend that is older than the field, it is one that it does not know.
      await context.expectCode(context.create("true", { containers }), ["unsupported", "invalid"], "an unknown device");
    },
  },
  {
    name: "get/absent-is-not-found",
    why: "It is the only proof that a machine does not exist; without it the agent waits for ever.",
    async run(context: CheckContext) {
      await context.expectCode(context.get(context.id()), "not_found", "a get of an id that was never used");
    },
  },
  {
    name: "machine/version-grows",
    why: "The agent tells a late reply from a new one by it.",
    async run(context: CheckContext) {
      const machine = await context.running(FOREVER);
      await context.stop(machine.id, 0);
      const stopped = await context.untilOver(machine.id);
      context.expect(
        stopped.version > machine.version,
        `a version above ${machine.version} after a stop`,
        `it is ${stopped.version}`,
      );
    },
  },
  {
    name: "machine/times-are-utc",
    why: "They become times of pods, where another zone or precision is a wrong age or an invalid object.",
    async run(context: CheckContext) {
      const machine = await context.over("exit 0");
      const main = mainOf(machine);
      const times = [
        machine.created_at,
        machine.started_at,
        machine.stopped_at,
        main.started_at,
        main.terminated?.started_at,
        main.terminated?.finished_at,
      ];
      for (const time of times) {
        if (time === undefined) continue;
        context.expect(UTC.test(time), "times as 2026-10-06T00:17:09.123Z", `one is ${time}`);
        const offMs = Math.abs(Date.parse(time) - context.clock.now());
        context.expect(offMs < 5 * 60_000, "times within five minutes of ours", `one is ${time}`);
      }
    },
  },
  {
    name: "machine/shows-no-secrets",
    why: "Statuses are read by more people than secrets are.",
    async run(context: CheckContext) {
      const secret = "conformance-s3cret";
      const base64 = Buffer.from(secret).toString("base64");
      const files = {
        name: "files",
        type: "files" as const,
        version: "1",
        files: [{ path: "key", mode: 0o600, content_b64: base64 }],
      };
      const machine = await context.running(FOREVER, {
        containers: [context.container(FOREVER, { env: [{ name: "PASSWORD", value: secret }] })],
        ...(context.has("volumes.files") ? { volumes: [files] } : {}),
        ...(context.has("registry_auth")
          ? { registry_auth: [{ registry: "registry.invalid", username: "u", password: secret }] }
          : {}),
      });
      const shown = JSON.stringify([machine, await context.list()]);
      context.expect(
        !shown.includes(secret) && !shown.includes(base64),
        "no secret of the specification in a machine",
        "one is shown",
      );
    },
  },
  {
    name: "stop/sends-the-signal",
    why: "A workload that is not told to end cannot end in good order.",
    async run(context: CheckContext) {
      const { id } = await context.saying("ready", OBEDIENT);
      await context.stop(id, 20);
      const code = mainOf(await context.untilOver(id)).terminated?.exit_code;
      context.expect(code === 5, "the container to end by its own handler, with 5", `it ended with ${code}`);
    },
  },
  {
    name: "stop/kills-after-the-grace-and-not-before",
    why: "The grace is the workload's; its end is the user's.",
    async run(context: CheckContext) {
      const { id } = await context.saying("ready", STUBBORN);
      const startedAt = context.clock.monotonic();
      await context.stop(id, 2);
      const machine = await context.untilOver(id);
      const tookMs = context.clock.monotonic() - startedAt;
      const code = mainOf(machine).terminated?.exit_code;
      context.expect(code === 137, "a container that ignores the signal to end with 137", `it ended with ${code}`);
      context.expect(tookMs >= 1900, "it to live for the 2 s of grace", `it was over after ${Math.round(tookMs)} ms`);
      context.expect(
        tookMs < 15_000,
        "it to be killed when 2 s of grace are over",
        `that took ${Math.round(tookMs)} ms`,
      );
    },
  },
  {
    name: "stop/returns-at-once",
    why: "The agent has other machines to look after; it learns from the state when this one is stopped.",
    async run(context: CheckContext) {
      const { id } = await context.saying("ready", STUBBORN);
      const startedAt = context.clock.monotonic();
      const { state } = await context.stop(id, 60);
      const tookMs = context.clock.monotonic() - startedAt;
      context.expect(tookMs < 3000, "a stop with 60 s of grace to return at once", `it took ${Math.round(tookMs)} ms`);
      context.expect(state === "stopping" || state === "running", "the machine to be stopping", `it is ${state}`);
    },
  },
  {
    name: "stop/a-shorter-grace-shortens",
    why: "`kubectl delete --now` after a plain delete must not wait for the first grace.",
    async run(context: CheckContext) {
      const { id } = await context.saying("ready", STUBBORN);
      await context.stop(id, 600);
      await context.stop(id, 1);
      await context.untilOver(id);
    },
  },
  {
    name: "stop/a-longer-grace-does-not-lengthen",
    why: "A retry that carries the first grace must not give a workload more time than it was told.",
    async run(context: CheckContext) {
      const { id } = await context.saying("ready", STUBBORN);
      await context.stop(id, 1);
      await context.stop(id, 601);
      await context.untilOver(id);
    },
  },
  {
    name: "stop/is-idempotent",
    why: "A reply can be lost; the second stop must be as good as the first.",
    async run(context: CheckContext) {
      const { id } = await context.over("exit 0");
      const { state } = await context.stop(id, 0);
      context.expect(state === "stopped", "a stop of a machine that is over to return it as it is", `it is ${state}`);
    },
  },
  {
    name: "stop/absent-is-not-found",
    why: "The agent must learn that there is nothing left to wait for.",
    async run(context: CheckContext) {
      await context.expectCode(context.stop(context.id(), 0), "not_found", "a stop of an id that was never used");
    },
  },
  {
    name: "stop/stays-readable",
    why: "The last status is written after the end; what vanished cannot be read.",
    async run(context: CheckContext) {
      const { id } = await context.over("exit 3");
      const { items } = await context.list();
      const found = items.find((machine) => machine.id === id);
      context.expect(
        found !== undefined && mainOf(found).terminated?.exit_code === 3,
        "a stopped machine in the list, with its exit code",
        `it is ${summary(found)}`,
      );
    },
  },
  {
    name: "delete/absent-succeeds",
    why: "What the agent is after is that the machine is gone; that it never was is fine.",
    async run(context: CheckContext) {
      await context.delete(context.id());
    },
  },
  {
    name: "delete/absent-leaves-a-tombstone",
    why: "A create that was on its way when the pod was deleted would make a machine that nobody looks after.",
    async run(context: CheckContext) {
      const id = context.id();
      await context.delete(id).catch(() => undefined);
      const call = context.provider.createPod(id, context.spec(FOREVER), { signal: context.signal });
      await context.expectCode(call, "gone", "a create of an id that was deleted before it existed");
    },
  },
  {
    name: "delete/conditional-leaves-a-machine-alone",
    why: "An agent that refuses a pod because it saw no machine would take away the one that another agent has just made.",
    needs: ["delete_if_absent"],
    async run(context: CheckContext) {
      const { id } = await context.running(FOREVER);
      const call = context.provider.deletePod(id, { signal: context.signal, force: true, ifAbsent: true });
      await context.expectCode(call, "conflict", "a deletion, if absent, of a machine that is there");
      const { state } = mainOf(await context.get(id));
      context.expect(state === "running", "the machine to run on", `it is ${state}`);
    },
  },
  {
    name: "delete/conditional-leaves-a-tombstone",
    why: "A create that is on its way must not make the machine of a pod that was refused.",
    needs: ["delete_if_absent"],
    async run(context: CheckContext) {
      const id = context.id();
      // A second time, as after a lost reply, it finds its own tombstone.
      for (let i = 0; i < 2; i++)
        await context.provider.deletePod(id, { signal: context.signal, force: false, ifAbsent: true });
      const call = context.provider.createPod(id, context.spec(FOREVER), { signal: context.signal });
      await context.expectCode(call, "gone", "a create of an id that was deleted, if absent");
    },
  },
  {
    name: "delete/a-create-afterwards-is-gone",
    why: "A late create must not bring back what was deleted.",
    async run(context: CheckContext) {
      const { id } = await context.running(FOREVER);
      await context.delete(id);
      const call = context.provider.createPod(id, context.spec(FOREVER), { signal: context.signal });
      await context.expectCode(call, "gone", "a create of an id that was deleted");
    },
  },
  {
    name: "delete/the-tombstone-keeps-exit-codes",
    why: "They are asked for after the fact: Jobs decide by them.",
    async run(context: CheckContext) {
      const { id } = await context.over("exit 4");
      await context.delete(id);
      const tombstone = await context.untilDeleted(id);
      const code = mainOf(tombstone).terminated?.exit_code;
      context.expect(code === 4, "a tombstone with exit code 4", `it has ${code}`);
    },
  },
  {
    name: "delete/without-force-stops-first",
    why: "A workload may end in good order even when its pod object is gone already.",
    async run(context: CheckContext) {
      const { id } = await context.saying("ready", OBEDIENT, { termination_grace_s: 20 });
      await context.delete(id, false);
      const code = mainOf(await context.untilDeleted(id)).terminated?.exit_code;
      context.expect(code === 5, "the container to end by its own handler, with 5", `it ended with ${code}`);
    },
  },
  {
    name: "delete/with-force-kills",
    why: "What cannot be stopped must still be removable.",
    async run(context: CheckContext) {
      const { id } = await context.saying("ready", STUBBORN, { termination_grace_s: 600 });
      await context.delete(id, true);
      await context.untilDeleted(id);
    },
  },
  {
    name: "delete/is-idempotent",
    why: "A reply can be lost; the second delete must be as good as the first.",
    async run(context: CheckContext) {
      const { id } = await context.running(FOREVER);
      await context.delete(id);
      await context.delete(id);
    },
  },
  {
    name: "create/labels-are-part-of-it",
    why: "Two agents that derive one id for different machines must not share one.",
    async run(context: CheckContext) {
      const id = context.id();
      const signal = context.signal;
      await context.provider.createPod(id, context.spec(FOREVER), { signal });
      const other = context.spec(FOREVER, { labels: context.labelsOf("other") });
      await context.expectCode(
        context.provider.createPod(id, other, { signal }),
        "conflict",
        "a create with other labels",
      );
    },
  },
  {
    name: "create/of-what-is-over-returns-it",
    why: "A reply can be lost for longer than a machine lives; it must not run twice.",
    async run(context: CheckContext) {
      const id = context.id();
      const spec = context.spec("exit 3");
      await context.provider.createPod(id, spec, { signal: context.signal });
      await context.untilOver(id);
      const again = await context.provider.createPod(id, spec, { signal: context.signal });
      context.expect(
        again.state === "stopped" && mainOf(again).terminated?.exit_code === 3,
        "the machine as it ended",
        `it is ${summary(again)}`,
      );
    },
  },
  {
    name: "stop/sends-the-signal-that-is-named",
    why: "nginx, postgres and others end in good order by a signal of their own.",
    async run(context: CheckContext) {
      const script = "trap 'exit 26' USR1; trap 'exit 5' TERM; echo ready; while true; do sleep 0.1; done";
      const { id } = await context.saying("ready", "", {
        containers: [context.container(script, { stop: { signal: "SIGUSR1" } })],
      });
      await context.stop(id, 21);
      const code = mainOf(await context.untilOver(id)).terminated?.exit_code;
      context.expect(code === 26, "the container to end by its handler of SIGUSR1, with 26", `it ended with ${code}`);
    },
  },
  {
    name: "stop/nothing-runs-any-more",
    why: "Children that live on hold ports, files and memory, and nobody knows of them.",
    async run(context: CheckContext) {
      const beat = "while true; do echo beat; sleep 0.2; done";
      const { id } = await context.saying("ready", `sh -c '${beat}' & echo ready; wait`);
      await context.stop(id, 0);
      await context.untilOver(id);
      const before = (await context.logs(id)).length;
      await context.clock.sleep(1500, context.signal);
      const after = (await context.logs(id)).length;
      context.expect(
        after <= before,
        "children of the container's process to be over when the machine is `stopped`",
        `they printed ${after - before} lines since`,
      );
    },
  },
  {
    name: "stop/is-seen-while-it-lasts",
    why: "A pod is shown as Terminating, and its machine must be so too.",
    async run(context: CheckContext) {
      const { id } = await context.saying("ready", STUBBORN, { labels: context.labelsOf("lasting") });
      await context.stop(id, 60);
      const machine = await context.until(id, "the state stopping", ({ state }) => state !== "running");
      context.expect(
        machine.state === "stopping" && mainOf(machine).state === "running",
        "a machine whose container still runs to be stopping",
        `it is ${summary(machine)}`,
      );
    },
  },
  {
    name: "stop/ends-every-container",
    needs: ["multi_container"],
    why: "One that is left runs for nobody.",
    async run(context: CheckContext) {
      const { id } = await context.running("", {
        labels: context.labelsOf("every"),
        containers: [context.container(FOREVER), context.container(FOREVER, { name: "second" })],
      });
      const isRunning = ({ state }: { state: string }) => state === "running";
      await context.until(id, "both containers to run", ({ containers }) => containers.every(isRunning));
      await context.stop(id, 0);
      const machine = await context.untilOver(id);
      context.expect(
        machine.containers.every(({ state }) => state === "terminated"),
        "all containers of a stopped machine to have ended",
        `it is ${summary(machine)}`,
      );
    },
  },
  {
    name: "stop/right-after-the-create",
    why: "A pod is deleted before it runs often enough.",
    async run(context: CheckContext) {
      const { id } = await context.create(FOREVER, { labels: context.labelsOf("early") });
      await context.stop(id, 0);
      await context.untilOver(id);
    },
  },
  {
    name: "stop/of-a-tombstone-returns-it",
    why: "The agent that deletes may be a new one, which knows of no deletion.",
    async run(context: CheckContext) {
      const { id } = await context.running(FOREVER);
      await context.delete(id);
      await context.untilDeleted(id);
      const { state } = await context.stop(id, 0);
      context.expect(state === "deleted", "a stop of a deleted machine to return its tombstone", `it is ${state}`);
    },
  },
  {
    name: "delete/returns-at-once",
    why: "The agent has other machines to look after; the tombstone comes when it comes.",
    async run(context: CheckContext) {
      const { id } = await context.saying("ready", STUBBORN, {
        termination_grace_s: 300,
        labels: context.labelsOf("patient"),
      });
      const startedAt = context.clock.monotonic();
      await context.delete(id, false);
      const tookMs = context.clock.monotonic() - startedAt;
      context.expect(
        tookMs < 3000,
        "a delete with 300 s of grace to return at once",
        `it took ${Math.round(tookMs)} ms`,
      );
    },
  },
  {
    name: "delete/is-seen-while-it-lasts",
    why: "A machine that is said to run is started for nobody again.",
    async run(context: CheckContext) {
      const { id } = await context.saying("ready", STUBBORN, {
        termination_grace_s: 60,
        labels: context.labelsOf("deleting"),
      });
      await context.delete(id, false);
      const { state } = await context.until(id, "the state stopping or deleting", (seen) => seen.state !== "running");
      context.expect(state === "stopping" || state === "deleting", "stopping or deleting", `it is ${state}`);
    },
  },
  {
    name: "delete/while-it-lasts-a-create-is-gone",
    why: "The deletion is certain; what is asked for afterwards comes too late.",
    async run(context: CheckContext) {
      const id = context.id();
      const signal = context.signal;
      const spec = context.spec(STUBBORN, { termination_grace_s: 60, labels: context.labelsOf("too-late") });
      await context.provider.createPod(id, spec, { signal });
      await context.until(id, "its main container to run", (machine) => mainOf(machine).state === "running");
      await context.delete(id, false);
      await context.expectCode(
        context.provider.createPod(id, spec, { signal }),
        "gone",
        "a create while it is deleted",
      );
    },
  },
  {
    name: "delete/the-tombstone-stays",
    why: "A create can be on its way for minutes.",
    async run(context: CheckContext) {
      const id = context.id();
      const signal = context.signal;
      const spec = context.spec(FOREVER, { labels: context.labelsOf("late") });
      await context.provider.createPod(id, spec, { signal });
      await context.delete(id);
      await context.untilDeleted(id);
      await context.clock.sleep(4000, signal);
      await context.expectCode(
        context.provider.createPod(id, spec, { signal }),
        "gone",
        "a create 4 s after the machine was deleted",
      );
    },
  },
  {
    name: "delete/the-tombstone-says-when",
    why: "How long it stays is counted from there.",
    async run(context: CheckContext) {
      const { id } = await context.over("exit 0");
      await context.delete(id);
      const { deleted_at } = await context.untilDeleted(id);
      context.expect(deleted_at !== undefined, "deleted_at of a tombstone", "it is missing");
    },
  },
  {
    name: "delete/of-one-leaves-the-others",
    why: "A machine that is lost by another one's deletion is a pod that fails for nothing.",
    async run(context: CheckContext) {
      const stays = await context.running(FOREVER, { labels: context.labelsOf("stays") });
      const goes = await context.running(FOREVER);
      await context.delete(goes.id);
      await context.untilDeleted(goes.id);
      const machine = await context.get(stays.id);
      context.expect(mainOf(machine).state === "running", "the other machine to run on", `it is ${summary(machine)}`);
    },
  },
];
