/** What a container's process is given, and what its machine tells of it. */
import type { Check } from "../check.ts";
import { FOREVER, containerOf, mainOf, outputOf, summary, type CheckContext } from "../context.ts";

/** @param shown what `env` printed */
export function expectPathAndHome(context: CheckContext, shown: string): void {
  const lines = shown.split("\n");
  for (const name of ["PATH", "HOME"]) {
    const line = lines.find((each) => each.startsWith(`${name}=`));
    context.expect(
      line?.startsWith(`${name}=/`) === true,
      `the variable ${name}, which the specification lacks, with an absolute path`,
      `it is ${line ?? "not set"}`,
    );
  }
}

export const PROCESS_CHECKS: readonly Check[] = [
  {
    name: "containers/run-and-print",
    why: "It is what nearly every other check begins with.",
    async run(context: CheckContext) {
      const { id } = await context.over("echo conformance");
      const shown = await outputOf(context, id);
      context.expect(
        shown === "conformance",
        "a container to print a line and end",
        `it printed ${JSON.stringify(shown)}`,
      );
    },
  },
  {
    name: "containers/args-follow-the-command",
    why: "Without them every pod that has `args` runs something else than it says.",
    async run(context: CheckContext) {
      const { id } = await context.over("", {
        containers: [{ ...context.container(""), command: ["printf", "%s,"], args: ["one", "two words"] }],
      });
      const shown = await outputOf(context, id);
      context.expect(shown === "one,two words,", "printf to get both arguments as they are", `it printed ${shown}`);
    },
  },
  {
    name: "containers/environment-is-exact",
    why: "Certificates, keys and JSON are passed by it.",
    async run(context: CheckContext) {
      const value = "a=b \"c\" 'd'\n$HOME é\n  e";
      const { id } = await context.over("", {
        containers: [context.container('printf %s "$EXACT"', { env: [{ name: "EXACT", value }] })],
      });
      const shown = await outputOf(context, id);
      context.expect(
        shown === value,
        `the variable to be ${JSON.stringify(value)}, nothing expanded`,
        `it is ${JSON.stringify(shown)}`,
      );
    },
  },
  {
    name: "containers/environment-has-empty-values",
    why: "A variable that is set and empty is something else than one that is not set.",
    async run(context: CheckContext) {
      const { id } = await context.over("", {
        containers: [context.container("env", { env: [{ name: "NOTHING", value: "" }] })],
      });
      const shown = (await outputOf(context, id)).split("\n");
      context.expect(shown.includes("NOTHING="), "the variable NOTHING, empty", "the environment lacks it");
    },
  },
  {
    name: "containers/environment-has-PATH-and-HOME",
    why: "Programs are found by the one, and keep their files by the other; without them many do not even begin.",
    async run(context: CheckContext) {
      const { id } = await context.over("env");
      expectPathAndHome(context, await outputOf(context, id));
    },
  },
  {
    name: "containers/environment-may-have-its-own-PATH-and-HOME",
    why: "What the specification says goes before what a backend gives.",
    async run(context: CheckContext) {
      const given = { PATH: "/conformance/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", HOME: "/conformance" };
      const env = Object.entries(given).map(([name, value]) => ({ name, value }));
      const { id } = await context.over("", { containers: [context.container("env", { env })] });
      const shown = (await outputOf(context, id)).split("\n");
      for (const [name, value] of Object.entries(given)) {
        const line = shown.find((each) => each.startsWith(`${name}=`));
        context.expect(line === `${name}=${value}`, `${name} to be ${value}, as given`, `it is ${line ?? "not set"}`);
      }
    },
  },
  {
    name: "containers/input-is-empty",
    why: "A program that reads what nobody sends would wait for ever.",
    async run(context: CheckContext) {
      const { id } = await context.over("cat; echo ended");
      const shown = await outputOf(context, id);
      context.expect(shown === "ended", "the input to be at its end at once", `it printed ${JSON.stringify(shown)}`);
    },
  },
  {
    name: "containers/what-cannot-start-has-failed",
    why: "A typing error in a command must show as a failed pod, not as one that never comes.",
    async run(context: CheckContext) {
      const { id } = await context.create("", {
        containers: [{ ...context.container(""), command: ["/nonexistent/conformance"] }],
      });
      const main = mainOf(await context.untilOver(id));
      const code = main.terminated?.exit_code ?? 0;
      context.expect(
        code >= 126 && code <= 128,
        "a command that does not exist to end with 126, 127 or 128",
        `the container is ${main.state} with ${main.terminated?.exit_code}`,
      );
    },
  },
  {
    name: "containers/what-ended-is-not-ready",
    why: "Traffic would be sent to what is no more.",
    async run(context: CheckContext) {
      const main = mainOf(await context.over("exit 0"));
      context.expect(!main.ready, "a main container that has ended not to be ready", "it is");
    },
  },
  {
    name: "containers/end-after-they-started",
    why: "How long a Job took is the difference of the two.",
    async run(context: CheckContext) {
      const end = mainOf(await context.over("sleep 0.3; exit 0")).terminated;
      const started = end?.started_at;
      context.expect(started !== undefined, "`terminated.started_at` of a container that ran", "it is missing");
      context.expect(
        Date.parse(end!.finished_at) - Date.parse(started) >= 200,
        "`finished_at` to be 0.3 s after `started_at`",
        `they are ${end!.finished_at} and ${started}`,
      );
    },
  },
  {
    name: "containers/say-since-when-they-run",
    why: "The age in `kubectl describe` and every uptime come from it.",
    async run(context: CheckContext) {
      const main = mainOf(await context.running(FOREVER));
      context.expect(main.started_at !== undefined, "`started_at` of a container that runs", "it is missing");
    },
  },
  {
    name: "containers/kinds-are-told",
    needs: ["init_containers"],
    why: "A pod's status has init containers and main ones apart.",
    async run(context: CheckContext) {
      const machine = await context.over("exit 0", {
        init_containers: [context.container("exit 0", { name: "first" })],
        labels: context.labelsOf("kinds"),
      });
      const kinds = `${containerOf(machine, "first").kind} ${mainOf(machine).kind}`;
      context.expect(kinds === "init main", "the kinds init and main", `they are ${kinds}`);
    },
  },
  {
    name: "containers/one-that-fails-leaves-the-others",
    needs: ["multi_container"],
    why: "A machine is over when all of its main containers are.",
    async run(context: CheckContext) {
      const { id } = await context.create("", {
        labels: context.labelsOf("others"),
        containers: [context.container(FOREVER), context.container("exit 1", { name: "second" })],
      });
      const machine = await context.until(
        id,
        "its second container to end while the first runs",
        (seen) => containerOf(seen, "second").state === "terminated",
      );
      context.expect(
        mainOf(machine).state === "running" && machine.state === "running",
        "the other container, and so the machine, to run on",
        `it is ${summary(machine)}`,
      );
    },
  },
  {
    name: "machine/runs-when-its-containers-do",
    why: "A pod is Running by it.",
    async run(context: CheckContext) {
      const { id } = await context.running(FOREVER);
      await context.until(id, "the state running, as its container runs", ({ state }) => state === "running");
    },
  },
  {
    name: "machine/is-reachable",
    why: "`unknown` tells users that nothing is known of their pod.",
    async run(context: CheckContext) {
      const { reachability } = await context.running(FOREVER);
      context.expect(reachability === "ok", "a machine that runs to be reachable", `it is ${reachability}`);
    },
  },
  {
    name: "machine/its-sandbox-is-ready",
    why: "The pod's condition PodReadyToStartContainers is this.",
    async run(context: CheckContext) {
      const { sandbox_ready } = await context.running(FOREVER);
      context.expect(sandbox_ready, "`sandbox_ready` of a machine whose container runs", "it is false");
    },
  },
  {
    name: "machine/keeps-its-labels",
    why: "Whose a machine is, they say for its whole life.",
    async run(context: CheckContext) {
      const labels = { ...context.labels, "a/b": "größe = 2 €", empty: "" };
      const machine = await context.over("exit 0", { labels });
      const shown = machine.labels;
      const isSame = Object.entries(labels).every(([key, value]) => shown[key] === value);
      context.expect(
        isSame && Object.keys(shown).length === Object.keys(labels).length,
        `the labels ${JSON.stringify(labels)}`,
        `they are ${JSON.stringify(machine.labels)}`,
      );
    },
  },
  {
    name: "machine/keeps-its-time-of-birth",
    why: "A machine that seems newer than it is looks like another one.",
    async run(context: CheckContext) {
      const created = await context.running(FOREVER);
      await context.stop(created.id, 0);
      const over = await context.untilOver(created.id);
      context.expect(
        over.created_at === created.created_at,
        `created_at to stay ${created.created_at}`,
        `it is ${over.created_at}`,
      );
    },
  },
  {
    name: "machine/revision-grows",
    why: "Events and lists are ordered by it.",
    async run(context: CheckContext) {
      const machine = await context.running(FOREVER);
      await context.stop(machine.id, 0);
      const { revision } = await context.untilOver(machine.id);
      context.expect(revision > machine.revision, `a revision above ${machine.revision}`, `it is ${revision}`);
    },
  },
  {
    name: "machine/a-look-changes-nothing",
    why: "A version that grows by itself makes every look a change, and every change work.",
    async run(context: CheckContext) {
      const { id } = await context.over("exit 0");
      const first = await context.settled(id);
      const second = await context.get(id);
      context.expect(
        second.version === first.version,
        `version ${first.version} again, as nothing has happened`,
        `it is ${second.version}`,
      );
    },
  },
  {
    name: "delete/has-time-when-no-grace-is-named",
    why: "A database that is killed in the middle of its last writes has to mend its files.",
    async run(context: CheckContext) {
      const script = "trap 'sleep 4; exit 37' TERM; echo ready; while true; do sleep 0.1; done";
      const { termination_grace_s: _, ...spec } = context.spec(script, { labels: context.labelsOf("no-grace") });
      const { id } = await context.provider.createPod(context.id(), spec, { signal: context.signal });
      await context.until(id, "its main container to run", (machine) => mainOf(machine).state === "running");
      await context.untilLogged(id, "ready");
      await context.delete(id, false);
      const code = mainOf(await context.untilDeleted(id)).terminated?.exit_code;
      context.expect(
        code === 37,
        "the 30 s of a machine without termination_grace_s to be enough for a container that takes 4 s to end, with 37",
        `it ended with ${code}`,
      );
    },
  },
  {
    name: "delete/no-create-comes-in-between",
    why: "Between a machine's end and its tombstone there must be no moment in which a late create brings it back.",
    async run(context: CheckContext) {
      const id = context.id();
      const signal = context.signal;
      const spec = context.spec("trap 'exit 5' TERM; while true; do sleep 0.1; done", {
        termination_grace_s: 20,
        labels: context.labelsOf("in-between"),
      });
      await context.provider.createPod(id, spec, { signal });
      await context.until(id, "its main container to run", (machine) => mainOf(machine).state === "running");
      await context.delete(id, false);
      await context.untilTrue("the machine to be deleted", async () => {
        const { state } = await context.provider.getPod(id, { signal });
        const call = context.provider.createPod(id, spec, { signal });
        await context.expectCode(call, "gone", `a create of a machine that was ${state} after its DELETE`);
        return state === "deleted";
      });
    },
  },
];
