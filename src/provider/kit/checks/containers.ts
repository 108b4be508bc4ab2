/** What happens inside a machine and how it is told: exit codes, restarts, init containers, sidecars, images, usage. */
import { fileVersion } from "../../machine.ts";
import type { Check } from "../check.ts";
import { QUICK, FOREVER, containerOf, mainOf, summary, type CheckContext } from "../context.ts";

const probe = (script: string) => ({
  exec: { command: ["sh", "-c", script] },
  initial_delay_s: 0,
  period_s: 1,
  timeout_s: 5,
  success: 1,
  failure: 1,
});

/** What the main container has printed, without the end of the last line. @throws Violation */
async function expectOutput(context: CheckContext, id: string, wanted: string): Promise<void> {
  const text = (await context.logs(id)).map(({ content }) => content.toString()).join("\n");
  context.expect(text === wanted, `the container to print ${wanted}`, `it printed ${JSON.stringify(text)}`);
}

export const CONTAINER_CHECKS: readonly Check[] = [
  {
    name: "containers/exit-codes",
    why: "Jobs and pod failure policies decide by them.",
    async run(context: CheckContext) {
      const [failed, succeeded] = await Promise.all([context.over("exit 3"), context.over("exit 0")]);
      const bad = mainOf(failed).terminated;
      const good = mainOf(succeeded).terminated;
      context.expect(
        bad?.exit_code === 3 && bad.reason === "Error",
        "exit code 3 and reason Error",
        `they are ${bad?.exit_code} and ${bad?.reason}`,
      );
      context.expect(
        good?.exit_code === 0 && good.reason === "Completed",
        "exit code 0 and reason Completed",
        `they are ${good?.exit_code} and ${good?.reason}`,
      );
    },
  },
  {
    name: "containers/environment",
    why: "Configuration comes by it.",
    async run(context: CheckContext) {
      const { id } = await context.over("", {
        containers: [context.container('echo "$GREETING"', { env: [{ name: "GREETING", value: "a b" }] })],
      });
      const text = (await context.logs(id)).map(({ content }) => content.toString()).join();
      context.expect(text === "a b", 'the variable GREETING to be "a b"', `it is "${text}"`);
    },
  },
  {
    name: "containers/all-run",
    needs: ["multi_container"],
    why: "A pod is all of its containers.",
    async run(context: CheckContext) {
      const { id } = await context.create("", {
        containers: [context.container(FOREVER), context.container(FOREVER, { name: "second" })],
      });
      await context.until(
        id,
        "two containers to run",
        (machine) => machine.containers.filter(({ state }) => state === "running").length === 2,
      );
    },
  },
  {
    name: "restart/always-restarts-and-counts",
    why: "A crash loop must be visible as one, and the count is what alerts look at.",
    async run(context: CheckContext) {
      const { id } = await context.create("exit 1", { restart_policy: "always", backoff: QUICK });
      let highest = 0;
      const machine = await context.until(id, "two restarts", (seen) => {
        const { restart_count } = mainOf(seen);
        context.expect(
          restart_count >= highest,
          "a restart count that never falls",
          `it fell from ${highest} to ${restart_count}`,
        );
        highest = restart_count;
        return restart_count >= 2;
      });
      const { last } = mainOf(machine);
      context.expect(
        last?.exit_code === 1,
        "the previous instance's end in `last`",
        `it has exit code ${last?.exit_code}`,
      );
    },
  },
  {
    name: "restart/on-failure-leaves-success-alone",
    why: "A Job's pod that has succeeded must be over.",
    async run(context: CheckContext) {
      const machine = await context.over("exit 0", { restart_policy: "on_failure", backoff: QUICK });
      context.expect(
        mainOf(machine).restart_count === 0,
        "no restart after exit 0",
        `there were ${mainOf(machine).restart_count}`,
      );
    },
  },
  {
    name: "restart/never-means-never",
    why: "A pod that must not run twice must not.",
    async run(context: CheckContext) {
      const machine = await context.over("exit 9", { backoff: QUICK });
      const { restart_count, terminated } = mainOf(machine);
      context.expect(
        restart_count === 0 && terminated?.exit_code === 9,
        "one run that ended with 9",
        `there were ${restart_count} restarts and ${terminated?.exit_code}`,
      );
    },
  },
  {
    name: "init/runs-before-the-main-containers",
    needs: ["init_containers"],
    why: "They prepare what the main containers need.",
    async run(context: CheckContext) {
      const machine = await context.over("exit 0", {
        init_containers: [context.container("sleep 0.5; exit 0", { name: "first" })],
      });
      const first = containerOf(machine, "first").terminated;
      const main = mainOf(machine).terminated;
      context.expect(first?.exit_code === 0, "the init container to have ended with 0", `it is ${summary(machine)}`);
      const inOrder = main?.started_at !== undefined && main.started_at >= first.finished_at;
      context.expect(
        inOrder,
        "the main container to start after the init container's end",
        `it started at ${main?.started_at}, the other ended at ${first.finished_at}`,
      );
    },
  },
  {
    name: "init/failure-ends-the-machine",
    needs: ["init_containers"],
    why: "Main containers must not run unprepared.",
    async run(context: CheckContext) {
      const machine = await context.over("exit 0", {
        init_containers: [context.container("exit 6", { name: "first" })],
      });
      context.expect(
        mainOf(machine).terminated === undefined,
        "the main container never to start when an init container failed",
        `the machine is ${summary(machine)}`,
      );
    },
  },
  {
    name: "sidecars/end-after-the-main-containers",
    needs: ["sidecars"],
    why: "A Job with a sidecar would otherwise never be done.",
    async run(context: CheckContext) {
      const machine = await context.over("exit 0", {
        init_containers: [context.container(FOREVER, { name: "side", restart_policy: "always" })],
      });
      const side = containerOf(machine, "side").terminated;
      const main = mainOf(machine).terminated;
      context.expect(
        main?.exit_code === 0 && side !== undefined,
        "the sidecar to end when the main container is done",
        `the machine is ${summary(machine)}`,
      );
      context.expect(
        side.finished_at >= main.finished_at,
        "the sidecar to end last",
        `it ended at ${side.finished_at}, the main container at ${main.finished_at}`,
      );
    },
  },
  {
    name: "images/a-failed-pull-says-so",
    needs: ["images"],
    why: "It is what users get wrong most often.",
    async run(context: CheckContext) {
      const image = "registry.invalid/vmlet/no-such-image:none";
      const { id } = await context.create("", { containers: [context.container("true", { image })] });
      const reasons = ["ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"];
      await context.until(id, "its container to wait with ErrImagePull or ImagePullBackOff", (machine) => {
        const main = mainOf(machine);
        return main.state === "waiting" && main.reason !== undefined && reasons.includes(main.reason);
      });
    },
  },
  {
    name: "limits/an-out-of-memory-kill-is-told",
    needs: ["resource_limits"],
    why: "OOMKilled is the first thing to look for when a container dies with 137.",
    async run(context: CheckContext) {
      const limits = { memory_bytes: 32 * 1024 * 1024 };
      const machine = await context.over("", {
        resources: { requests: limits, limits },
        containers: [context.container("tail /dev/zero", { resources: { requests: limits, limits } })],
      });
      const end = mainOf(machine).terminated;
      context.expect(
        end?.reason === "OOMKilled" && end.oom_killed === true,
        "reason OOMKilled and oom_killed",
        `they are ${end?.reason} and ${end?.oom_killed}`,
      );
    },
  },
  {
    name: "resize/a-machine-grows-and-shrinks-as-it-runs",
    needs: ["resize_machine"],
    why: "A pod that has resources of its own may change them, and what it has is what its node has given away.",
    async run(context: CheckContext) {
      const amounts = (mib: number) => ({ cpu_millis: mib, memory_bytes: mib * 1024 * 1024 });
      const resources = (mib: number) => ({ requests: amounts(mib), limits: amounts(mib) });
      const before = await context.running(FOREVER, { resources: resources(128) });
      for (const mib of [256, 192]) {
        const machine_resources = resources(mib);
        await context.provider.updatePod?.(before.id, { machine_resources }, { signal: context.signal });
        const machine = await context.until(
          before.id,
          `the machine to show ${mib} MiB and millicores, requested and as limits`,
          ({ resources: { requests, limits } = {} }) =>
            [requests, limits].every((each) => each?.cpu_millis === mib && each.memory_bytes === mib * 1024 * 1024),
        );
        context.expect(
          mainOf(machine).id === mainOf(before).id && mainOf(machine).state === "running",
          "its container to run on",
          `the machine is ${summary(machine)}`,
        );
      }
    },
  },
  {
    name: "containers/working-dir",
    why: "Images and pods name files by paths from there.",
    async run(context: CheckContext) {
      const { id } = await context.over("", {
        containers: [context.container("pwd", { working_dir: "/tmp" })],
      });
      await expectOutput(context, id, "/tmp");
    },
  },
  {
    name: "hostname/is-the-one-asked-for",
    needs: ["hostname"],
    why: "Members of a StatefulSet know by it who they are.",
    async run(context: CheckContext) {
      const { id } = await context.over("hostname", { hostname: "conformance-0" });
      await expectOutput(context, id, "conformance-0");
    },
  },
  {
    name: "security/runs-as-the-user",
    needs: ["security_context"],
    why: "Whoever asks for a user relies on not being root.",
    async run(context: CheckContext) {
      const { id } = await context.over("", {
        containers: [context.container("id -u", { security: { user: 4711 } })],
      });
      await expectOutput(context, id, "4711");
    },
  },
  {
    name: "volumes/an-empty-dir-is-shared",
    needs: ["volumes.empty_dir", "init_containers"],
    why: "Containers hand files to each other by it.",
    async run(context: CheckContext) {
      const mounts = [{ volume: "scratch", path: "/scratch" }];
      const { id } = await context.over("", {
        init_containers: [context.container("echo hello > /scratch/file", { name: "first", mounts })],
        containers: [context.container("cat /scratch/file", { mounts })],
        volumes: [{ name: "scratch", type: "empty_dir", medium: "disk" }],
      });
      await expectOutput(context, id, "hello");
    },
  },
  {
    name: "termination-message/is-told",
    needs: ["termination_message"],
    why: "It is where programs say why they ended.",
    async run(context: CheckContext) {
      const path = "/dev/termination-log";
      const machine = await context.over("", {
        containers: [
          context.container(`echo because > ${path}; exit 3`, { termination_message: { path, policy: "file" } }),
        ],
      });
      const message = mainOf(machine).terminated?.message?.trim();
      context.expect(message === "because", 'the message "because"', `it is ${JSON.stringify(message)}`);
    },
  },
  {
    name: "probes/readiness-decides-ready",
    needs: ["probes"],
    why: "Services send traffic to what is ready.",
    async run(context: CheckContext) {
      const probed = (script: string) =>
        context.create("", { containers: [context.container(FOREVER, { probes: { readiness: probe(script) } })] });
      const [good, bad] = await Promise.all([probed("exit 0"), probed("exit 1")]);
      await context.until(good.id, "its container to be ready", (machine) => mainOf(machine).ready);
      const shown = await context.until(bad.id, "its container to run", (seen) => mainOf(seen).state === "running");
      context.expect(!mainOf(shown).ready, "a container whose readiness probe fails not to be ready", "it is");
    },
  },
  {
    name: "probes/liveness-restarts",
    needs: ["probes"],
    why: "A container that hangs must not hang for ever.",
    async run(context: CheckContext) {
      const { id } = await context.create("", {
        restart_policy: "always",
        backoff: QUICK,
        containers: [context.container(FOREVER, { probes: { liveness: probe("exit 1") } })],
      });
      await context.until(id, "a restart", (machine) => mainOf(machine).restart_count > 0);
    },
  },
  {
    name: "hooks/a-failed-post-start-ends-the-container",
    needs: ["hooks"],
    why: "A container that was not set up must not seem to work.",
    async run(context: CheckContext) {
      const post_start = { exec: { command: ["sh", "-c", "exit 1"] } };
      const machine = await context.over("", {
        containers: [context.container(FOREVER, { hooks: { post_start } })],
      });
      const code = mainOf(machine).terminated?.exit_code;
      context.expect(code !== undefined && code !== 0, "the container to have been ended", `its exit code is ${code}`);
    },
  },
  {
    name: "restart/a-rule-goes-before-the-policy",
    needs: ["restart_rules"],
    why: "Programs ask for another try by an exit code of their own.",
    async run(context: CheckContext) {
      const { id } = await context.create("", {
        backoff: QUICK,
        containers: [
          context.container("exit 42", {
            restart_policy: "never",
            restart_rules: [{ action: "restart", exit_codes: { operator: "in", values: [42] } }],
          }),
        ],
      });
      await context.until(id, "a restart", (machine) => mainOf(machine).restart_count > 0);
    },
  },
  {
    name: "images/a-patch-replaces-the-container",
    needs: ["patch_image"],
    why: "What runs must be what the pod says.",
    async run(context: CheckContext) {
      const before = await context.running(FOREVER);
      const image = "registry.invalid/vmlet/no-such-image:none";
      await context.provider.updatePod?.(
        before.id,
        { containers: [{ name: "main", image }] },
        { signal: context.signal },
      );
      await context.until(before.id, "the container of the former image to end", (machine) => {
        const { id, state } = mainOf(machine);
        return state !== "running" || id !== mainOf(before).id;
      });
    },
  },
  {
    name: "ephemeral/joins-a-running-machine",
    needs: ["ephemeral_containers"],
    why: "`kubectl debug` looks into a pod that runs.",
    async run(context: CheckContext) {
      const { id } = await context.running(FOREVER);
      await context.provider.updatePod?.(
        id,
        { ephemeral_containers: [context.container("exit 7", { name: "debug" })] },
        { signal: context.signal },
      );
      const machine = await context.until(id, "an ephemeral container that has ended", ({ containers }) =>
        containers.some(({ kind, state }) => kind === "ephemeral" && state === "terminated"),
      );
      const { terminated } = containerOf(machine, "debug");
      context.expect(terminated?.exit_code === 7, "exit code 7", `it is ${terminated?.exit_code}`);
      const { state } = mainOf(machine);
      context.expect(state === "running", "the main container to run on", `it is ${state}`);
    },
  },
  {
    name: "address/is-shown-while-running",
    needs: ["pod_ip"],
    why: "Services send traffic to it.",
    async run(context: CheckContext) {
      const machine = await context.running(FOREVER);
      context.expect(machine.addresses.length > 0, "an address", "there is none");
    },
  },
  {
    name: "files/patch-moves-the-version",
    needs: ["volumes.files", "patch_files"],
    why: "The agent learns from it that a changed ConfigMap has arrived.",
    async run(context: CheckContext) {
      const file = (text: string) => [{ path: "a", mode: 0o644, content_b64: Buffer.from(text).toString("base64") }];
      const { id } = await context.running("", {
        containers: [context.container(FOREVER, { mounts: [{ volume: "cfg", path: "/etc/conformance" }] })],
        volumes: [{ name: "cfg", type: "files", version: "v1", files: file("one") }],
      });
      await context.provider.updatePod?.(
        id,
        { files: [{ volume: "cfg", version: "v2", files: file("two") }] },
        { signal: context.signal },
      );
      await context.until(id, "file_versions to have v2 of cfg", (machine) => fileVersion(machine, "cfg") === "v2");
    },
  },
  {
    name: "registry-auth/patch-moves-the-version",
    needs: ["patch_registry_auth"],
    why: "The agent sees from it which credentials a backend has, and gives them again to one that has lost them.",
    async run(context: CheckContext) {
      const auth = [{ registry: "registry.invalid", username: "u", password: "p" }];
      const created = await context.running(FOREVER, { registry_auth: auth, registry_auth_version: "v1" });
      const shown = created.registry_auth_version;
      context.expect(shown === "v1", "registry_auth_version to be v1", `it is ${shown}`);
      await context.provider.updatePod?.(
        created.id,
        { registry_auth: auth, registry_auth_version: "v2" },
        { signal: context.signal },
      );
      await context.until(
        created.id,
        "registry_auth_version to be v2",
        (machine) => machine.registry_auth_version === "v2",
      );
    },
  },
  {
    name: "stats/show-what-runs",
    needs: ["stats"],
    why: "`kubectl top` and autoscaling live on it.",
    async run(context: CheckContext) {
      const { id } = await context.running(FOREVER);
      const sample = async () => {
        const all = (await context.provider.getStats?.({ signal: context.signal, labels: context.labels })) ?? [];
        const found = all.find((stats) => stats.id === id);
        return found?.containers.find(({ name }) => name === "main");
      };
      await context.untilTrue("a sample of the running container", async () => (await sample()) !== undefined);
      const before = (await sample())?.cpu_usage_ns_total ?? NaN;
      const after = (await sample())?.cpu_usage_ns_total ?? NaN;
      context.expect(after >= before, "cpu time that never falls", `it went from ${before} to ${after}`);
    },
  },
  {
    name: "capacity/is-plausible",
    needs: ["capacity"],
    why: "The scheduler sends pods by it.",
    async run(context: CheckContext) {
      const capacity = await context.provider.getCapacity?.({ signal: context.signal });
      const { cpu_millis = 0, memory_bytes = 0 } = capacity?.allocatable ?? {};
      context.expect(
        cpu_millis > 0 && memory_bytes > 0,
        "some cpu and memory",
        `there are ${cpu_millis} millicores and ${memory_bytes} bytes`,
      );
    },
  },
  {
    name: "capacity/tells-each-csi-driver-once",
    needs: ["capacity"],
    why: "The node's CSINode has one entry for a driver: of two, attachers and the scheduler are told any.",
    async run(context: CheckContext) {
      const { csi_drivers = [] } = (await context.provider.getCapacity?.({ signal: context.signal })) ?? {};
      const names = csi_drivers.map(({ name }) => name);
      context.expect(new Set(names).size === names.length, "each driver once", `there are ${names.join(", ")}`);
    },
  },
];
