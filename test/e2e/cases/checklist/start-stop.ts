import { expect } from "vitest";
import { must, waitFor } from "../../harness/wait.ts";
import { freePort } from "../../harness/ports.ts";
import { containerStatus, isReady, serve } from "../pods.ts";
import { condition, type ChecklistCase } from "./case.ts";

/** What the script said; a shell tells of children that were ended with it, too. */
const said = (lines: string[]) => lines.filter((line) => line !== "Terminated");
const quick = { periodSeconds: 1, failureThreshold: 1, timeoutSeconds: 5 };
const test = (path: string) => ({ exec: { command: ["test", "-e", path] } });

export const startStopCases: readonly ChecklistCase[] = [
  {
    ids: ["S01"],
    name: "an init container that fails for good fails its pod, and Initialized says which it was",
    needs: ["init_containers"],
    async run({ create, pods, shell }) {
      await create("uninitialized", {
        restartPolicy: "Never",
        initContainers: [shell("first", "exit 0"), shell("second", "exit 9")],
        containers: [shell("main", "exit 0")],
      });
      const pod = await pods.untilPhase("uninitialized", "Failed");
      expect(condition(pod, "Initialized")).toMatchObject({
        status: "False",
        reason: "ContainersNotInitialized",
        message: "containers with incomplete status: [second]",
      });
      expect(containerStatus(pod, "main").state.waiting.reason).toBe("PodInitializing");
    },
  },
  {
    ids: ["S01"],
    name: "an init container that fails is tried again unless the policy is Never, and the pod stays Pending",
    needs: ["init_containers"],
    async run({ create, pods, shell, file }) {
      const script = `if [ -e ${file("tried")} ]; then exit 0; fi; touch ${file("tried")}; exit 1`;
      await create("retried", {
        restartPolicy: "OnFailure",
        initContainers: [shell("init", script)],
        containers: [shell("main", "exit 0")],
      });
      const pod = await pods.untilPhase("retried", "Succeeded");
      expect(containerStatus(pod, "init").restartCount).toBe(1);
    },
  },
  {
    ids: ["S02"],
    name: "a sidecar is started before the main container, stops after it, and does not keep the pod from completing",
    needs: ["sidecars"],
    async run({ create, pods, shell, file, output }) {
      const log = file("order");
      const side = shell(
        "side",
        `echo side-up >> ${log}; trap 'echo side-down >> ${log}; cat ${log}; exit 0' TERM; while :; do sleep 0.1 & wait $!; done`,
        {
          restartPolicy: "Always",
          startupProbe: { ...test(log), ...quick, failureThreshold: 30 },
          marks: false,
        },
      );
      await create("sidecar", {
        restartPolicy: "Never",
        initContainers: [side],
        containers: [shell("main", `echo main >> ${log}; sleep 1; echo main-end >> ${log}`)],
      });
      const pod = await pods.untilPhase("sidecar", "Succeeded");
      expect(containerStatus(pod, "side").state.terminated.exitCode).toBe(0);
      expect(said(await output("sidecar", "side"))).toEqual(["side-up", "main", "main-end", "side-down"]);
    },
  },
  {
    ids: ["S03"],
    name: "postStart is over before a container counts as running, and preStop before it is told to end",
    needs: ["hooks"],
    async run({ create, pods, shell, file, statuses }) {
      const log = file("hooks");
      const say = (word: string) => ({ exec: { command: ["/bin/sh", "-c", `sleep 0.5; echo ${word} >> ${log}`] } });
      const ended = `[ "$(tr '\\n' ' ' < ${log})" = "postStart preStop " ]; exit $?`;
      const main = shell("main", `leave() { ${ended}; }; trap leave TERM; while :; do sleep 0.1 & wait $!; done`, {
        lifecycle: { postStart: say("postStart"), preStop: say("preStop") },
        marks: false,
      });
      const { metadata } = await create("hooked", { terminationGracePeriodSeconds: 20, containers: [main] });
      await pods.untilReady("hooked");
      await pods.delete("hooked");
      await pods.untilGone("hooked", metadata.uid);
      await waitFor({ what: "the last status to be seen" }, () => {
        const last = statuses("hooked").findLast(
          (status) => containerStatus({ status }, "main").state.terminated !== undefined,
        );
        must(last !== undefined, "no end of the container yet");
        // The program itself has looked: 0 means that both hooks were over when it was told to end.
        expect(containerStatus({ status: last }, "main").state.terminated.exitCode).toBe(0);
      });
    },
  },
  {
    ids: ["S03"],
    name: "a postStart hook that fails kills its container, and says so",
    needs: ["hooks"],
    async run({ create, shell, untilEvent }) {
      const lifecycle = { postStart: { exec: { command: ["false"] } } };
      await create("unhooked", {
        terminationGracePeriodSeconds: 1,
        containers: [shell("main", serve, { lifecycle, marks: false })],
      });
      await untilEvent("unhooked", "FailedPostStartHook", /^PostStartHook failed/);
    },
  },
  {
    ids: ["B01"],
    name: "an http readiness probe decides whether the pod is Ready, both ways",
    needs: ["probes"],
    async run({ create, pods, shell, file, httpd, untilEvent }) {
      const port = await freePort();
      const dir = file("www");
      const script = `mkdir -p ${dir}; (sleep 2; touch ${dir}/ready; sleep 3; rm ${dir}/ready) & exec ${httpd(port, dir)}`;
      await create("served", {
        containers: [
          shell("main", script, {
            marks: false,
            ports: [{ name: "web", containerPort: port }],
            readinessProbe: { httpGet: { path: "/ready", port: "web" }, ...quick },
          }),
        ],
      });
      const unready = await pods.until(
        "served",
        "to run unready",
        (pod) => pod.status.phase === "Running" && !isReady(pod),
      );
      expect(condition(unready, "Ready")).toMatchObject({
        reason: "ContainersNotReady",
        message: "containers with unready status: [main]",
      });
      await pods.untilReady("served");
      await pods.until("served", "to be unready again", (pod) => !isReady(pod));
      await untilEvent("served", "Unhealthy", "Readiness probe failed: HTTP probe failed with statuscode: 404");
    },
  },
  {
    ids: ["B02", "B04"],
    name: "a container whose liveness probe fails is restarted, with kubelet's events",
    needs: ["probes"],
    async run({ create, pods, shell, file, untilEvent }) {
      const main = shell("main", `touch ${file("alive")}; (sleep 2; rm -f ${file("alive")}) & ${serve}`, {
        livenessProbe: { ...test(file("alive")), ...quick, failureThreshold: 2 },
        marks: false,
      });
      await create("dies", { terminationGracePeriodSeconds: 1, containers: [main] });
      const pod = await pods.until(
        "dies",
        "to be restarted",
        (each) => (containerStatus(each, "main")?.restartCount ?? 0) > 0,
      );
      expect(pod.status.phase).toBe("Running");
      await untilEvent("dies", "Unhealthy", /^Liveness probe failed: /);
      const killing = await untilEvent("dies", "Killing", "Container main failed liveness probe, will be restarted");
      expect(killing.involvedObject.fieldPath).toBe("spec.containers{main}");
    },
  },
  {
    ids: ["B03"],
    name: "until the startup probe has passed, no other probe counts and the container is not started",
    needs: ["probes"],
    async run({ create, pods, shell, file }) {
      const main = shell("main", `sleep 3; touch ${file("up")}; ${serve}`, {
        startupProbe: { ...test(file("up")), ...quick, failureThreshold: 30 },
        // It would have killed the container long before the startup probe passes.
        livenessProbe: { ...test(file("up")), ...quick },
        marks: false,
      });
      await create("starts", { containers: [main] });
      const early = await pods.until(
        "starts",
        "to run",
        (pod) => containerStatus(pod, "main")?.state.running !== undefined,
      );
      expect(containerStatus(early, "main")).toMatchObject({ started: false, ready: false });
      const late = await pods.untilReady("starts");
      expect(containerStatus(late, "main")).toMatchObject({ started: true, restartCount: 0 });
    },
  },
  {
    ids: ["B04"],
    name: "a tcp probe to a port where nobody listens fails in kubelet's words",
    needs: ["probes"],
    async run({ create, shell, untilEvent }) {
      const port = await freePort();
      await create("deaf", {
        containers: [shell("main", serve, { readinessProbe: { tcpSocket: { port }, ...quick } })],
      });
      await untilEvent(
        "deaf",
        "Unhealthy",
        /^Readiness probe failed: dial tcp [\d.]+:\d+: connect: connection refused$/,
      );
    },
  },
  {
    ids: ["B04"],
    name: "a command that does not answer in time fails its probe",
    needs: ["probes"],
    async run({ create, shell, untilEvent }) {
      const readinessProbe = { exec: { command: ["sleep", "30"] }, ...quick, timeoutSeconds: 1 };
      await create("slow", { containers: [shell("main", serve, { readinessProbe, marks: false })] });
      await untilEvent("slow", "Unhealthy", /^Readiness probe failed: command "sleep 30" timed out/);
    },
  },
  {
    ids: ["B06"],
    name: "a probe's own grace period replaces the pod's when it kills",
    needs: ["probes"],
    async run({ create, pods, shell }) {
      // It fails once the signal is refused, and no sooner: a slow host takes its time until the shell runs.
      const failing = { exec: { command: ["sh", "-c", '[ ! -e "$HOME/deaf" ]'] }, ...quick };
      const main = shell("main", "trap '' TERM; : >\"$HOME/deaf\"; while :; do sleep 0.2; done", {
        livenessProbe: { ...failing, terminationGracePeriodSeconds: 1 },
        marks: false,
      });
      await create("graced", { terminationGracePeriodSeconds: 600, containers: [main] });
      const pod = await pods.until(
        "graced",
        "to be restarted",
        (each) => (containerStatus(each, "main")?.restartCount ?? 0) > 0,
      );
      expect(containerStatus(pod, "main").lastState.terminated.exitCode).toBe(137);
    },
  },
  {
    ids: ["B07"],
    name: "readiness is still asked for while a pod is being stopped",
    needs: ["probes"],
    async run({ create, pods, shell, file }) {
      const flag = file("ready");
      const main = shell(
        "main",
        `touch ${flag}; trap 'rm -f ${flag}' TERM; while [ -e ${flag} ]; do sleep 0.1 & wait $!; done; while [ ! -e ${flag}-end ]; do sleep 0.1; done`,
        {
          readinessProbe: { ...test(flag), ...quick },
          marks: false,
        },
      );
      const { metadata } = await create("leaves", { terminationGracePeriodSeconds: 15, containers: [main] });
      await pods.untilReady("leaves");
      await pods.delete("leaves");
      const pod = await pods.until("leaves", "to be unready while it stops", (each) => !isReady(each));
      expect(pod.metadata.deletionTimestamp).toBeDefined();
      expect(containerStatus(pod, "main").state.running).toBeDefined();
      await pods.delete("leaves", 1);
      await pods.untilGone("leaves", metadata.uid);
    },
  },
  {
    ids: ["B01", "B07"],
    name: "endpoints of a service follow the readiness of its pods",
    needs: ["probes"],
    needsControllers: true,
    async run({ env, create, pods, shell, file }) {
      const slices = `/apis/discovery.k8s.io/v1/namespaces/${pods.namespace}/endpointslices`;
      await env.client.create(`/api/v1/namespaces/${pods.namespace}/services`, {
        metadata: { name: "web" },
        spec: { selector: { app: "web" }, ports: [{ port: 80 }] },
      });
      const main = shell("main", `(sleep 2; touch ${file("up")}) & ${serve}`, {
        readinessProbe: { ...test(file("up")), ...quick },
        marks: false,
      });
      await create("web", { containers: [main] }, { labels: { app: "web" } });
      const endpoint = (ready: boolean) =>
        waitFor({ what: `an endpoint that is ${ready ? "" : "not "}ready`, timeoutMs: 60_000 }, async () => {
          const { items } = await env.client.get(slices);
          const all = items.flatMap((slice: any) => slice.endpoints ?? []);
          must(all.length === 1 && all[0].conditions.ready === ready, all);
        });
      await endpoint(false);
      await endpoint(true);
    },
  },
  {
    ids: ["I03"],
    name: "each start is told by events in kubelet's order, at the container",
    async run({ create, pods, shell, events, untilEvent }) {
      await create("told", { containers: [shell("main", serve)] });
      await pods.untilReady("told");
      const created = await untilEvent("told", "Created", "Container created");
      const started = await untilEvent("told", "Started", "Container started");
      for (const event of [created, started])
        expect(event).toMatchObject({ type: "Normal", involvedObject: { fieldPath: "spec.containers{main}" } });
      expect(
        (await events("told"))
          .filter(({ type }) => type === "Warning")
          .map(({ reason }) => reason)
          .filter((reason) => reason !== "ServiceAccountVolumeOmitted" && reason !== "MissingClusterDNS"),
      ).toEqual([]);
    },
  },
  {
    ids: ["I01", "I03"],
    name: "an image that cannot be had keeps the container waiting, first with the error, then with the back-off",
    needs: ["images"],
    async run({ create, pods, shell, image, untilEvent }) {
      const missing = `${image}-missing`;
      await create("imageless", { containers: [shell("main", serve, { image: missing })] });
      await pods.until(
        "imageless",
        "to fail to pull",
        (pod) => containerStatus(pod, "main")?.state.waiting?.reason === "ErrImagePull",
      );
      const pod = await pods.until(
        "imageless",
        "to back off",
        (each) => containerStatus(each, "main").state.waiting.reason === "ImagePullBackOff",
      );
      expect(containerStatus(pod, "main").state.waiting.message).toMatch(
        new RegExp(`^Back-off pulling image "${missing}": ErrImagePull: `),
      );
      await untilEvent("imageless", "Pulling", `Pulling image "${missing}"`);
      await untilEvent("imageless", "Failed", new RegExp(`^Failed to pull image "${missing}": `));
      await untilEvent("imageless", "Failed", "Error: ErrImagePull");
      await untilEvent("imageless", "BackOff", `Back-off pulling image "${missing}"`);
    },
  },
  {
    ids: ["I01"],
    name: "a pod whose image is corrected runs",
    needs: ["images", "patch_image"],
    async run({ env, create, pods, shell, image }) {
      await create("corrected", { containers: [shell("main", serve, { image: `${image}-missing` })] });
      await pods.until("corrected", "to wait for its image", (pod) =>
        /ErrImagePull|ImagePullBackOff/.test(containerStatus(pod, "main")?.state.waiting?.reason),
      );
      await env.client.patch(
        `${pods.path}/corrected`,
        { spec: { containers: [{ name: "main", image }] } },
        "application/strategic-merge-patch+json",
      );
      const pod = await pods.untilReady("corrected");
      expect(containerStatus(pod, "main").restartCount).toBe(0);
    },
  },
  ...(["pod", "service account"] as const).map((owner): ChecklistCase => ({
    ids: ["I02"],
    name: `an image that is not for everybody is pulled with the secret of the pod's ${owner === "pod" ? "own spec" : owner}`,
    needs: ["images", "registry_auth"],
    async run({ env, create, pods, shell, privateImage, make }) {
      const { image, user } = privateImage!;
      const auths = { [image.slice(0, image.indexOf("/"))]: { username: user.name, password: user.password } };
      const data = { ".dockerconfigjson": Buffer.from(JSON.stringify({ auths })).toString("base64") };
      const container = shell("main", serve, { image, imagePullPolicy: "Always" });
      await create("without", { containers: [container] });
      await pods.until("without", "to be refused the image", (pod) =>
        /ErrImagePull|ImagePullBackOff/.test(containerStatus(pod, "main")?.state.waiting?.reason),
      );
      await make("secrets", "pull", { type: "kubernetes.io/dockerconfigjson", data });
      const imagePullSecrets = [{ name: "pull" }];
      if (owner === "service account") {
        await env.client.patch(`/api/v1/namespaces/${pods.namespace}/serviceaccounts/default`, { imagePullSecrets });
        // An API server gives pods what it has seen of the account by a watch of its own.
        await waitFor({ what: "the API server to give pods the account's pull secret" }, async () => {
          const trial = { metadata: { name: "trial" }, spec: { containers: [{ name: "main", image }] } };
          const pod = await env.client.create(`/api/v1/namespaces/${pods.namespace}/pods?dryRun=All`, trial);
          must(pod.spec.imagePullSecrets?.length === 1, pod.spec);
        });
      }
      await create("with", { ...(owner === "pod" && { imagePullSecrets }), containers: [container] });
      await pods.untilReady("with");
    },
  })),
  {
    ids: ["I02"],
    name: "a pull secret that is missing is told by an event and does not keep a pod from running",
    needs: ["images", "registry_auth"],
    async run({ create, pods, shell, untilEvent }) {
      await create("unkeyed", { imagePullSecrets: [{ name: "none" }], containers: [shell("main", serve)] });
      await pods.untilReady("unkeyed");
      await untilEvent(
        "unkeyed",
        "FailedToRetrieveImagePullSecret",
        "Unable to retrieve some image pull secrets (none); attempting to pull the image may not succeed.",
      );
    },
  },
  {
    ids: ["I04"],
    name: "an image that must not be pulled and is not there is ErrImageNeverPull",
    needs: ["images"],
    async run({ create, pods, shell, image }) {
      await create("never", {
        containers: [shell("main", serve, { image: `${image}-absent`, imagePullPolicy: "Never" })],
      });
      const pod = await pods.until(
        "never",
        "to say so",
        (each) => containerStatus(each, "main")?.state.waiting?.reason === "ErrImageNeverPull",
      );
      expect(containerStatus(pod, "main").state.waiting.message).toBe(
        `Container image "${image}-absent" is not present with pull policy of Never`,
      );
    },
  },
  {
    ids: ["I04"],
    name: "a name that no image can have is InvalidImageName",
    needs: ["images"],
    async run({ create, pods, shell }) {
      await create("misnamed", { containers: [shell("main", serve, { image: "Not/An:Image:Name" })] });
      await pods.until(
        "misnamed",
        "to say so",
        (each) => containerStatus(each, "main")?.state.waiting?.reason === "InvalidImageName",
      );
    },
  },
];
