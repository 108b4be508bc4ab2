import { expect } from "vitest";
import { must, waitFor } from "../../harness/wait.ts";
import { containerStatus, serve } from "../pods.ts";
import { type ChecklistCase } from "./case.ts";

/** Shells leave out names that are none to them; the process has them all the same. The dollars are doubled for Kubernetes. */
const environ = "tr '\\000' '\\n' < /proc/$$$$/environ";
const base64 = (text: string) => Buffer.from(text).toString("base64");
const from = (field: string) => ({ valueFrom: { fieldRef: { fieldPath: field } } });
const resource = (resource: string, divisor?: string) => ({
  valueFrom: { resourceFieldRef: { resource, ...(divisor && { divisor }) } },
});

export const environmentCases: readonly ChecklistCase[] = [
  {
    ids: ["E01"],
    name: "variables refer to earlier ones, unknown names stay, a doubled dollar is one, and commands expand them all",
    async run({ create, pods, shell, output }) {
      const env = [
        { name: "A", value: "one" },
        { name: "B", value: "$(A) two" },
        { name: "C", value: "$(NONE) $$(A) $A" },
        { name: "A", value: "three" },
      ];
      const main = shell("main", "", {
        env,
        command: ["/bin/sh", "-c", 'echo "$B"; echo "$C"; echo "$(A)"; echo "$0"'],
        args: ["$(B)"],
      });
      await create("expands", { restartPolicy: "Never", containers: [main] });
      await pods.untilPhase("expands", "Succeeded");
      expect(await output("expands")).toEqual(["one two", "$(NONE) $(A) $A", "three", "one two"]);
    },
  },
  {
    ids: ["E02"],
    name: "variables come from ConfigMaps and Secrets, one by one and all at once with a prefix; what is optional may be missing",
    async run({ make, outputOf }) {
      await make("configmaps", "c", { data: { one: "1", "with.dot": "dotted", same: "from c" } });
      await make("secrets", "s", { data: { two: base64("2\nlines"), same: base64("from s") } });
      const lines = await outputOf(
        `${environ} | grep -E '^(P_|ONE=|TWO=|lines|same=|GONE=|one=)'`,
        {},
        {
          envFrom: [
            { configMapRef: { name: "c" } },
            { secretRef: { name: "s" } },
            { prefix: "P_", configMapRef: { name: "c" } },
            { configMapRef: { name: "none", optional: true } },
          ],
          env: [
            { name: "ONE", valueFrom: { configMapKeyRef: { name: "c", key: "one" } } },
            { name: "TWO", valueFrom: { secretKeyRef: { name: "s", key: "two" } } },
            { name: "GONE", valueFrom: { secretKeyRef: { name: "s", key: "none", optional: true } } },
          ],
        },
      );
      expect(lines.toSorted()).toEqual(
        [
          "ONE=1",
          "P_one=1",
          "P_same=from c",
          "P_with.dot=dotted",
          "TWO=2",
          "lines",
          "lines",
          "one=1",
          "same=from s",
        ].toSorted(),
      );
    },
  },
  ...(
    [
      ["configMap", "configMapKeyRef", 'configmap "later" not found'],
      ["secret", "secretKeyRef", 'secret "later" not found'],
    ] as const
  ).map(([kind, ref, message]): ChecklistCase => ({
    ids: ["E03"],
    name: `a container waits for a ${kind} that its variables need, says which, and runs when it appears`,
    async run({ create, pods, shell, make, output, untilEvent }) {
      const env = [{ name: "X", valueFrom: { [ref]: { name: "later", key: "k" } } }];
      await create("waits", { restartPolicy: "Never", containers: [shell("main", 'echo "$X"', { env })] });
      const pod = await pods.until(
        "waits",
        "to wait",
        (each) => containerStatus(each, "main")?.state.waiting?.reason === "CreateContainerConfigError",
      );
      expect(containerStatus(pod, "main").state.waiting.message).toBe(message);
      expect(pod.status.phase).toBe("Pending");
      await untilEvent("waits", "Failed", `Error: ${message}`);
      await make(
        `${kind.toLowerCase()}s`,
        "later",
        kind === "secret" ? { data: { k: base64("here") } } : { data: { k: "here" } },
      );
      await pods.untilPhase("waits", "Succeeded");
      expect(await output("waits")).toEqual(["here"]);
    },
  })),
  {
    ids: ["E03"],
    name: "a container waits for a key that is missing, and runs when it appears",
    async run({ client, create, pods, shell, make, output }) {
      await make("configmaps", "c", { data: { other: "" } });
      const env = [{ name: "X", valueFrom: { configMapKeyRef: { name: "c", key: "k" } } }];
      await create("keyless", { restartPolicy: "Never", containers: [shell("main", 'echo "$X"', { env })] });
      const pod = await pods.until(
        "keyless",
        "to wait",
        (each) => containerStatus(each, "main")?.state.waiting?.message !== undefined,
      );
      expect(containerStatus(pod, "main").state.waiting).toEqual({
        reason: "CreateContainerConfigError",
        message: `couldn't find key k in ConfigMap ${pods.namespace}/c`,
      });
      await client.patch(`/api/v1/namespaces/${pods.namespace}/configmaps/c`, { data: { k: "here" } });
      await pods.untilPhase("keyless", "Succeeded");
      expect(await output("keyless")).toEqual(["here"]);
    },
  },
  {
    ids: ["E03"],
    name: "binary data of a ConfigMap is no variable: its key counts as missing, until it is text",
    async run({ env: place, create, pods, shell, make, output }) {
      await make("configmaps", "c", { binaryData: { k: base64("\u0000\u0001") } });
      const env = [{ name: "X", valueFrom: { configMapKeyRef: { name: "c", key: "k" } } }];
      await create("binary", { restartPolicy: "Never", containers: [shell("main", 'echo "$X"', { env })] });
      const pod = await pods.until(
        "binary",
        "to wait",
        (each) => containerStatus(each, "main")?.state.waiting?.reason === "CreateContainerConfigError",
      );
      expect(containerStatus(pod, "main").state.waiting.message).toBe(
        `couldn't find key k in ConfigMap ${pods.namespace}/c`,
      );
      const path = `/api/v1/namespaces/${pods.namespace}/configmaps/c`;
      await place.client.patch(path, { binaryData: null, data: { k: "text" } });
      await pods.untilPhase("binary", "Succeeded");
      expect(await output("binary")).toEqual(["text"]);
    },
  },
  {
    ids: ["E02", "P07"],
    name: "a variable that is longer than a kernel takes keeps its container from starting, and the pod says so",
    async run({ env: place, create, pods, shell, make }) {
      await make("configmaps", "c", { data: { k: "x".repeat(1_000_000) } });
      const env = [{ name: "X", valueFrom: { configMapKeyRef: { name: "c", key: "k" } } }];
      await create("long", { containers: [shell("main", serve, { env })] });
      await waitFor({ what: "the reason in the status, or, as with runc, in the log", timeoutMs: 60_000 }, async () => {
        const { state, lastState } = containerStatus(await pods.get("long"), "main") ?? {};
        const log = await place.client.text(`${pods.path}/long/log?previous=true`).catch(() => "");
        must(/argument list too long/.test(JSON.stringify([state, lastState]) + log), [state, lastState, log]);
      });
    },
  },
  {
    ids: ["E04"],
    name: "variables show the pod's fields and its resources, rounded up to their divisor",
    async run({ env: { client, nodeName }, create, pods, shell, output }) {
      const { status } = await client.get(`/api/v1/nodes/${nodeName}`);
      const env = [
        { name: "F1", ...from("metadata.name") },
        { name: "F2", ...from("metadata.namespace") },
        { name: "F3", ...from("spec.nodeName") },
        { name: "F4", ...from("status.hostIP") },
        { name: "F5", ...from("metadata.labels['l/x']") },
        { name: "F6", ...from("metadata.annotations['none']") },
        { name: "R1", ...resource("requests.cpu") },
        { name: "R2", ...resource("requests.cpu", "1m") },
        { name: "R3", ...resource("requests.memory", "1Mi") },
        { name: "R4", ...resource("limits.cpu") },
      ];
      const script = 'printf "%s\\n" "$F1" "$F2" "$F3" "$F4" "$F5" "$F6" "$R1" "$R2" "$R3" "$R4"';
      const main = shell("main", script, { env, resources: { requests: { cpu: "1100m", memory: "1500Ki" } } });
      await create("fields", { restartPolicy: "Never", containers: [main] }, { labels: { "l/x": "labelled" } });
      await pods.untilPhase("fields", "Succeeded");
      const [address] = status.addresses.filter(({ type }: { type: string }) => type === "InternalIP");
      expect(await output("fields")).toEqual([
        "fields",
        pods.namespace,
        nodeName,
        address.address,
        "labelled",
        "",
        "2",
        "1100",
        "2",
        status.allocatable.cpu,
      ]);
    },
  },
  {
    ids: ["E04"],
    name: "a variable shows the pod's own address before the container starts",
    needs: ["pod_ip"],
    async run({ create, pods, shell, output }) {
      const env = [
        { name: "IP", ...from("status.podIP") },
        { name: "IPS", ...from("status.podIPs") },
      ];
      await create("addressed", {
        restartPolicy: "Never",
        containers: [shell("main", 'echo "$IP"; echo "$IPS"; echo "for $0"', { env, args: ["$(IP)"] })],
      });
      const { status } = await pods.untilPhase("addressed", "Succeeded");
      expect(await output("addressed")).toEqual([status.podIP, status.podIP, `for ${status.podIP}`]);
    },
  },
  {
    ids: ["E05"],
    name: "variables of services are those of the pod's namespace and of the API server, unless the pod does not want links",
    async run({ client, create, pods, shell, make, output, outputOf }) {
      const spec = { ports: [{ name: "db", port: 6379 }] };
      const service = await make("services", "redis-master", { spec });
      const kubernetes = await client.get("/api/v1/namespaces/default/services/kubernetes");
      const print = "env | grep -E '^(REDIS_MASTER|KUBERNETES_SERVICE)_' | sort";
      // A service that the agent has not heard of yet when a pod starts is not in its environment, as with a kubelet: the
      // agent has when it has run a pod that was created after the service.
      await create("before", { restartPolicy: "Never", containers: [shell("main", "exit 0")] });
      await pods.untilPhase("before", "Succeeded");
      const ip = service.spec.clusterIP;
      const lines = await outputOf(print);
      expect(lines).toContain(`KUBERNETES_SERVICE_HOST=${kubernetes.spec.clusterIP}`);
      expect(lines.filter((line) => line.startsWith("REDIS"))).toEqual([
        `REDIS_MASTER_PORT=tcp://${ip}:6379`,
        `REDIS_MASTER_PORT_6379_TCP=tcp://${ip}:6379`,
        `REDIS_MASTER_PORT_6379_TCP_ADDR=${ip}`,
        "REDIS_MASTER_PORT_6379_TCP_PORT=6379",
        "REDIS_MASTER_PORT_6379_TCP_PROTO=tcp",
        `REDIS_MASTER_SERVICE_HOST=${ip}`,
        "REDIS_MASTER_SERVICE_PORT=6379",
        "REDIS_MASTER_SERVICE_PORT_DB=6379",
      ]);
      await create("unlinked", {
        restartPolicy: "Never",
        enableServiceLinks: false,
        containers: [shell("main", `${print} | grep -c REDIS; true`)],
      });
      await pods.untilPhase("unlinked", "Succeeded");
      expect(await output("unlinked")).toEqual(["0"]);
    },
  },
  {
    ids: ["E02", "E03"],
    name: "names and values of every legal kind arrive as they are",
    async run({ outputOf }) {
      const odd = "tab\\there \u00e9\u4e2d \"quoted\" 'single' $HOME \\ end";
      const env = [
        { name: "ODD", value: odd.replaceAll("$", "$$$$") },
        { name: "EMPTY", value: "" },
        { name: "with-dash.and.dot", value: "ok" },
      ];
      const lines = await outputOf(`printf "%s\\n" "$ODD" "[$EMPTY]"; ${environ} | grep ^with-dash`, {}, { env });
      expect(lines).toEqual([odd, "[]", "with-dash.and.dot=ok"]);
    },
  },
];
