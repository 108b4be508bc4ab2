/** Persistent volumes in the chart: the driver, the CSI project's sidecars beside it, and what they may do. */
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { csiCommand } from "../../../src/cli/csi.ts";
import { parseFile } from "../../../src/config/load.ts";
import { volumeBackendsSchema } from "../../../src/config/provider-schema.ts";
import { CSI_DRIVER } from "../../../src/provider/csi-names.ts";
import type { Json } from "../../e2e/harness/client.ts";
import { chart, find, minimal, named, refusal, render, renderValues } from "./render.ts";
import { rightsOf } from "./rights.ts";

const NAME = "burst-vmlet-csi";
const file = join(chart, "ci/csi-values.yaml");
const objects = await render(file);
const withSnapshots = await render(file, ["--api-versions=snapshot.storage.k8s.io/v1/VolumeSnapshotClass"]);
const podOf = (rendered: readonly Json[]) => find(rendered, "Deployment", NAME).spec.template.spec;
const containersOf = (rendered: readonly Json[]): Json[] => podOf(rendered).containers;
const [driver, ...sidecars] = containersOf(withSnapshots);
const flagsOf = (rendered: readonly Json[]) => {
  const command = csiCommand();
  const { operands, unknown } = command.parseOptions(containersOf(rendered)[0]!.args.slice(1));
  expect([operands, unknown]).toEqual([[], []]);
  return command.opts();
};

test("nothing of it is there unless it is asked for", async () => {
  const rendered = (await renderValues(minimal())).map(named);
  expect(rendered.filter((name) => /csi|StorageClass|VolumeSnapshot/i.test(name))).toEqual([]);
});

test("the driver is told of the backend that the nodes have, with its files, and the agents' cluster id", () => {
  const agents = find(objects, "ConfigMap", "burst-vmlet").data["vmlet.yaml"];
  expect(agents).toContain('clusterId: "ci"');
  expect(flagsOf(objects)).toMatchObject({
    endpoint: "unix:///csi/csi.sock",
    backend: "https://vms.example.com",
    clusterId: "ci",
    tokenFile: "/etc/vmlet/secrets/vm-api/token",
    caFile: "/etc/vmlet/secrets/vm-api/ca.crt",
    healthPort: 10253,
  });
});

test("the driver is told of another backend where the values name one", async () => {
  const provider = { url: "https://disks.example.com:8443", tokenFile: "/etc/vmlet/secrets/disks/token" };
  const rendered = await renderValues(minimal({ existingSecrets: ["disks"], csi: { enabled: true, provider } }));
  expect(flagsOf(rendered)).toMatchObject({ backend: provider.url, tokenFile: provider.tokenFile });
});

describe("several backends", () => {
  const tokenFile = "/etc/vmlet/secrets/vm-api/token";
  const node = (name: string, host: string) => ({
    name,
    provider: { type: "http-vm", url: `https://${host}`, tokenFile },
  });
  const fileOf = (rendered: readonly Json[]) =>
    parseFile(volumeBackendsSchema, find(rendered, "ConfigMap", NAME).data["backends.yaml"], "backends.yaml").backends;

  test("are those of the nodes, each once, with their files", async () => {
    const nodes = [node("a", "one.example.com"), node("b", "two.example.com"), node("c", "one.example.com")];
    const rendered = await renderValues(minimal({ existingSecrets: ["vm-api"], nodes, csi: { enabled: true } }));
    expect(fileOf(rendered)).toEqual([
      { url: "https://one.example.com", tokenFile },
      { url: "https://two.example.com", tokenFile },
    ]);
    expect(flagsOf(rendered)).toMatchObject({ backends: "/etc/vmlet/csi/backends.yaml" });
    expect(flagsOf(rendered)).not.toHaveProperty("backend");
    const [first] = containersOf(rendered);
    expect(first!.volumeMounts).toContainEqual({ name: "backends", mountPath: "/etc/vmlet/csi", readOnly: true });
    expect(podOf(rendered).volumes).toContainEqual({ name: "backends", configMap: { name: NAME } });
  });

  test("are those that the values name, and the nodes' no more", async () => {
    const providers = [{ url: "https://two.example.com", tokenFile: "/etc/vmlet/secrets/other/token" }];
    const csi = { enabled: true, provider: { url: "https://one.example.com" }, providers };
    const existingSecrets = ["vm-api", "other"];
    const rendered = await renderValues(minimal({ existingSecrets, nodes: [node("a", "three.example.com")], csi }));
    expect(fileOf(rendered)).toEqual([{ url: "https://one.example.com" }, providers[0]]);
    expect(containersOf(rendered)[0]!.volumeMounts.map(({ mountPath }: Json) => mountPath)).toContain(
      "/etc/vmlet/secrets/other",
    );
  });
});

