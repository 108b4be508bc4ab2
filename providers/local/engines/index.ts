/** The engines, by type: what each takes from the configuration file, and how it is made. */
import { z } from "zod";
import type { Clock, Logger, ResourceAmounts, Tracing } from "../../../src/provider/kit/index.ts";
import type { Engine } from "../engine.ts";
import type { LogLimits } from "./cri/logs.ts";
import { capabilityName, CONTAINED_CAPABILITIES } from "../bundle/container-policy.ts";
import { ALL_LINUX_CAPABILITIES } from "../bundle/bundle.ts";
import { requireDevicePattern } from "./cri/devices.ts";
import { CriEngine } from "./cri/engine.ts";
import { shimOf } from "./cri/runtimes.ts";
import { OciEngine } from "./oci/engine.ts";
import { DEFAULT_HOST_PORTS, parsePortRange } from "../network/host-ports.ts";
import { parseSubnet } from "../network/ipam.ts";
import type { FrontDoor } from "../network/front-door.ts";
import { BRIDGE_NAME, DEFAULT_DENIED } from "../network/network.ts";
import { OF_THE_NODE } from "../network/range.ts";
import { AddressPool, createProcessEngine } from "./process/process.ts";
import { VmEngine } from "./vm/engine.ts";

/** Whether `parse` takes the text: a fault is reported with its place in the file, before anything starts. */
const parsedBy = (parse: (text: string) => unknown) => (text: string) => {
  try {
    parse(text);
    return true;
  } catch {
    return false;
  }
};

const isCapability = (name: string) => ALL_LINUX_CAPABILITIES.includes(capabilityName(name));

const processSchema = z.strictObject({
  type: z.literal("process"),
  images: z
    .record(z.string(), z.array(z.string()).min(1))
    .default({})
    .describe("Command by image, for containers without one; `*` stands for every other image."),
  standIns: z
    .boolean()
    .optional()
    .describe(
      "For images not named there: a small web server for nginx, httpd and caddy, a shell of this host for busybox, alpine, debian and ubuntu, a sleep without end for others; a container's command, or args that are one, win. Default false; `vmlet dev` has it.",
    ),
  hostsDir: z
    .string()
    .startsWith("/", "must be an absolute path")
    .optional()
    .describe(
      "Folder with a file for each namespace, by its name, which its machines have as /etc/hosts; `vmlet dev` writes Services' names there. Absent: they have the host's.",
    ),
  addressPool: z
    .string()
    .refine(
      parsedBy((range) => new AddressPool(range)),
      "must be an IPv4 range within 127.0.0.0/8 with a prefix of 8 to 30, such as 127.64.0.0/10",
    )
    .default("127.64.0.0/10")
    .describe(
      "Range within 127.0.0.0/8: each machine gets an address that is its own on this host. Served beyond loopback, all have the host's.",
    ),
});

const imagesSchema = z
  .strictObject({
    insecureRegistries: z
      .array(z.string())
      .optional()
      .describe(
        "Registries (host:port) without TLS, or with a certificate that no CA of this host vouches for, wherever they are.",
      ),
    localRegistries: z
      .array(z.string())
      .optional()
      .describe(
        "Registries (host:port) with TLS at addresses that images are otherwise not pulled from: this host's own, loopback, link-local, those of machines and denyCidrs. What a registry leads to, for tokens or layers, is named for itself.",
      ),
    parallelPulls: z
      .int()
      .min(1)
      .max(32)
      .optional()
      .describe("Pulls of one namespace at a time; of all together, twice as many. Default 2."),
    maxImageBytes: z.int().min(1).optional().describe("Limit on the compressed layers of an image. Default 20 GiB."),
    maxUnpackedBytes: z.int().min(1).optional().describe("Limit on an unpacked image. Default 50 GiB."),
    maxUnpackedFiles: z.int().min(1).optional().describe("Limit on the files of an unpacked image. Default 2000000."),
    gc: z
      .strictObject({
        highPercent: z
          .number()
          .min(1)
          .max(100)
          .default(85)
          .describe("Disk usage at which unused images are removed. Default 85."),
        lowPercent: z.number().min(1).max(100).default(80).describe("Disk usage at which removing stops. Default 80."),
        minAgeMs: z.int().min(0).optional().describe("Images used more recently stay. Default 120000."),
      })
      .superRefine(({ highPercent, lowPercent }, context) => {
        const message = `${lowPercent} must not be above highPercent (${highPercent})`;
        if (lowPercent > highPercent) context.addIssue({ code: "custom", path: ["lowPercent"], message });
      })
      .optional(),
  })
  .optional()
  .describe("Pulling and keeping of images.");

