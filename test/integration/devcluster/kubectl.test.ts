/** What people type first, with the real kubectl: every example applies as it is, and the commands about workloads work. */
import { mkdtemp, readdir, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { startDevCluster, type DevCluster } from "../../../src/devcluster/index.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { createKubectl, type Kubectl } from "../../e2e/harness/kubectl.ts";

const examples = join(import.meta.dirname, "../../../examples");

describe.skipIf(process.arch !== "x64" || process.platform !== "linux")("kubectl on devcluster", () => {
  let cluster: DevCluster;
  let kubectl: Kubectl;
  let dir: string;
  beforeAll(async () => {
    dir = await mkdtemp(join(tmpdir(), "vmlet-devcluster-"));
    cluster = await startDevCluster({ clock: systemClock, logger: silentLogger });
    const kubeconfig = join(dir, "kubeconfig");
    await writeFile(kubeconfig, cluster.kubeConfigYaml, { mode: 0o600 });
    kubectl = await createKubectl(kubeconfig);
  });
  afterAll(async () => {
    await cluster?.close();
    await rm(dir, { recursive: true, force: true });
  });

  test("every example applies unchanged, and applies again", async () => {
    const files = (await readdir(examples)).filter((name) => name.endsWith(".yaml"));
    expect(files.length).toBeGreaterThanOrEqual(8);
    await kubectl.run(["create", "namespace", "examples"]);
    const all = files.flatMap((name) => ["-f", join(examples, name)]);
    expect(await kubectl.run(["apply", "-n", "examples", ...all])).not.toContain("unchanged");
    // Pods have tolerations that admission gave them, and templates of claims defaults in a list that is patched whole:
    // those are "configured", on a real cluster too.
    const again = (await kubectl.run(["apply", "-n", "examples", ...all])).trim().split("\n");
    const changed = again.filter((line) => !line.startsWith("pod/") && !line.endsWith(" unchanged"));
    expect(changed).toEqual(["statefulset.apps/stateful configured"]);
  });

  test("create, scale, autoscale, expose, rollout and delete are known", async () => {
    const run = (command: string) => kubectl.run(command.split(" "));
    await run("create deployment web --image=nginx:1 --replicas=0");
    await run("rollout status deployment/web --timeout=20s");
    await run("set image deployment/web nginx=nginx:2");
    await run("rollout status deployment/web --timeout=20s");
    expect(await run("rollout history deployment/web")).toMatch(/^1 .*\n2 /m);
    await run("rollout undo deployment/web");
    await run("rollout status deployment/web --timeout=20s");
    expect(await run("get deployment web -o jsonpath={.spec.template.spec.containers[0].image}")).toBe("nginx:1");
    await run("rollout restart deployment/web");
    await run("wait --for=condition=Available deployment/web --timeout=20s");
    await run("scale deployment/web --replicas=2");
    await run("autoscale deployment/web --min=1 --max=3");
    await run("wait --for=condition=AbleToScale hpa/web --timeout=20s");
    await run("expose deployment/web --port=80");
    expect(await run("get hpa,service,endpointslices,rs")).toContain("Deployment/web");
    await run("create job once --image=busybox -- true");
    await run("create cronjob tick --image=busybox --schedule=@hourly");
    await run("create job now --from=cronjob/tick");
    await run("delete job/once job/now cronjob/tick --timeout=20s");
    await run("delete deployment/web --cascade=foreground --timeout=20s");
    expect(await run("get pods,rs -o name")).toBe("");
  });

  test.each([
    ["pods", "Pod is a collection of containers that can run on a host."],
    ["deployments.spec.minReadySeconds", "Minimum number of seconds for which a newly created pod should be ready"],
    ["pods.spec.containers.resources", "ResourceRequirements describes the compute resource requirements."],
    ["hpa.spec.maxReplicas", "upper limit for the number of replicas to which the autoscaler can scale up"],
  ])("explain %s has a description", async (path, text) => {
    expect((await kubectl.run(["explain", path])).replaceAll(/\s+/g, " ")).toContain(text);
  });

  test.each([
    ["create quota q --hard=pods=3", "the small cluster of vmlet dev has no resourcequotas; kubectl api-resources"],
    ["create role r --verb=get --resource=pods", "the small cluster of vmlet dev has no roles; "],
    ["get --raw /api/v1/namespaces/default/pods/web:80/proxy/", "passes no requests on to pods; kubectl port-forward"],
  ])("%s is told what is not there", async (command, told) => {
    const { code, stderr } = await kubectl.try(command.split(" "));
    expect(code).not.toBe(0);
    expect(stderr).toContain(told);
  });

  test("explain names types as Kubernetes does, and says what each field is", async () => {
    const told = await kubectl.run(["explain", "pod.spec"]);
    expect(told).toContain("<PodSpec>");
    expect(told).toContain("affinity\t<Affinity>\n    Affinity is a group of affinity scheduling rules.");
    expect(told).not.toContain("<no description>");
  });

  test("a kind that is not there is called by its name", async () => {
    const manifest = join(dir, "widget.yaml");
    await writeFile(manifest, "apiVersion: example.com/v1\nkind: Widget\nmetadata: { name: w }\n");
    const { code, stderr } = await kubectl.try(["apply", "-f", manifest]);
    expect(code).not.toBe(0);
    expect(stderr).toContain('no matches for kind "Widget" in version "example.com/v1"');
  });
});
