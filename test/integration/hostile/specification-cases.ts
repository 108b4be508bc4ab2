/** Pods whose specification, or what it refers to, is as large or as odd as the API server allows. */
import type { Json } from "../../e2e/harness/client.ts";
import type { HostileCase } from "./case.ts";
import { waitingReasons } from "./tenant.ts";

const KIB = 1024;
/** The API server takes no ConfigMap or Secret above this. */
const OBJECT_LIMIT = 1000 * KIB;

const times = <T>(count: number, make: (index: number) => T): T[] => Array.from({ length: count }, (_, i) => make(i));
const container = (name: string, more: Json = {}): Json => ({
  name,
  image: "busybox",
  command: ["sleep", "1000"],
  ...more,
});

export const specificationCases: readonly HostileCase[] = [
  {
    name: "has each variable of a container's environment repeat the one before",
    async begin(tenant) {
      const env = [
        { name: "A0", value: "x".repeat(100) },
        ...times(4, (i) => ({ name: `A${i + 1}`, value: `$(A${i})`.repeat(200) })),
      ];
      await tenant.pods(5, "memory", "laughs", { container: { env } });
      return { deserved: () => tenant.untilRefused("laughs-0", /^CreateContainerConfigError$/) };
    },
  },
  {
    name: "has a container's arguments repeat a long variable",
    async begin(tenant) {
      const env = [{ name: "A", value: "x".repeat(100 * KIB) }];
      await tenant.pod("memory", "args", { container: { env, args: times(100, () => "$(A)".repeat(100)) } });
      return { deserved: () => tenant.untilRefused("args", /^CreateContainerConfigError$/) };
    },
  },
  {
    name: "writes references to variables that never end",
    async begin(tenant) {
      const env = [{ name: "A", value: "$(".repeat(400 * KIB) }];
      await tenant.pod("memory", "open", { container: { env } });
      return { deserved: () => tenant.until("open", "to be told what becomes of it", isDecided) };
    },
  },
  {
    name: "has 1001 containers",
    async begin(tenant) {
      await tenant.pod("memory", "many", { spec: { containers: times(1001, (i) => container(`c${i}`)) } });
      return { deserved: () => tenant.untilWarned("many", /1001 containers/) };
    },
  },
  {
    name: "has 500 init containers",
    async begin(tenant) {
      const initContainers = times(500, (i) => container(`i${i}`, { command: ["true"] }));
      await tenant.pod("memory", "inits", { spec: { initContainers } });
      return { deserved: () => tenant.until("inits", "to be told what becomes of it", isDecided) };
    },
  },
  {
    name: "names containers, volumes, keys and labels as JavaScript names its own properties",
    async begin(tenant) {
      const names = ["constructor", "prototype", "tostring", "valueof"];
      await tenant.configMap("constructor", { __proto__x: "a", constructor: "b", prototype: "c", toString: "d" });
      await tenant.world.client.create(`/api/v1/namespaces/${tenant.namespace}/configmaps`, {
        metadata: { name: "proto" },
        data: JSON.parse('{ "__proto__": "a" }'),
      });
      await tenant.pod("memory", "constructor", {
        metadata: { labels: { constructor: "a", prototype: "b" }, annotations: { constructor: "c", prototype: "d" } },
        spec: {
          containers: names.map((name) =>
            container(name, { volumeMounts: names.map((volume) => ({ name: volume, mountPath: `/${volume}` })) }),
          ),
          volumes: names.map((name, index) => ({
            name,
            configMap: { name: index === 0 ? "proto" : "constructor", optional: true },
          })),
        },
      });
      return { deserved: () => tenant.untilRunning("constructor") };
    },
  },
  {
    name: "names pull secrets of 5000 letters, and of dots",
    async begin(tenant) {
      const imagePullSecrets = [{ name: "s".repeat(5000) }, { name: ".." }, { name: "." }, { name: "a/../../b" }];
      await tenant.pod("memory", "names", { spec: { imagePullSecrets } });
      return { deserved: () => tenant.untilRunning("names") };
    },
  },
  {
    name: "has pull secrets with keys of nothing but slashes, and globs with 30 stars",
    async begin(tenant) {
      const auth = { username: "u", password: `${"\0".repeat(100 * KIB)}p` };
      const auths = {
        [`${"/".repeat(390 * KIB)}x`]: auth,
        [`${"a*".repeat(30)}b.example.com`]: auth,
        [`https://${"*.".repeat(5000)}example.com`]: auth,
      };
      await tenant.secret("pull", "kubernetes.io/dockerconfigjson", { ".dockerconfigjson": JSON.stringify({ auths }) });
      await tenant.pod("memory", "globs", {
        spec: { imagePullSecrets: [{ name: "pull" }] },
        container: { image: `${"a".repeat(200)}.example.com/x:1` },
      });
      return { deserved: () => tenant.until("globs", "to be told what becomes of it", isDecided) };
    },
  },
  {
    name: "refers to 300 pull secrets, each as large as a Secret may be",
    async begin(tenant) {
      const auths = Object.fromEntries(times(20, (i) => [`r${i}.example.com`, { auth: "x".repeat(48 * KIB) }]));
      const content = JSON.stringify({ auths });
      for (let i = 0; i < 30; i++)
        await tenant.secret(`pull-${i}`, "kubernetes.io/dockerconfigjson", { ".dockerconfigjson": content });
      const imagePullSecrets = times(300, (i) => ({ name: `pull-${i % 30}` }));
      await tenant.pods(3, "memory", "large", { spec: { imagePullSecrets } });
      return { deserved: () => tenant.untilWarned("large-0", /300 image pull secrets/) };
    },
  },
  {
    name: "mounts ConfigMaps as large as may be a hundred times over",
    async begin(tenant) {
      await tenant.configMap("large", { data: "x".repeat(OBJECT_LIMIT) });
      const volumes = times(100, (i) => ({ name: `v${i}`, configMap: { name: "large" } }));
      const volumeMounts = times(100, (i) => ({ name: `v${i}`, mountPath: `/v${i}` }));
      await tenant.pods(2, "memory", "files", { container: { volumeMounts }, spec: { volumes } });
      return { deserved: () => tenant.untilWarned("files-0", /FailedMount: .* would take more than/) };
    },
  },
  {
    name: "projects one ConfigMap a thousand times into one volume",
    async begin(tenant) {
      await tenant.configMap("large", { data: "x".repeat(OBJECT_LIMIT) });
      const sources = times(1000, (i) => ({
        configMap: { name: "large", items: [{ key: "data", path: `folder/${i}` }] },
      }));
      const volumes = [{ name: "v", projected: { sources } }];
      await tenant.pod("memory", "projected", {
        container: { volumeMounts: [{ name: "v", mountPath: "/v" }] },
        spec: { volumes },
      });
      return { deserved: () => tenant.untilWarned("projected", /FailedMount: .* would take more than/) };
    },
  },
  {
    name: "takes a ConfigMap as large as may be into the environment of 50 containers",
    async begin(tenant) {
      const data = Object.fromEntries(times(900, (i) => [`KEY_${i}`, "x".repeat(KIB)]));
      await tenant.configMap("env", data);
      const envFrom = times(20, (i) => ({ prefix: `P${i}_`, configMapRef: { name: "env" } }));
      await tenant.pod("memory", "env", { spec: { containers: times(50, (i) => container(`c${i}`, { envFrom })) } });
      return { deserved: () => tenant.untilRefused("env", /^CreateContainerConfigError$/) };
    },
  },
  {
    name: "has annotations as large as may be, in every container's environment and in 500 files",
    async begin(tenant) {
      const annotations = { large: "x".repeat(250 * KIB) };
      const fieldRef = { fieldPath: "metadata.annotations" };
      const env = times(100, (i) => ({
        name: `A${i}`,
        valueFrom: { fieldRef: { fieldPath: "metadata.annotations['large']" } },
      }));
      const items = times(500, (i) => ({ path: `f${i}`, fieldRef }));
      await tenant.pod("memory", "annotations-env", { metadata: { annotations }, container: { env } });
      await tenant.pod("memory", "annotations-files", {
        metadata: { annotations },
        container: { volumeMounts: [{ name: "v", mountPath: "/v" }] },
        spec: { volumes: [{ name: "v", downwardAPI: { items } }] },
      });
      return {
        deserved: () =>
          Promise.all([
            tenant.untilRefused("annotations-env", /^CreateContainerConfigError$/),
            tenant.untilWarned("annotations-files", /FailedMount: .* would take more than/),
          ]),
      };
    },
  },
  {
    name: "has an image name of a mebibyte",
    async begin(tenant) {
      await tenant.pods(3, "memory", "image", { container: { image: `example.com/${"a".repeat(1000 * KIB)}` } });
      return { deserved: () => tenant.until("image-0", "to be told what becomes of it", isDecided) };
    },
  },
  {
    name: "has 20,000 host aliases, search domains and tolerations",
    async begin(tenant) {
      const hostAliases = times(20_000, (i) => ({ ip: "10.0.0.1", hostnames: [`h${i}.example.com`] }));
      await tenant.pod("memory", "aliases", { spec: { hostAliases } });
      const tolerations = times(10_000, (i) => ({ key: `k${i}`, operator: "Exists" }));
      await tenant.pod("memory", "tolerations", { spec: { tolerations: [...tolerations, { operator: "Exists" }] } });
      return { deserved: () => tenant.until("aliases", "to be told what becomes of it", isDecided) };
    },
  },
  {
    name: "adds 300 ephemeral containers to a pod",
    async begin(tenant) {
      await tenant.pod("memory", "ephemeral");
      await tenant.untilRunning("ephemeral");
      const ephemeralContainers = times(300, (i) => container(`e${i}`));
      await tenant.patch("pods", "ephemeral", { spec: { ephemeralContainers } }, "/ephemeralcontainers");
      return { deserved: () => tenant.untilRunning("ephemeral") };
    },
  },
];

/** It runs, is over, or waits with a reason of its own. */
function isDecided({ status }: Json): boolean {
  const waiting = waitingReasons(status).filter((reason) => !["ContainerCreating", "PodInitializing"].includes(reason));
  const begun = (status.initContainerStatuses ?? []).some((each: Json) => each.state?.terminated !== undefined);
  return status.phase !== "Pending" || waiting.length > 0 || begun;
}
