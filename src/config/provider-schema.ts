/** What the configuration says of a node's backend: which one it is, and how it is reached. */
import { z } from "zod";
import { duration, pairUp, quantity } from "./fields.ts";

/** How a Machine API is reached. */
const reachedBy = {
  url: z
    .string()
    .regex(
      /^(https:\/\/|unix:\/|http:\/\/(localhost|127\.\d+\.\d+\.\d+|\[::1\])(:\d+)?(\/|$))/,
      "must begin with https:// or unix:/; plain http:// shows every secret to the network and is for 127.0.0.1 only",
    )
    .refine((url) => !/^https?:\/\/[^/]*@/.test(url), "credentials do not belong in an address; use tokenFile")
    .refine((url) => !/^https?:/.test(url) || url.includes("@") || URL.canParse(url), {
      error: ({ input }) => `the backend's address ${String(input)} is no URL; give https://host:port`,
    })
    .describe("Base address of the Machine API: https://host:port or unix:/path/to/socket; http:// on loopback."),
  tokenFile: z.string().optional().describe("File with the bearer token; read again when it changes."),
  caFile: z.string().optional().describe("CA certificates that sign the backend's certificate (PEM)."),
  certFile: z.string().optional().describe("Client certificate for mutual TLS (PEM)."),
  keyFile: z.string().optional().describe("Key of the client certificate (PEM)."),
};

const httpVmSchema = z
  .strictObject({
    type: z.literal("http-vm"),
    ...reachedBy,
    concurrency: z.int().min(1).max(1000).default(32).describe("Calls under way at once."),
    requestsPerSecond: z
      .number()
      .positive()
      .default(200)
      .describe("Sustained rate of calls; short bursts may be twice as many."),
  })
  .superRefine(pairUp);

const memorySchema = z.strictObject({
  type: z.literal("memory"),
  startDelay: duration("0s").describe("How long a machine takes to run."),
});

const moduleSchema = z.strictObject({
  type: z.literal("module"),
  module: z
    .string()
    .min(1)
    .describe(
      "Path or package of an ES module that exports `createProvider(options)`; a path that begins with a dot is one from this file's folder.",
    ),
  options: z.record(z.string(), z.unknown()).default({}).describe("Passed to createProvider as it stands."),
});

const incusSchema = z
  .strictObject({
    type: z.literal("incus"),
    url: z
      .string()
      .regex(/^(https:\/\/[^/@]+\/?|unix:\/.*)$/, "must be https://host:8443 or unix:///var/lib/incus/unix.socket")
      .describe("An Incus server, or any member of a cluster: https://host:8443 or unix:///path."),
    caFile: z.string().optional().describe("The server's (cluster's) own certificate, or the CA that signed it (PEM)."),
    certFile: z.string().optional().describe("Client certificate that the server trusts (PEM)."),
    keyFile: z.string().optional().describe("Its key (PEM)."),
    project: z.string().min(1).default("default").describe("Project that holds the VMs, and what is known of them."),
    instanceType: z
      .enum(["container", "virtual-machine"])
      .default("virtual-machine")
      .describe("What a VM is there. Containers share their host's kernel."),
    image: z
      .string()
      .min(1)
      .default("vmlet-guest")
      .describe("Alias or fingerprint of the image that `vmlet cloud image` has brought."),
    storagePool: z.string().min(1).default("default").describe("Pool of the VMs' disks."),
    network: z.string().min(1).describe("Network that the VMs are on; their addresses on it are their pods'."),
    instanceConfig: z
      .record(z.string(), z.string())
      .default({})
      .describe("Further configuration of each instance, by Incus's keys."),
    volumes: z
      .strictObject({
        pools: z
          .array(z.string().regex(/^[^/\s]+$/, "must be the name of a pool, without a slash"))
          .min(1)
          .refine((pools) => new Set(pools).size === pools.length, "names a pool twice")
          .describe(
            "Pools of the volumes that outlive pods. Each is a class of the same name; the first is that of volumes which name none.",
          ),
        member: z
          .string()
          .regex(/^[^@\s]+$/, "must be the name of one member of the cluster")
          .optional()
          .describe(
            "Member of the cluster whose pools these are, where each member has disks of its own (btrfs, dir, LVM, ZFS): the zone of the volumes, and of the pods that have any. Absent: a single host, or pools that all members reach (Ceph).",
          ),
      })
      .optional()
      .describe("Persistent volumes, as Incus's custom volumes. Containers only. Absent: there are none."),
  })
  .superRefine(pairUp)
  .superRefine(({ instanceType, volumes }, context) => {
    if (volumes === undefined || instanceType === "container") return;
    const message = "are for instances of type container: leave volumes out, or set instanceType to container";
    context.addIssue({ code: "custom", path: ["volumes"], message });
  });

