/**
 * What a user, a dashboard and an operator do with a node's kubelet, through the real API server: logs, exec, attach, cp,
 * port-forward, and who may. Names end in the ids of the checklist that they cover.
 */
import { copyFile, mkdir } from "node:fs/promises";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { SpdyClient } from "../unit/streaming/spdy-client.ts";
import { Pods, serve, shell } from "./cases/pods.ts";
import { startRealEnvironment } from "./cases/start.ts";
import { scratch, workload } from "./cases/workload.ts";
import { hostAddress, startAgent } from "./harness/agent.ts";
import { createAuthority, type KeyPair } from "./harness/certs.ts";
import { createKubectl, type Kubectl } from "./harness/kubectl.ts";
import { must, waitFor } from "./harness/wait.ts";
import { createStreamPods, describeStreams, type StreamPods } from "./kubectl-stream-cases.ts";
import {
  approveServingCertificate,
  ask,
  ChannelClient,
  responseStart,
  roundTrip,
  servedCertificate,
  startForward,
  startKubectl,
  proxiedWebSockets,
  transports,
  upgradeToSpdy,
  versions,
  type Endpoint,
  type Identity,
  type RunningKubectl,
  type Transport,
} from "./kubectl-support.ts";

let env: Awaited<ReturnType<typeof startRealEnvironment>>;
let kubectl: Kubectl;
let pods: Pods;
let on: StreamPods;
/** A member of system:masters, as kube-apiserver's own kubelet client is. */
let admin: KeyPair;
let api: Endpoint;
let kubelet: Endpoint;
/** Sessions that are opened first and used last. */
let silent: { transport: Transport; session: RunningKubectl }[];

beforeAll(async () => {
  // Without a taint, so that `kubectl run` needs no overrides.
  env = await startRealEnvironment({ nodeName: "vmlet-kubectl", node: { taints: [] } });
  kubectl = await createKubectl(env.kubeconfig);
  pods = new Pods(env.client, "default", env.nodeName);
  admin = await env.cluster.clientCertificate("kubectl-admin", ["system:masters"]);
  api = { url: env.cluster.url, caFile: env.cluster.caFile };
  kubelet = { url: `https://${hostAddress()}:${env.agent.kubeletPort}`, caFile: env.cluster.caFile };
  const approved = approveServingCertificate(kubectl, env.client, kubelet);
  on = await createStreamPods(env);
  await approved;
  silent = await Promise.all(
    transports.map(async (transport) => {
      const kubectl = await createKubectl(env.kubeconfig, "current", transport === "WebSocket");
      return { transport, session: startKubectl(kubectl, ["exec", "-i", on.shell, "-c", "main", "--", "cat"]) };
    }),
  );
}, 1_200_000);
afterAll(() => env?.[Symbol.asyncDispose]());

const podLog = (name: string, query = "") => `/api/v1/namespaces/default/pods/${name}/log?${query}`;
const podExec = (name: string, command: string[], query: string) =>
  `/api/v1/namespaces/default/pods/${name}/exec?container=main&${command.map((word) => `command=${encodeURIComponent(word)}`).join("&")}&${query}`;

const variants = versions.flatMap((version) => transports.map((transport) => ({ version, transport })));
for (const variant of variants) {
  // The large transfers take their time, and what carries them is the transport, not kubectl's version.
  const { version, transport } = variant;
  describeStreams(variant, () => ({ env, on }), {
    copyMiB: version === "current" ? 100 : 5,
    largeReadMiB: version === "old" ? 0 : transport === "WebSocket" ? 1024 : 256,
  });
}

