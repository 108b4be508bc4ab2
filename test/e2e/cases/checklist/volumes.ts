import { createHash } from "node:crypto";
import { expect } from "vitest";
import { containerStatus, serve } from "../pods.ts";
import { type ChecklistCase } from "./case.ts";

const base64 = (text: string | Buffer) => Buffer.from(text).toString("base64");
const sha256 = (content: string | Buffer) => createHash("sha256").update(content).digest("hex");
const at = (name: string, mountPath: string, more: object = {}) => ({ name, mountPath, ...more });
const files = ["volumes.files", "volumes.empty_dir"] as const;

export const volumeCases: readonly ChecklistCase[] = [
  {
    ids: ["V01"],
    name: "files of ConfigMaps and Secrets have their contents, text or binary, and their modes",
    needs: files,
    async run({ make, outputOf }) {
      const binary = Buffer.from(Array.from({ length: 256 }, (_, byte) => byte));
      await make("configmaps", "c", {
        data: { text: "line\n", ".dot-file_1": "odd" },
        binaryData: { bytes: base64(binary) },
      });
      await make("secrets", "s", { data: { key: base64("secret") } });
      const script =
        'cat /c/text /c/.dot-file_1; echo; sha256sum < /c/bytes | cut -c1-64; cat /s/renamed/deep; echo; stat -L -c "%a" /c/text /s/renamed/deep; ls -A /s';
      const lines = await outputOf(
        script,
        {
          volumes: [
            { name: "c", configMap: { name: "c" } },
            {
              name: "s",
              secret: {
                secretName: "s",
                defaultMode: 0o440,
                items: [{ key: "key", path: "renamed/deep", mode: 0o400 }],
              },
            },
          ],
        },
        { volumeMounts: [at("c", "/c"), at("s", "/s")] },
      );
      expect(lines.slice(0, 6)).toEqual(["line", "odd", sha256(binary), "secret", "644", "400"]);
      expect(lines.slice(6)).toContain("renamed");
      expect(lines.slice(6)).toContain("..data");
    },
  },
  {
    ids: ["V01"],
    name: "keys of every legal kind become files",
    needs: files,
    async run({ make, outputOf }) {
      const keys = ["-dash", ".dot", "a..b", "UPPER_lower.0", "x".repeat(253)];
      await make("configmaps", "c", { data: Object.fromEntries(keys.map((key) => [key, key])) });
      const lines = await outputOf(
        'cd /c && for key in * .dot; do [ "$(cat "./$key")" = "$key" ] && echo "$key"; done',
        { volumes: [{ name: "c", configMap: { name: "c" } }] },
        { volumeMounts: [at("c", "/c")] },
      );
      expect(lines.toSorted()).toEqual(keys.toSorted());
    },
  },
  {
    ids: ["V01"],
    name: "a file of a megabyte arrives whole",
    needs: files,
    async run({ make, outputOf }) {
      const content = "0123456789abcdef".repeat(65_000);
      await make("configmaps", "big", { data: { f: content } });
      const lines = await outputOf(
        "sha256sum < /c/f | cut -c1-64",
        { volumes: [{ name: "c", configMap: { name: "big" } }] },
        { volumeMounts: [at("c", "/c")] },
      );
      expect(lines).toEqual([sha256(content)]);
    },
  },
  {
    ids: ["V01"],
    name: "a projected volume is one tree of all its sources, and metadata files are sorted and quoted as in Go",
    needs: files,
    async run({ create, pods, shell, make, output }) {
      await make("configmaps", "c", { data: { a: "from c" } });
      await make("secrets", "s", { data: { b: base64("from s") } });
      const volume = {
        name: "all",
        projected: {
          sources: [
            { configMap: { name: "c", items: [{ key: "a", path: "dir/a" }] } },
            { secret: { name: "s" } },
            { configMap: { name: "none", optional: true } },
            {
              downwardAPI: {
                items: [
                  { path: "labels", fieldRef: { fieldPath: "metadata.labels" } },
                  { path: "cpu", resourceFieldRef: { containerName: "main", resource: "requests.cpu", divisor: "1m" } },
                ],
              },
            },
          ],
        },
      };
      const main = shell("main", "cat /all/dir/a; echo; cat /all/b; echo; cat /all/labels; echo; cat /all/cpu", {
        volumeMounts: [at("all", "/all", { readOnly: true })],
        resources: { requests: { cpu: "150m" } },
      });
      await create(
        "projected",
        { restartPolicy: "Never", volumes: [volume], containers: [main] },
        { labels: { z: "last", a: "first" } },
      );
      await pods.untilPhase("projected", "Succeeded");
      expect(await output("projected")).toEqual(["from c", "from s", 'a="first"', 'z="last"', "150"]);
    },
  },
  {
    ids: ["V02"],
    name: "the service account's token is for this very pod, and the CA and namespace lie beside it",
    needs: files,
    async run({ env, create, pods, shell, output }) {
      const dir = "/var/run/secrets/kubernetes.io/serviceaccount";
      const { metadata } = await create("identity", {
        restartPolicy: "Never",
        containers: [shell("main", `cat ${dir}/token; echo; cat ${dir}/namespace; echo; head -1 ${dir}/ca.crt`)],
      });
      await pods.untilPhase("identity", "Succeeded");
      const [token, namespace, ca] = await output("identity");
      expect([namespace, ca]).toEqual([pods.namespace, "-----BEGIN CERTIFICATE-----"]);
      const review = await env.client.create("/apis/authentication.k8s.io/v1/tokenreviews", { spec: { token } });
      expect(review.status).toMatchObject({
        authenticated: true,
        user: {
          username: `system:serviceaccount:${pods.namespace}:default`,
          extra: {
            "authentication.kubernetes.io/pod-name": ["identity"],
            "authentication.kubernetes.io/pod-uid": [metadata.uid],
          },
        },
      });
    },
  },
  {
    ids: ["V03"],
    name: "an emptyDir is open to everybody, shared by the containers, and outlives each of them",
    needs: ["volumes.empty_dir", "init_containers"],
    async run({ create, pods, shell, output }) {
      const volumeMounts = [at("disk", "/disk")];
      const script = 'if [ ! -e /disk/again ]; then touch /disk/again; exit 1; fi; stat -c "%a" /disk; cat /disk/left';
      await create("scratch", {
        restartPolicy: "OnFailure",
        volumes: [{ name: "disk", emptyDir: {} }],
        initContainers: [shell("init", "echo by init > /disk/left", { volumeMounts })],
        containers: [shell("main", script, { volumeMounts })],
      });
      await pods.untilPhase("scratch", "Succeeded");
      expect(await output("scratch")).toEqual(["777", "by init"]);
    },
  },
  {
    ids: ["V03"],
    name: "an emptyDir of medium Memory is a tmpfs, and outlives each container",
    // Engines that limit volumes have memory for them too.
    needs: ["volumes.empty_dir", "volumes.empty_dir.size_limit"],
    async run({ create, pods, shell, output }) {
      const script =
        'if [ ! -e /ram/again ]; then touch /ram/again; exit 1; fi; stat -c "%a" /ram; ls /ram; grep -c " /ram tmpfs " /proc/mounts';
      await create("ram", {
        restartPolicy: "OnFailure",
        volumes: [{ name: "ram", emptyDir: { medium: "Memory" } }],
        containers: [shell("main", script, { volumeMounts: [at("ram", "/ram")] })],
      });
      await pods.untilPhase("ram", "Succeeded");
      expect(await output("ram")).toEqual(["1777", "again", "1"]);
    },
  },
  {
    ids: ["V04", "V05"],
    name: "a change of a ConfigMap or Secret reaches the running pod at one instant, but not what is mounted by subPath",
    needs: [...files, "patch_files"],
    async run({ client, create, pods, shell, make, output }) {
      const path = `/api/v1/namespaces/${pods.namespace}`;
      await make("configmaps", "c", { data: { a: "1", b: "1" } });
      await make("secrets", "s", { data: { k: base64("1") } });
      // What is read through ..data must never be of two versions.
      const script =
        'while :; do cd -P /c/..data; v="$(cat a)$(cat b)"; [ "$v" = 11 ] || [ "$v" = 22 ] || { echo "torn $v"; exit 1; }; [ "$v$(cat /s/k)" = 222 ] && break; sleep 0.1; done; cat /fixed; echo; ls /c';
      const main = shell("main", script, {
        volumeMounts: [at("c", "/c"), at("s", "/s"), at("c", "/fixed", { subPath: "a" })],
      });
      await create("follows", {
        restartPolicy: "Never",
        volumes: [
          { name: "c", configMap: { name: "c" } },
          { name: "s", secret: { secretName: "s" } },
        ],
        containers: [main],
      });
      await pods.untilReady("follows");
      await client.patch(`${path}/configmaps/c`, { data: { a: "2", b: "2", added: "" } });
      await client.patch(`${path}/secrets/s`, { data: { k: base64("2") } });
      await pods.untilPhase("follows", "Succeeded");
      expect(await output("follows")).toEqual(["1", "a", "added", "b"]);
    },
  },
  {
    ids: ["V04"],
    name: "labels that a file shows reach the running pod",
    needs: [...files, "patch_files"],
    async run({ client, create, pods, shell }) {
      const volumes = [
        { name: "meta", downwardAPI: { items: [{ path: "labels", fieldRef: { fieldPath: "metadata.labels" } }] } },
      ];
      const main = shell("main", "until grep -q new= /meta/labels; do sleep 0.1; done", {
        volumeMounts: [at("meta", "/meta")],
      });
      await create("relabelled", { restartPolicy: "Never", volumes, containers: [main] }, { labels: { old: "1" } });
      await pods.untilReady("relabelled");
      await client.patch(`${pods.path}/relabelled`, { metadata: { labels: { new: "1" } } });
      await pods.untilPhase("relabelled", "Succeeded");
    },
  },
  {
    ids: ["V05"],
    name: "subPath and subPathExpr mount one folder of a volume",
    needs: ["volumes.empty_dir", "init_containers"],
    async run({ create, pods, shell, output }) {
      const volumes = [{ name: "v", emptyDir: {} }];
      const write = shell("write", "mkdir -p /v/one /v/sub-pods; echo 1 > /v/one/f; echo 2 > /v/sub-pods/f", {
        volumeMounts: [at("v", "/v")],
      });
      const read = shell("main", "cat /a/f /b/f", {
        env: [{ name: "POD", valueFrom: { fieldRef: { fieldPath: "metadata.name" } } }],
        volumeMounts: [at("v", "/a", { subPath: "one" }), at("v", "/b", { subPathExpr: "sub-$(POD)" })],
      });
      await create("pods", { restartPolicy: "Never", volumes, initContainers: [write], containers: [read] });
      await pods.untilPhase("pods", "Succeeded");
      expect(await output("pods")).toEqual(["1", "2"]);
    },
  },
  {
    ids: ["V05"],
    name: "a subPathExpr that leads out of its volume keeps the container waiting in kubelet's words, until it does not",
    needs: ["volumes.empty_dir"],
    async run({ env: place, create, pods, shell, make, untilEvent }) {
      await make("configmaps", "c", { data: { folder: "../up" } });
      const main = shell("main", "ls -d /v", {
        env: [{ name: "FOLDER", valueFrom: { configMapKeyRef: { name: "c", key: "folder" } } }],
        volumeMounts: [at("v", "/v", { subPathExpr: "$(FOLDER)" })],
      });
      await create("escapes", { restartPolicy: "Never", volumes: [{ name: "v", emptyDir: {} }], containers: [main] });
      const pod = await pods.until(
        "escapes",
        "to wait",
        (each) => containerStatus(each, "main")?.state.waiting?.reason === "CreateContainerConfigError",
      );
      const message = "unable to provision SubPath `../up`: must not contain '..'";
      expect(containerStatus(pod, "main").state.waiting.message).toBe(message);
      await untilEvent("escapes", "Failed", `Error: ${message}`);
      await place.client.patch(`/api/v1/namespaces/${pods.namespace}/configmaps/c`, { data: { folder: "down" } });
      await pods.untilPhase("escapes", "Succeeded");
    },
  },
  {
    ids: ["V06"],
    name: "files belong to fsGroup, and the process has the user and groups that the pod asks for",
    needs: [...files, "security_context"],
    async run({ make, outputOf }) {
      await make("secrets", "s", { data: { k: base64("x") } });
      const lines = await outputOf(
        'id -u; id -g; id -G | tr " " "\\n" | sort | tr "\\n" " "; echo; stat -L -c "%a %g" /s/k; cat /s/k; echo; touch /e/f; stat -c "%u %g" /e/f',
        {
          securityContext: { runAsUser: 1000, runAsGroup: 3000, fsGroup: 2000, supplementalGroups: [4000] },
          volumes: [
            { name: "s", secret: { secretName: "s", defaultMode: 0o440 } },
            { name: "e", emptyDir: {} },
          ],
        },
        { volumeMounts: [at("s", "/s"), at("e", "/e")] },
      );
      expect(lines).toEqual(["1000", "3000", "2000 3000 4000 ", "440 2000", "x", "1000 2000"]);
    },
  },
  ...(
    [
      ["ConfigMap", { configMap: { name: "later" } }, "configmaps", 'configmap "later" not found'],
      ["Secret", { secret: { secretName: "later" } }, "secrets", 'secret "later" not found'],
    ] as const
  ).map(([kind, source, resource, message]): ChecklistCase => ({
    ids: ["V07"],
    name: `a volume of a ${kind} that is missing keeps the pod Pending with FailedMount, until it appears`,
    needs: files,
    async run({ create, pods, shell, make, output, untilEvent }) {
      const main = shell("main", "cat /v/k", { volumeMounts: [at("v", "/v")] });
      await create("unmounted", { restartPolicy: "Never", volumes: [{ name: "v", ...source }], containers: [main] });
      await untilEvent("unmounted", "FailedMount", `MountVolume.SetUp failed for volume "v" : ${message}`);
      const pod = await pods.get("unmounted");
      expect(pod.status.phase).toBe("Pending");
      expect(containerStatus(pod, "main").state.waiting.reason).toBe("ContainerCreating");
      await make(resource, "later", { data: { k: kind === "Secret" ? base64("here") : "here" } });
      await pods.untilPhase("unmounted", "Succeeded");
      expect(await output("unmounted")).toEqual(["here"]);
    },
  })),
  ...(
    [
      [
        "ConfigMap",
        { configMap: { name: "o", items: [{ key: "k", path: "k" }] } },
        "configmaps",
        "configmap references non-existent config key: k",
      ],
      [
        "Secret",
        { secret: { secretName: "o", items: [{ key: "k", path: "k" }] } },
        "secrets",
        "references non-existent secret key: k",
      ],
    ] as const
  ).map(([kind, source, resource, message]): ChecklistCase => ({
    ids: ["V07"],
    name: `a key that a volume names and its ${kind} lacks keeps the pod Pending, until it appears`,
    needs: files,
    async run({ client, create, pods, shell, make, untilEvent }) {
      await make(resource, "o", {});
      await create("keyless", {
        restartPolicy: "Never",
        volumes: [{ name: "v", ...source }],
        containers: [shell("main", "cat /v/k", { volumeMounts: [at("v", "/v")] })],
      });
      await untilEvent("keyless", "FailedMount", `MountVolume.SetUp failed for volume "v" : ${message}`);
      const data = { k: kind === "Secret" ? base64("here") : "here" };
      await client.patch(`/api/v1/namespaces/${pods.namespace}/${resource}/o`, { data });
      await pods.untilPhase("keyless", "Succeeded");
    },
  })),
  {
    ids: ["V08"],
    name: "an immutable ConfigMap is used, and a pod that is made after it was replaced sees the new one",
    needs: files,
    async run({ client, create, pods, shell, make, output }) {
      const volumes = [{ name: "v", configMap: { name: "fixed" } }];
      const main = () => shell("main", "cat /v/k", { volumeMounts: [at("v", "/v")] });
      await make("configmaps", "fixed", { immutable: true, data: { k: "1" } });
      await create("old", { restartPolicy: "Never", volumes, containers: [main()] });
      await pods.untilPhase("old", "Succeeded");
      await client.delete(`/api/v1/namespaces/${pods.namespace}/configmaps/fixed`);
      await make("configmaps", "fixed", { immutable: true, data: { k: "2" } });
      await create("new", { restartPolicy: "Never", volumes, containers: [main()] });
      await pods.untilPhase("new", "Succeeded");
      expect(await output("old")).toEqual(["1"]);
      expect(await output("new")).toEqual(["2"]);
    },
  },
  ...(
    [
      ["hostPath", { hostPath: { path: "/tmp" } }],
      ["nfs", { nfs: { server: "nfs.example", path: "/" } }],
      ["persistentVolumeClaim", { persistentVolumeClaim: { claimName: "none" } }],
    ] as const
  ).map(([kind, source]): ChecklistCase => ({
    ids: ["V09"],
    name: `a volume of kind ${kind} is refused, by name`,
    ...(kind === "persistentVolumeClaim" && { lacks: "volumes.persistent" as const }),
    // The scheduler keeps a pod Pending whose claim does not exist.
    async run({ env, create, pods, shell, untilEvent }) {
      const main = shell("main", serve, { volumeMounts: [at("v", "/v")] });
      await create("refused", { nodeName: env.nodeName, volumes: [{ name: "v", ...source }], containers: [main] });
      const { status } = await pods.untilPhase("refused", "Failed");
      expect(status.reason).toBe("UnsupportedFeature");
      expect(status.message).toMatch(new RegExp(`^Pod was rejected: .*spec\\.volumes\\[\\d+\\]\\.${kind}: `));
      expect(status.containerStatuses ?? []).toEqual([]);
      await untilEvent("refused", "UnsupportedFeature", new RegExp(kind));
    },
  })),
  {
    ids: ["V09"],
    name: "a pod whose claim does not exist waits for it, and is told so in kubelet's words",
    needs: ["volumes.persistent"],
    async run({ env, create, shell, untilEvent, statuses }) {
      const volumes = [{ name: "v", persistentVolumeClaim: { claimName: "none" } }];
      const main = shell("main", serve, { volumeMounts: [at("v", "/v")] });
      // The scheduler would keep it to itself.
      await create("waits", { nodeName: env.nodeName, volumes, containers: [main] });
      await untilEvent("waits", "FailedMount", /unmounted volumes=\[v\].*persistentvolumeclaims "none" not found/);
      expect(statuses("waits").map(({ phase }) => phase)).not.toContain("Failed");
    },
  },
  {
    ids: ["V10"],
    name: "a pod that outgrows the limit of its emptyDir is evicted in kubelet's words, and that is its own failure",
    needs: ["volumes.empty_dir.size_limit"],
    async run({ create, pods, shell, untilEvent }) {
      const main = shell("main", `head -c 3000000 /dev/zero > /v/big; ${serve}`, { volumeMounts: [at("v", "/v")] });
      await create("outgrown", {
        terminationGracePeriodSeconds: 1,
        volumes: [{ name: "v", emptyDir: { sizeLimit: "1Mi" } }],
        containers: [main],
      });
      const { status } = await pods.untilPhase("outgrown", "Failed");
      const message = 'Usage of EmptyDir volume "v" exceeds the limit "1Mi". ';
      expect(status).toMatchObject({ reason: "Evicted", message });
      // As in a kubelet: a pod that broke its own limit would do so again, which its owner must be able to tell.
      expect(status.conditions.find(({ type }: any) => type === "DisruptionTarget")).toBeUndefined();
      await untilEvent("outgrown", "Evicted", message);
    },
  },
  {
    ids: ["V10"],
    name: "a pod that writes more than its containers may keep is evicted in kubelet's words",
    needs: ["ephemeral_storage_limits"],
    async run({ create, pods, shell, untilEvent }) {
      const script = `head -c 3000000 /dev/zero > /big; ${serve}`;
      const limits = { "ephemeral-storage": "1Mi" };
      await create("written", {
        terminationGracePeriodSeconds: 1,
        containers: [shell("main", script, { resources: { limits } })],
      });
      const { status } = await pods.untilPhase("written", "Failed");
      const message = "Pod ephemeral local storage usage exceeds the total limit of containers 1Mi. ";
      expect(status).toMatchObject({ reason: "Evicted", message });
      await untilEvent("written", "Evicted", message);
    },
  },
  {
    ids: ["V10"],
    name: "a container that writes more than its own share is evicted, though the others leave theirs",
    needs: ["ephemeral_storage_limits", "multi_container"],
    async run({ create, pods, shell }) {
      const limited = (size: string) => ({ resources: { limits: { "ephemeral-storage": size } } });
      await create("greedy", {
        terminationGracePeriodSeconds: 1,
        containers: [
          shell("main", `head -c 3000000 /dev/zero > /big; ${serve}`, limited("1Mi")),
          shell("modest", serve, limited("1Gi")),
        ],
      });
      const { status } = await pods.untilPhase("greedy", "Failed");
      const message = 'Container main exceeded its local ephemeral storage limit "1Mi". ';
      expect(status).toMatchObject({ reason: "Evicted", message });
    },
  },
  {
    ids: ["V01"],
    name: "a volume of an image has the image's files, for reading only",
    needs: ["volumes.image"],
    async run({ image, outputOf }) {
      const lines = await outputOf(
        "ls /img/bin/busybox; touch /img/x 2>/dev/null || echo read-only",
        { volumes: [{ name: "img", image: { reference: image } }] },
        { volumeMounts: [at("img", "/img")] },
      );
      expect(lines).toEqual(["/img/bin/busybox", "read-only"]);
    },
  },
];