const soldSchema = z.strictObject({
  name: z.string().min(1).max(63).describe("What pods ask for by the annotation vmlet.dev/instance-type."),
  cpu: quantity.optional().describe("What a pod may ask for of it. Absent: not limited."),
  memory: quantity.optional().describe("The same, without what the guest itself takes (256Mi). Absent: not limited."),
  ephemeralStorage: quantity.optional().describe("Size of its disk. Absent: the pool's own default."),
  extended: z.record(z.string(), z.int().min(1)).default({}).describe("Further resources, by name."),
  price: z.number().min(0).max(1e9).optional().describe("Per hour, in any currency: the cheapest that fits is taken."),
  zone: z.string().min(1).optional().describe("Member of the cluster, or @group of members, that it is to be had on."),
  spot: z.boolean().optional().describe("The cloud may take it back."),
  warm: z.int().min(0).default(0).describe("So many run and wait for pods of this node. They cost what others cost."),
});

const inCloud = {
  type: z.literal("cloud"),
  cloud: incusSchema.describe("The cloud, and where in it."),
  scope: z
    .string()
    .regex(/^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$/, "must be lower-case letters, digits and hyphens, at most 40")
    .default("vmlet")
    .describe("Agents with the same scope in one project share its machines, and clean up behind each other."),
  guestKeysFile: z
    .string()
    .min(1)
    .optional()
    .describe(
      "File with a secret (openssl rand -hex 32), the same for all agents of the scope and `vmlet csi`: guests are then reached at their VMs' addresses, port 10443, by TLS with keys on both sides that are made of it for each VM. Of several lines the first is for new VMs. Absent: through Incus.",
    ),
};

const cloudSchema = z.strictObject({
  ...inCloud,
  instanceTypes: z.array(soldSchema).min(1).describe("Sizes of VM; one that is to be had in two zones is named twice."),
  allowPrivileged: z
    .boolean()
    .optional()
    .describe(
      "Let containers be privileged: in their own VM, which is theirs alone. Default: where VMs have a kernel of their own (instanceType virtual-machine).",
    ),
  services: z
    .boolean()
    .default(true)
    .describe(
      "Have pods reach the cluster's Services by rules in their own VM, as kube-proxy makes them on a node. Off: where the VMs' network does it.",
    ),
});

export const providerSchema = z.discriminatedUnion("type", [httpVmSchema, memorySchema, moduleSchema, cloudSchema]);

/** A cloud with volumes has no Machine API in front of it: who serves them speaks to the cloud, as its agents do. */
const volumeCloudSchema = z.strictObject(inCloud).refine(({ cloud }) => cloud.volumes !== undefined, {
  path: ["cloud", "volumes"],
  message: "is missing: say of which pools the volumes are",
});

/** `vmlet csi --backends`: all backends with volumes. */
export const volumeBackendsSchema = z.strictObject({
  apiVersion: z.literal("vmlet.dev/v1").describe("Version of the file's format."),
  kind: z.literal("VolumeBackends").describe("What the file is."),
  backends: z
    .array(
      z.union([z.strictObject(reachedBy).superRefine(pairUp), volumeCloudSchema], {
        error: ({ input }) =>
          (input as { type?: unknown } | null)?.type === undefined
            ? undefined
            : "must be a Machine API (url), or a cloud as a node's provider has it (type: cloud, cloud, scope, guestKeysFile)",
      }),
    )
    .min(1)
    .max(1000)
    .refine((all) => new Set(all.map((each) => keyOfBackend(each))).size === all.length, "names a backend twice")
    .describe(
      "Machine APIs with volumes, and clouds (`type: cloud`, `cloud`, `scope`, `guestKeysFile`, as a node's provider). Of several, each has a `zone` in its own configuration, and no two the same.",
    ),
});

type VolumeCloudConfig = z.infer<typeof volumeCloudSchema>;

function keyOfBackend(backend: { readonly url: string } | VolumeCloudConfig): string {
  if ("url" in backend) return backend.url;
  const { cloud, scope } = backend;
  return JSON.stringify([cloud.url, cloud.project, cloud.volumes?.member ?? "", scope]);
}