describe.each(versions)("kubectl (%s) logs", (version) => {
  const name = (base: string) => `${base}-${version}`;
  let kubectl: Kubectl;
  beforeAll(async () => {
    kubectl = await createKubectl(env.kubeconfig, version);
  });

  test("prints both outputs, the last lines, the first bytes, and those since a time [L01]", async () => {
    const script = "echo one; echo two >&2; sleep 2.1; echo three; echo four";
    await pods.create(name("writes"), { restartPolicy: "Never", containers: [shell("main", script)] });
    await pods.untilPhase(name("writes"), "Succeeded");
    const logs = (...options: string[]) => kubectl.run(["logs", name("writes"), ...options]);
    expect((await logs()).split("\n").toSorted()).toEqual(["", "four", "one", "three", "two"]);
    expect(await logs("--tail=1")).toBe("four\n");
    expect(await logs("--tail=0")).toBe("");
    expect((await logs("--limit-bytes=6")).length).toBe(6);
    const [, , third] = (await logs("--timestamps")).split("\n");
    expect(await logs(`--since-time=${third!.split(" ")[0]}`)).toBe("three\nfour\n");
    expect(await logs("--since=1h")).toContain("one\n");
  });

  test("--follow ends with the container [L01 L03]", async () => {
    await pods.create(name("counts"), {
      restartPolicy: "Never",
      containers: [shell("main", "for i in 1 2 3; do echo $i; sleep 0.5; done")],
    });
    await pods.until(name("counts"), "to have started", (pod) => pod.status.phase !== "Pending");
    expect(await kubectl.run(["logs", "-f", name("counts")])).toBe("1\n2\n3\n");
  });

  test("--previous prints the output of the instance before [L01]", async () => {
    const { dir, pod: volumes, container: mounts } = scratch(env.dir);
    const file = join(dir, name("second-try"));
    const script = `if [ -e ${file} ]; then echo second; ${serve}; else touch ${file}; echo first; exit 1; fi`;
    await pods.create(name("restarts"), { ...volumes, containers: [shell("main", script, mounts)] });
    await pods.until(name("restarts"), "to run again", (pod) => pod.status.containerStatuses?.[0]?.restartCount === 1);
    expect(await kubectl.run(["logs", "--previous", name("restarts")])).toBe("first\n");
  });

  test("of a Job are there after its end [L02]", async () => {
    await kubectl.run(["create", "job", name("job"), `--image=${workload().image}`, "--", "sh", "-c", "echo done"]);
    await kubectl.run(["wait", `job/${name("job")}`, "--for=condition=Complete", "--timeout=60s"]);
    expect(await kubectl.run(["logs", `job/${name("job")}`])).toBe("done\n");
  });
});