test("a cloud of a node that has volumes is a backend by itself, with its files and without its sizes", async () => {
  const [caFile, certFile, keyFile] = ["ca.crt", "tls.crt", "tls.key"].map(
    (name) => `/etc/vmlet/secrets/incus/${name}`,
  );
  const files = { caFile, certFile, keyFile };
  const guestKeysFile = "/etc/vmlet/secrets/guests/keys";
  const where = {
    type: "incus",
    url: "https://incus.example.com:8443",
    project: "burst",
    network: "incusbr0",
    ...files,
  };
  const node = (name: string, more: object) => ({
    name,
    provider: {
      type: "cloud",
      scope: "disks",
      guestKeysFile,
      cloud: { ...where, instanceType: "container", ...more },
      instanceTypes: [{ name: "small" }],
    },
  });
  const volumes = { pools: ["default"], member: "one" };
  const nodes = [node("a", { volumes }), node("b", { volumes }), node("c", {})];
  const rendered = await renderValues(minimal({ existingSecrets: ["incus", "guests"], nodes, csi: { enabled: true } }));
  const text = find(rendered, "ConfigMap", NAME).data["backends.yaml"];
  const { backends } = parseFile(volumeBackendsSchema, text, "backends.yaml");
  expect(backends).toMatchObject([{ type: "cloud", scope: "disks", guestKeysFile, cloud: { ...where, volumes } }]);
  expect(backends).toHaveLength(1);
  expect(flagsOf(rendered)).toMatchObject({ backends: "/etc/vmlet/csi/backends.yaml" });
  const mounts = containersOf(rendered)[0]!.volumeMounts.map(({ mountPath }: Json) => mountPath as string);
  expect(mounts).toEqual(expect.arrayContaining(["/etc/vmlet/secrets/incus", "/etc/vmlet/secrets/guests"]));
});

test("the sidecars ask the driver by the socket that they share with it", () => {
  expect(sidecars.map(({ name }) => name)).toEqual(["provisioner", "attacher", "resizer", "snapshotter"]);
  for (const { args, volumeMounts } of sidecars) {
    expect(args).toContain("--csi-address=/csi/csi.sock");
    expect(volumeMounts).toContainEqual({ name: "socket", mountPath: "/csi" });
  }
});

test("the driver is told which nodes are out of service, and the sidecars have no secret of the backend", () => {
  const mounts = (container: Json) => container.volumeMounts.map(({ mountPath }: Json) => mountPath as string);
  const token = "/var/run/secrets/kubernetes.io/serviceaccount";
  expect(mounts(driver)).toEqual([token, "/csi", "/etc/vmlet/secrets/vm-api"]);
  expect(flagsOf(objects)).toMatchObject({ outOfService: true });
  for (const sidecar of sidecars) expect(mounts(sidecar), sidecar.name).toEqual([token, "/csi"]);
});

test("every container is probed at a port of its own", () => {
  const ports = [driver, ...sidecars].map(({ ports: own, livenessProbe }) => {
    expect(own.map(({ name }: Json) => name)).toEqual([livenessProbe.httpGet.port]);
    return own[0].containerPort as number;
  });
  expect(new Set(ports).size).toBe(5);
  for (const { args, ports: own } of sidecars) expect(args).toContain(`--http-endpoint=:${own[0].containerPort}`);
});

test("its classes are the driver's, and say what the values say", () => {
  const [plain, shared] = objects.filter(({ kind }) => kind === "StorageClass");
  expect(find(objects, "CSIDriver").metadata.name).toBe(CSI_DRIVER);
  expect(plain).toMatchObject({
    metadata: { name: "vmlet", annotations: { "storageclass.kubernetes.io/is-default-class": "true" } },
    provisioner: CSI_DRIVER,
    volumeBindingMode: "WaitForFirstConsumer",
    reclaimPolicy: "Delete",
    allowVolumeExpansion: true,
  });
  expect(shared).toMatchObject({
    metadata: { name: "vmlet-shared" },
    parameters: { class: "shared" },
    volumeBindingMode: "Immediate",
    reclaimPolicy: "Retain",
    allowVolumeExpansion: false,
    mountOptions: ["noatime"],
  });
});