const networkSchema = z
  .strictObject({
    bridge: z
      .string()
      .regex(BRIDGE_NAME, "must be 1 to 10 lower-case letters and digits, a letter first")
      .optional()
      .describe("Name of the machines' bridge; one backend per bridge. Default vmlet0."),
    cidr: z
      .string()
      .refine(
        (cidr) => cidr === OF_THE_NODE || parsedBy(parseSubnet)(cidr),
        "must be an IPv4 range with a prefix of 8 to 29, such as 10.99.0.0/16, after a comma perhaps an IPv6 one with room for as many, such as fd00:10:99::/64, or node",
      )
      .optional()
      .describe(
        "IPv4 range of the machines' addresses; the host has none of it elsewhere. After a comma perhaps an IPv6 one: then machines have an address of each (dual stack), as 10.99.0.0/16,fd00:10:99::/64. node: the podCIDRs of the Node, which its agent tells and which have to lie in podCidrs; no machine begins before that. Default 10.99.0.0/16.",
      ),
    outbound: z
      .enum(["allow", "deny"])
      .optional()
      .describe("Whether machines reach the outside, masqueraded. Default allow."),
    denyCidrs: z
      .array(z.union([z.cidrv4(), z.ipv4(), z.cidrv6(), z.ipv6()], "must be a range such as 169.254.0.0/16"))
      .optional()
      .describe(`Never reached by machines. Default ${DEFAULT_DENIED.join(", ")}, where clouds serve credentials.`),
    podCidrs: z
      .array(z.union([z.cidrv4(), z.cidrv6()], "must be a range such as 10.96.0.0/11 or fd00:10::/48"))
      .optional()
      .describe(
        "Ranges of the cluster's pods, to which this host has routes where they are on other hosts: machines reach them under their own addresses, never masqueraded, whatever outbound says. With cidr node, that of the Node has to lie in one; where none is of IPv6, machines have IPv4 alone. Default none.",
      ),
    services: z
      .boolean()
      .optional()
      .describe(
        "Have machines reach the cluster's Services at their ClusterIPs (of IPv4) by rules of the backend's own, made of what the Node's agent tells: for a host without kube-proxy. Only with cidr node, for a Service's address is one cluster's. Default false.",
      ),
    openHostPorts: z
      .array(z.int().min(1).max(65535))
      .optional()
      .describe("Ports of this host that machines may reach. Default none."),
    hostPorts: z
      .array(
        z
          .union([z.string(), z.int()])
          .transform(String)
          .refine(parsedBy(parsePortRange), "must be a port or a range of ports such as 30000-32767"),
      )
      .optional()
      .describe(
        `Ports of this host, and ranges of them, that pods may have as hostPort, with hostIP of that address alone, as long as no other program of this host uses them. Default ${DEFAULT_HOST_PORTS.join(", ")}.`,
      ),
  })
  .superRefine(({ cidr, services = false }, context) => {
    if (!services || cidr === OF_THE_NODE) return;
    const message =
      "wants cidr: node: a Service's address is one cluster's, and machines of another may be here otherwise";
    context.addIssue({ code: "custom", path: ["services"], message });
  })
  .superRefine(({ cidr, podCidrs = [] }, context) => {
    if (cidr !== OF_THE_NODE || podCidrs.some((each) => !each.includes(":"))) return;
    const message = "must name the range that the cluster gives Nodes theirs of (--cluster-cidr): cidr is node";
    context.addIssue({ code: "custom", path: ["podCidrs"], message });
  })
  .optional()
  .describe("The machines' network.");

/** What the engines take whose containers share this host's kernel. */
const containedKeys = {
  allowPrivileged: z
    .boolean()
    .optional()
    .describe(
      "Admit what hands this host over: privileged containers, any capability, an unmasked /proc, no seccomp profile. Default false.",
    ),
  allowedCapabilities: z
    .array(z.string().refine(isCapability, "must be a Linux capability such as NET_ADMIN"))
    .optional()
    .describe(
      `Capabilities that containers may add besides containerd's default ones. Default ${CONTAINED_CAPABILITIES.map((name) => name.slice("CAP_".length)).join(", ")}.`,
    ),
  pidsLimit: z
    .int()
    .min(16)
    .optional()
    .describe("Processes and threads per pod; all pods together have four fifths of the host's. Default 4096."),
};