describe("logs", () => {
  test("of a silent container connect at once [L03]", async () => {
    const started = performance.now();
    expect(await responseStart(api, podLog("shell", "container=main&follow=true"), admin)).toBe(200);
    expect(performance.now() - started).toBeLessThan(5_000);
  });

  test("have nine digits of a second in every time, and exactly as many bytes as asked for [L05]", async () => {
    await pods.create("times", { restartPolicy: "Never", containers: [shell("main", "seq 1 200")] });
    await pods.untilPhase("times", "Succeeded");
    const lines = (await env.client.text(podLog("times", "timestamps=true"))).trimEnd().split("\n");
    expect(lines).toHaveLength(200);
    for (const line of lines) expect(line).toMatch(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z \d+$/);
    expect(await env.client.text(podLog("times", "timestamps=true&limitBytes=77"))).toBe(
      `${lines.join("\n")}\n`.slice(0, 77),
    );
  });

  test("are followed through the rotation of their files without a gap [L06]", async () => {
    // 25 MiB against files of 10 MiB: two rotations. The writer waits for nobody, but no faster than a reader can be.
    const line = "x".repeat(1000);
    const script = `i=0; while [ $i -lt 250 ]; do seq $((i * 100 + 1)) $((i * 100 + 100)) | sed 's/$/ ${line}/'; i=$((i + 1)); sleep 0.02; done`;
    await pods.create("rotates", { restartPolicy: "Never", containers: [shell("main", script)] });
    await pods.until("rotates", "to have started", (pod) => pod.status.phase !== "Pending");
    const output = await kubectl.run(["logs", "-f", "rotates"]);
    const numbers = output
      .trimEnd()
      .split("\n")
      .map((each) => Number(each.split(" ")[0]));
    expect(numbers).toEqual(Array.from({ length: 25_000 }, (_, index) => index + 1));
  });

  describe("that cannot be had", () => {
    beforeAll(async () => {
      await pods.create("waits", {
        initContainers: [shell("first", serve)],
        containers: [shell("main", "true")],
      });
      await pods.until(
        "waits",
        "to run its init container",
        (pod) => pod.status.initContainerStatuses?.[0]?.state?.running,
      );
    });

    test.each([
      ["nowhere", "main", "", 404, 'pod "nowhere" does not exist'],
      ["shell", "nothing", "", 404, 'container "nothing" not found in pod "shell"'],
      ["waits", "main", "", 400, 'container "main" in pod "waits" is waiting to start: PodInitializing'],
      ["shell", "main", "previous=true", 400, 'previous terminated container "main" in pod "shell" not found'],
      ["shell", "main", "tailLines=-1", 422, '{"message": "Invalid request."}'],
      ["shell", "main", "tailLines=many", 400, '{"message": "Unable to decode query."}'],
      ["shell", "main", "limitBytes=0", 422, '{"message": "Invalid request."}'],
      ["shell", "main", "sinceSeconds=1&sinceTime=2026-01-01T00:00:00Z", 422, '{"message": "Invalid request."}'],
    ])("are refused as a kubelet refuses them: %s/%s?%s [L04]", async (pod, container, query, status, body) => {
      const reply = await ask(kubelet, `/containerLogs/default/${pod}/${container}?${query}`, { as: admin });
      expect({ ...reply, body: reply.body.trim() }).toEqual({ status, body });
    });

    test("say why to kubectl [L04]", async () => {
      const { code, stderr } = await kubectl.try(["logs", "waits", "-c", "main"]);
      expect(code).toBe(1);
      expect(stderr).toContain('container "main" in pod "waits" is waiting to start: PodInitializing');
    });
  });
});

describe("a WebSocket client of the API server", () => {
  test.each([
    ["v5.channel.k8s.io", true],
    ["v4.channel.k8s.io", true],
    ["v4.base64.channel.k8s.io", true],
    ["channel.k8s.io", false],
    ["base64.channel.k8s.io", false],
  ])("runs a command over %s [X08]", async (protocol, withStatus) => {
    const path = podExec(
      "shell",
      ["sh", "-c", "read -r line; echo got $line; echo problem >&2; exit 5"],
      "stdin=true&stdout=true&stderr=true",
    );
    const client = await ChannelClient.open(api, path, protocol, admin);
    expect(client.protocol).toBe(protocol);
    client.send(0, "typed\n");
    await client.closed;
    expect([client.text(1), client.text(2)]).toEqual(["got typed\n", "problem\n"]);
    if (withStatus) expect(JSON.parse(client.text(3)).details.causes).toEqual([{ reason: "ExitCode", message: "5" }]);
    else expect(client.text(3)).toContain("5");
  });

  test("ends the input of its command by closing the channel in v5 [X03]", async () => {
    const client = await ChannelClient.open(
      api,
      podExec("shell", ["cat"], "stdin=true&stdout=true"),
      "v5.channel.k8s.io",
      admin,
    );
    client.send(0, "all");
    client.closeChannel(0);
    await client.closed;
    expect(client.text(1)).toBe("all");
    expect(JSON.parse(client.text(3)).status).toBe("Success");
  });

  test("has a hundred sessions at a time [X12]", async () => {
    const path = podExec("shell", ["cat"], "stdin=true&stdout=true");
    const clients = await Promise.all(
      Array.from({ length: 100 }, () => ChannelClient.open(api, path, "v5.channel.k8s.io", admin)),
    );
    for (const [index, client] of clients.entries()) client.send(0, `session ${index}.`);
    await Promise.all(clients.map((client, index) => client.shows(1, `session ${index}.`)));
    for (const client of clients) client.closeChannel(0);
    await Promise.all(clients.map((client) => client.closed));
    expect(clients.map((client) => client.text(1))).toEqual(clients.map((_, index) => `session ${index}.`));
  });

  test("is told of a missing container before the upgrade [X07]", async () => {
    const path = podExec("shell", ["ls"], "stdout=true").replace("container=main", "container=missing");
    await expect(ChannelClient.open(api, path, "v4.channel.k8s.io", admin)).rejects.toThrow("400");
  });
});