describe("snapshots", () => {
  const kinds = (rendered: readonly Json[]) => rendered.map(({ kind }) => kind as string);
  const groups = (rendered: readonly Json[]) => new Set(rightsOf(rendered, NAME).map(({ group }) => group));

  test("are there where the cluster has their kinds", () => {
    expect(find(withSnapshots, "VolumeSnapshotClass")).toMatchObject({
      metadata: { name: "vmlet" },
      driver: CSI_DRIVER,
      deletionPolicy: "Delete",
    });
    expect(groups(withSnapshots)).toContain("snapshot.storage.k8s.io");
  });

  test.each([
    ["where the cluster does not know them", () => objects],
    [
      "where they are switched off",
      () =>
        render(file, [
          "--api-versions=snapshot.storage.k8s.io/v1/VolumeSnapshotClass",
          "--set=csi.snapshots.enabled=false",
        ]),
    ],
  ])("leave nothing behind %s, neither sidecar nor right", async (_, rendering) => {
    const rendered = await rendering();
    expect(kinds(rendered)).not.toContain("VolumeSnapshotClass");
    expect(containersOf(rendered).map(({ name }) => name)).not.toContain("snapshotter");
    expect(groups(rendered)).not.toContain("snapshot.storage.k8s.io");
  });
});

test("its account reads no secret and no pod, and writes leases by their names alone", () => {
  const rights = rightsOf(withSnapshots, NAME);
  expect(rights.filter(({ resource }) => /secrets|pods|configmaps|serviceaccounts/.test(resource))).toEqual([]);
  const leases = rights.filter(({ resource, verb }) => resource === "leases" && verb !== "create");
  expect(new Set(leases.map(({ name }) => name)).size).toBe(sidecars.length);
  expect(leases.every(({ name, namespace }) => name !== undefined && namespace === "vmlet-system")).toBe(true);
});

describe("in front of the chart's own backend", () => {
  const backend = { enabled: true, existingSecret: "s", image: { repository: "r.example.com/backend" } };

  test("it is refused, for what that keeps goes with its pod", async () => {
    const said = await refusal(minimal({ nodes: [{ name: "n" }], backend, csi: { enabled: true } }));
    expect(said).toContain("csi.enabled: the chart's own backend has no volumes that outlive its pod");
  });

  test("it is let in where the values say that this is wanted all the same, without the backend's key", async () => {
    const config = { persistentVolumes: true };
    const rendered = await renderValues(
      minimal({ nodes: [{ name: "n" }], backend: { ...backend, config }, csi: { enabled: true } }),
    );
    const { ingress } = find(rendered, "NetworkPolicy", "burst-vmlet-backend").spec;
    const callers = ingress[0].from.map(
      ({ podSelector }: Json) => podSelector.matchLabels["app.kubernetes.io/component"],
    );
    expect(callers).toEqual(["agent", "csi"]);
    const { secret } = podOf(rendered).volumes.find(({ name }: Json) => name === "secret-0");
    expect(secret.items.map(({ key }: Json) => key)).toEqual(["token", "ca.crt"]);
  });
});

describe("helm refuses", () => {
  test.each<[string, Json, string]>([
    ["nodes without one", {}, "csi.provider.url: is required, because the nodes have no backend"],
    [
      "a file of a Secret that is not mounted",
      { csi: { enabled: true, provider: { url: "https://x.example.com", tokenFile: "/etc/vmlet/secrets/x/token" } } },
      "csi.provider.tokenFile: /etc/vmlet/secrets/x/token is in no Secret of existingSecrets",
    ],
    [
      "an address without TLS",
      { csi: { enabled: true, provider: { url: "http://x.example.com" } } },
      "/csi/provider/url",
    ],
    ["a file that is anywhere", { csi: { provider: { tokenFile: "/etc/passwd" } } }, "/csi/provider/tokenFile"],
  ])("%s", async (_, wrong, said) => {
    expect(await refusal(minimal({ csi: { enabled: true }, ...wrong }))).toContain(said);
  });
});