const hostKeys = z.strictObject({
  namespaces: z
    .array(
      z
        .string()
        .regex(
          /^(?:[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?|\*)$/,
          "must be the name of a namespace such as kube-system, or * for all",
        ),
    )
    .min(1)
    .describe(
      "Kubernetes namespaces whose pods may have it, as the agents name them, or * for all: whoever makes pods there owns this host.",
    ),
  podLogs: z
    .string()
    .startsWith("/", "must be an absolute path")
    .optional()
    .describe(
      "Folder of this host, such as /var/log/pods, where the logs of all pods are as a kubelet's (NAMESPACE_POD_UID/CONTAINER/N.log, and links in the folder containers beside it), for those that collect them. Absent: nowhere.",
    ),
});

const HOST_WORDS =
  "Who may have this host's network, processes, IPC and files (hostNetwork, hostPID, hostIPC, hostPath), mounts that propagate, and privileged containers. A client of `clients` needs the verb host for it. Absent: nobody.";
const hostSchema = hostKeys.optional().describe(HOST_WORDS);

const pluginsSchema = z
  .strictObject({
    directory: z
      .string()
      .startsWith("/", "must be an absolute path")
      .default("/var/lib/kubelet")
      .describe(
        "Folder in which they look for a kubelet's sockets: device-plugins/kubelet.sock, plugins_registry. Default /var/lib/kubelet, the name that plugins know.",
      ),
  })
  .optional()
  .describe(
    "Serve device plugins of this host, as a kubelet does: what they have is the Node's, and containers that ask for it get it. Who can write to the folder owns this host: a plugin may hand out any file of it. Absent: none are served.",
  );

const ociSchema = z.strictObject({
  type: z.literal("oci"),
  runtime: z.string().optional().describe("OCI runtime, by name or path. Default runc."),
  trustRuntime: z
    .boolean()
    .optional()
    .describe(
      "Use a runtime although its version has known ways out of a container: your distribution has mended it. Default false.",
    ),
  seccompProfile: z
    .string()
    .optional()
    .describe("Profile for containers that are not unconfined. Default: that of containers-common."),
  ...containedKeys,
  plugins: pluginsSchema,
  host: hostKeys.omit({ podLogs: true }).optional().describe(HOST_WORDS),
  images: imagesSchema,
  network: networkSchema,
});

const criSchema = z
  .strictObject({
    type: z.literal("cri"),
    socket: z
      .string()
      .startsWith("/", "must be an absolute path")
      .optional()
      .describe(
        "Unix socket of a containerd or CRI-O of this host, with its images and its network. Default: a containerd of the backend's own, which it starts and removes.",
      ),
    cdiDevices: z
      .array(
        z
          .string()
          .refine(
            parsedBy(requireDevicePattern),
            "must be the name of a CDI device such as vendor.example/gpu=0, or the start of names with * behind =, such as vendor.example/gpu=*",
          ),
      )
      .optional()
      .describe(
        "Devices of this host that containers may have, by their names in the Container Device Interface (specifications in /etc/cdi and /var/run/cdi); * after = stands for all of a kind. Whoever may create machines may have them. Default none.",
      ),
    runtimes: z
      .record(
        z
          .string()
          .regex(/^[a-z0-9]([-a-z0-9]*[a-z0-9])?$/, "must be a handler that a RuntimeClass can name: a-z, 0-9 and -")
          .refine((name) => name !== "runc", "is there, and is the default one"),
        z
          .string()
          .refine(
            parsedBy(shimOf),
            "must be the type of a runtime, such as io.containerd.kata.v2, whose shim containerd-shim-kata-v2 is on the PATH",
          ),
      )
      .optional()
      .describe(
        "Handlers of RuntimeClasses that the backend's own containerd has besides runc, by name, each with the type of its runtime as containerd knows it: { kata-qemu: io.containerd.kata.v2 }. Default: runsc and kata, where their shims are on the PATH.",
      ),
    ...containedKeys,
    host: hostSchema,
    plugins: pluginsSchema,
    images: imagesSchema,
    network: networkSchema,
  })
  .superRefine(({ socket, network, images, runtimes }, context) => {
    const fault = (path: string[], message: string) => context.addIssue({ code: "custom", path, message });
    if (socket !== undefined && runtimes !== undefined)
      fault(
        ["runtimes"],
        "is for a containerd of the backend's own: with socket, the runtime's configuration says which handlers it has",
      );
    if (socket !== undefined && network !== undefined)
      fault(
        ["network"],
        "is for a containerd of the backend's own: with socket, the runtime's CNI configuration holds",
      );
    const ours = [
      "insecureRegistries",
      "localRegistries",
      "maxImageBytes",
      "maxUnpackedBytes",
      "maxUnpackedFiles",
    ] as const;
    for (const key of socket === undefined ? [] : ours)
      if (images?.[key] !== undefined)
        fault(["images", key], "is for a containerd of the backend's own: with socket, the runtime pulls as it likes");
  });

const vmSchema = z
  .strictObject({
    type: z.literal("vm"),
    guestDir: z
      .string()
      .optional()
      .describe(
        "Folder of the guest image (kernel and initramfs), made from Debian packages when it is not there. Default: in ~/.cache/vmlet.",
      ),
    accelerator: z
      .enum(["auto", "kvm", "tcg"])
      .optional()
      .describe("auto boots a guest under KVM to see. Default auto."),
    clones: z.boolean().optional().describe("Start machines as copies of a booted one of their size. Default true."),
    warmPool: z
      .int()
      .min(0)
      .max(100)
      .optional()
      .describe(
        "VMs that are kept ready for machines, each about 60 MiB under emulation; they have the size of a machine without limits, and serve those that ask for half as much or more. Default 0.",
      ),
    defaultMemoryMib: z.int().min(32).optional().describe("Memory for containers without a limit, MiB. Default 128."),
    scratchBytes: z
      .int()
      .min(64 << 20)
      .optional()
      .describe("Size of a machine's own disk; sparse. Default 10 GiB."),
    bootTimeoutMs: z.int().min(1000).optional().describe("A VM that is not ready by then is given up. Default 90000."),
    users: z
      .strictObject({
        first: z
          .int()
          .min(1000)
          .max(0x7fff_0000)
          .optional()
          .describe("The first one. Default 1879048192, from where on systemd gives none to anybody."),
        count: z.int().min(16).max(65_536).optional().describe("How many there are. Default 65536."),
      })
      .optional()
      .describe("Users and groups of this host that QEMUs run as, one for each VM; nobody else has them."),
    seccompProfile: z
      .string()
      .optional()
      .describe("Profile for containers that are not unconfined. Default: that of containers-common."),
    pidsLimit: z.int().min(16).optional().describe("Processes and threads per container. Default 4096."),
    images: imagesSchema,
    network: networkSchema,
    cni: z
      .strictObject({
        confDir: z
          .string()
          .startsWith("/", "must be an absolute path")
          .optional()
          .describe("Folder of the network's configuration. Default /etc/cni/net.d."),
        binDirs: z
          .array(z.string().startsWith("/", "must be an absolute path"))
          .min(1)
          .optional()
          .describe("Folders of its plugins. Default /opt/cni/bin, /usr/lib/cni, /usr/libexec/cni."),
      })
      .optional()
      .describe(
        "Have machines on the network of the host's cluster, as CNI's plugins make it, instead of a bridge of the backend's own (network); {} takes all defaults.",
      ),
  })
  .superRefine(({ cni, network, warmPool = 0 }, context) => {
    const fault = (path: string, message: string) => context.addIssue({ code: "custom", path: [path], message });
    if (cni === undefined) return;
    if (network !== undefined)
      fault("network", "is for a bridge of the backend's own: with cni, the CNI configuration holds");
    if (warmPool > 0)
      fault("warmPool", "has to be 0 with cni: a VM has its network by its pod's name, so none can wait for a pod");
  });

export const engineSchema = z.discriminatedUnion("type", [processSchema, ociSchema, criSchema, vmSchema]);

type EngineConfig = z.infer<typeof engineSchema>;

interface EngineOptions {
  stateDir: string;
  clock: Clock;
  logger: Logger;
  /** Absent: nothing is traced. */
  tracing?: Tracing | undefined;
  /** What machines may have together, as the owner says. */
  capacity?: ResourceAmounts | undefined;
  /** What the host keeps for its own programs, as the owner says. */
  systemReserved?: ResourceAmounts | undefined;
  /** By which other hosts reach this one, when the API is served to them. */
  hostAddress?: string | undefined;
  /** Ports of this host that the backend itself serves on. */
  reservedPorts?: readonly number[] | undefined;
  /** Where this host has one machine, which has its address. */
  frontDoor?: FrontDoor | undefined;
  /** Of each container's log, where a runtime writes it. */
  logLimits?: LogLimits | undefined;
}

const DEFAULT_LOG_LIMITS: LogLimits = { maxBytes: 10 * 1024 * 1024, maxFiles: 5 };

export function createEngine(config: EngineConfig, options: EngineOptions): Engine {
  const { stateDir, clock, logger, capacity, systemReserved, hostAddress, reservedPorts = [] } = options;
  const { logLimits = DEFAULT_LOG_LIMITS, tracing, frontDoor } = options;
  const { type } = config;
  switch (type) {
    case "process":
      return createProcessEngine({
        images: config.images,
        standIns: config.standIns,
        addressPool: config.addressPool,
        hostsDir: config.hostsDir,
        stateDir,
        clock,
        hostAddress,
      });
    case "oci":
      return new OciEngine({ ...config, stateDir, clock, logger, capacity, systemReserved, reservedPorts, frontDoor });
    case "cri":
      return new CriEngine({
        ...config,
        ...{ stateDir, clock, logger, tracing, capacity, systemReserved, reservedPorts, frontDoor, logLimits },
      });
    case "vm":
      return new VmEngine({ ...config, stateDir, clock, logger, capacity, systemReserved, reservedPorts });
  }
}