describe("the API server", () => {
  test("passes WebSockets of exec, attach and port-forward through, as the node declares [X14]", async () => {
    const streams = await createKubectl(env.kubeconfig, "current", true);
    const before = await proxiedWebSockets(env.client);
    await streams.run(["exec", on.shell, "--", "true"]);
    const attached = startKubectl(streams, ["attach", "-i", on.echo]);
    const forward = await startForward(streams, on.server, on.echoPort);
    try {
      expect((await roundTrip(forward.port, Buffer.from("through the tunnel"))).toString()).toBe("through the tunnel");
      await waitFor({ what: "attach to repeat its input", intervalMs: 200 }, () => {
        attached.child.stdin!.write("attached\n");
        must(attached.output().includes("attached\n"), attached.output());
      });
    } finally {
      await attached.stop();
      await forward.stop();
    }
    const after = await proxiedWebSockets(env.client);
    for (const subresource of ["exec", "attach", "portforward"])
      expect(after.get(`${subresource} proxied_to_kubelet`)).toBeGreaterThan(
        before.get(`${subresource} proxied_to_kubelet`) ?? 0,
      );
    expect([...after.keys()].filter((key) => key.endsWith("translated_at_apiserver"))).toEqual([]);
  });
});

describe("the kubelet API", () => {
  test("answers every SPDY ping with the same id, through the API server [X10]", async () => {
    const path = podExec("shell", ["cat"], "stdin=true&stdout=true");
    const { socket, head } = await upgradeToSpdy(api, path, "v4.channel.k8s.io", admin);
    socket.unshift(head);
    const client = new SpdyClient(socket);
    for (const id of [1, 3, 5]) client.ping(id);
    await client.until(() => client.frames.filter(({ type }) => type === "ping").length === 3);
    expect(client.frames.filter(({ type }) => type === "ping").map((frame) => "id" in frame && frame.id)).toEqual([
      1, 3, 5,
    ]);
    socket.destroy();
  });

  test("serves exec under the pod's UID, and refuses another's [X15]", async () => {
    const { uid } = (await pods.get("shell")).metadata;
    const path = (id: string) => `/exec/default/shell/${id}/main?command=echo&command=hello&output=1`;
    const client = await ChannelClient.open(kubelet, path(uid), "v4.channel.k8s.io", admin);
    await client.closed;
    expect(client.text(1)).toBe("hello\n");
    await expect(
      ChannelClient.open(kubelet, path("00000000-0000-0000-0000-000000000000"), "v4.channel.k8s.io", admin),
    ).rejects.toThrow("404");
  });

  test("runs a command for POST /run, and answers 500 with its output when it fails [X15]", async () => {
    const run = (command: string) =>
      ask(kubelet, `/run/default/shell/main?cmd=${encodeURIComponent(command)}`, { as: admin, method: "POST" });
    expect(await run("echo hello")).toEqual({ status: 200, body: "hello\n" });
    const failed = await run("ls /nowhere");
    expect(failed.status).toBe(500);
    expect(failed.body).toContain("/nowhere");
  });

  test.each([
    ["POST", "/exec/default/shell/nothing?command=ls&output=1", 500, 'container not found ("nothing")'],
    ["POST", "/exec/default/nowhere/main?command=ls&output=1", 404, "pod does not exist"],
    ["POST", "/exec/default/shell/main?command=ls", 400, "you must specify at least 1 of stdin, stdout, stderr"],
    ["POST", "/attach/default/nowhere/main?output=1", 404, "pod does not exist"],
    ["POST", "/attach/default/shell/nothing?output=1", 500, 'container not found ("nothing")'],
    ["POST", "/portForward/default/nowhere", 404, "pod does not exist"],
    ["PUT", "/run/default/shell/main?cmd=ls", 405, "405: Method Not Allowed"],
    ["GET", "/nowhere", 404, "404 page not found"],
  ])("tells what is wrong with %s %s [X07 X15]", async (method, path, status, body) => {
    const upgrade = /^\/(exec|attach|portForward)/.test(path)
      ? {
          connection: "Upgrade",
          upgrade: "SPDY/3.1",
          "x-stream-protocol-version": path.startsWith("/port") ? "portforward.k8s.io" : "v4.channel.k8s.io",
        }
      : {};
    const reply = await ask(kubelet, path, { as: admin, method, headers: upgrade });
    const said = "upgrade" in upgrade ? JSON.parse(reply.body).message : reply.body.trim();
    expect({ ...reply, body: said }).toEqual({ status, body });
  });
});

describe("access to the kubelet API", () => {
  const paths = {
    "/metrics": "metrics",
    "/metrics/resource": "metrics",
    "/stats/summary": "stats",
    "/pods": "pods",
    "/runningpods/": "pods",
    "/healthz": "healthz",
    "/configz": "configz",
    "/containerLogs/default/shell/main": "proxy",
  };

  /** A ServiceAccount that may do so much with the node, and its token. */
  async function accountWith(name: string, rules: { resources: string[]; verbs: string[] }[]): Promise<Identity> {
    const account = "/api/v1/namespaces/default/serviceaccounts";
    const rbac = "/apis/rbac.authorization.k8s.io/v1";
    await env.client.create(account, { metadata: { name } });
    await env.client.create(`${rbac}/clusterroles`, {
      metadata: { name },
      rules: rules.map((rule) => ({ apiGroups: [""], ...rule })),
    });
    await env.client.create(`${rbac}/clusterrolebindings`, {
      metadata: { name },
      roleRef: { apiGroup: "rbac.authorization.k8s.io", kind: "ClusterRole", name },
      subjects: [{ kind: "ServiceAccount", name, namespace: "default" }],
    });
    const { status } = await env.client.create(`${account}/${name}/token`, {
      apiVersion: "authentication.k8s.io/v1",
      kind: "TokenRequest",
      spec: {},
    });
    return { token: status.token };
  }

  test("is denied to who shows no credentials, or none that the cluster knows [A01]", async () => {
    const foreignCa = await createAuthority(env.dir, "foreign-ca");
    const foreign = await foreignCa.client("foreign", { commonName: "admin", organizations: ["system:masters"] });
    for (const as of [undefined, { token: "made-up" }, foreign])
      for (const path of ["/healthz", "/pods", "/nowhere"])
        expect(await ask(kubelet, path, { as })).toEqual({ status: 401, body: "Unauthorized" });
  });

  test("is forbidden to a user without rights, in the kubelet's words [A01]", async () => {
    const as = await accountWith("without-rights", []);
    expect(await ask(kubelet, "/pods", { as })).toEqual({
      status: 403,
      body: "Forbidden (user=system:serviceaccount:default:without-rights, verb=get, resource=nodes, subresource(s)=[pods proxy])\n",
    });
  });

  test.each(["metrics", "stats", "pods", "healthz", "configz", "proxy"])(
    "by a right to get nodes/%s opens just its paths [A02]",
    async (subresource) => {
      const as = await accountWith(`may-get-${subresource}`, [{ resources: [`nodes/${subresource}`], verbs: ["get"] }]);
      const opened: string[] = [];
      for (const path of Object.keys(paths)) if ((await ask(kubelet, path, { as })).status === 200) opened.push(path);
      const byProxy = ["pods", "healthz", "configz", "proxy"];
      expect(opened).toEqual(
        Object.entries(paths)
          .filter(([, needed]) => needed === subresource || (subresource === "proxy" && byProxy.includes(needed)))
          .map(([path]) => path),
      );
    },
  );

  test("by a right to get nodes/proxy opens no exec, which needs create [A02]", async () => {
    const path = "/exec/default/shell/main?command=true&output=1";
    const reader = await accountWith("reader", [{ resources: ["nodes/proxy"], verbs: ["get"] }]);
    await expect(ChannelClient.open(kubelet, path, "v4.channel.k8s.io", reader)).rejects.toThrow("403");
    const creator = await accountWith("creator", [{ resources: ["nodes/proxy"], verbs: ["create"] }]);
    const client = await ChannelClient.open(kubelet, path, "v4.channel.k8s.io", creator);
    await client.closed;
    expect(JSON.parse(client.text(3)).status).toBe("Success");
  });

  test("is encrypted with the cluster's certificate for every advertised address [A04]", async () => {
    const { certificate, authorized } = await servedCertificate(kubelet);
    expect(authorized).toBe(true);
    expect(certificate.subject).toEqual({ O: "system:nodes", CN: `system:node:${env.nodeName}` });
    const node = await env.client.get(`/api/v1/nodes/${env.nodeName}`);
    for (const { address } of node.status.addresses) expect(certificate.subjectaltname).toContain(address);
  });

  test("follows changed files of certificate and client CA without a restart [A03 A04]", async () => {
    const nodeName = "vmlet-files";
    const folder = join(env.dir, nodeName);
    await mkdir(folder, { recursive: true });
    const [oldCa, newCa] = [await createAuthority(folder, "old"), await createAuthority(folder, "new")];
    const files = {
      certFile: join(folder, "serving.crt"),
      keyFile: join(folder, "serving.key"),
      clientCAFile: join(folder, "clients.crt"),
    };
    const use = async (ca: typeof oldCa, name: string) => {
      const pair = await ca.server(name, [hostAddress()]);
      await copyFile(pair.keyFile, files.keyFile);
      await copyFile(pair.certFile, files.certFile);
      await copyFile(ca.certFile, files.clientCAFile);
    };
    await use(oldCa, "serving-1");
    const agent = await startAgent({
      sandbox: env.cluster.sandbox,
      kubeconfig: await env.cluster.userKubeconfig(`system:node:${nodeName}`, ["system:nodes"]),
      nodeName,
      identity: "direct",
      provider: env.backend.provider,
      node: { kubelet: files },
    });
    const url = `https://${hostAddress()}:${agent.kubeletPort}`;
    const subject = { commonName: "someone", organizations: ["system:masters"] };
    const [oldClient, newClient] = [
      await oldCa.client("old-client", subject),
      await newCa.client("new-client", subject),
    ];
    const before = { url, caFile: oldCa.certFile };
    expect((await ask(before, "/healthz", { as: oldClient })).status).toBe(200);
    expect((await ask(before, "/healthz", { as: newClient })).status).toBe(401);

    await use(newCa, "serving-2");
    const after = { url, caFile: newCa.certFile };
    await waitFor({ what: "the new certificate and CA to be used" }, async () =>
      must((await ask(after, "/healthz", { as: newClient })).status === 200, "refused"),
    );
    expect((await ask(after, "/healthz", { as: oldClient })).status).toBe(401);
    await agent.stop();
  });
});

// Last, so that they have been silent for as long as all the others took.
test.each(transports)("a session over %s that was silent for minutes is alive [X10]", async (transport) => {
  const { session } = silent.find((each) => each.transport === transport)!;
  expect(session.output()).toBe("");
  session.child.stdin!.end("still here");
  await new Promise((resolve) => session.child.once("close", resolve));
  expect(session.output()).toBe("still here");
});
