/** The backend's one configuration file. Strict: a key that is not here is an error. */
import { readFileSync } from "node:fs";
import { hostname } from "node:os";
import { z } from "zod";
import {
  ConfigError,
  isLabelValue,
  parseFile,
  type ProviderCapacity,
  Quantity,
  type ResourceAmounts,
  toError,
  tracingSchema,
} from "../../src/provider/kit/index.ts";
import { VERBS } from "../http-vm/server/scope.ts";
import { engineSchema } from "./engines/index.ts";
import type { PrewarmOptions } from "./images/prewarmed.ts";
import type { EvictionOptions, ShutdownGrace } from "./host-care.ts";
import { parseAmount, SIGNALS, thresholdsOf } from "./pressure/thresholds.ts";

const BACKEND_KIND = "BackendConfig";

const QUANTITY_FAULT = "must be a Kubernetes quantity such as 500m, 4, 512Mi or 64Gi";

const quantity = z
  .union([z.string(), z.number()], QUANTITY_FAULT)
  .transform(String)
  .refine((text) => (Quantity.tryParse(text)?.nano ?? -1n) >= 0n, QUANTITY_FAULT);

export const isLoopback = (address: string): boolean => /^(127\.|::1$|localhost$)/.test(address);

const listenSchema = z
  .union(
    [
      z.strictObject({
        socket: z.string().startsWith("/", "must be an absolute path").describe("Unix socket to listen on."),
      }),
      z.strictObject({
        address: z.string().default("127.0.0.1").describe("Address to listen on."),
        port: z.int().min(0).max(65535).describe("Port; 0 picks a free one."),
      }),
    ],
    "must be { socket: PATH } or { address: ADDRESS, port: NUMBER }",
  )
  .describe("Where the Machine API is served.");

const names = z.array(z.string().min(1)).min(1);

const clientSchema = z.strictObject({
  name: z
    .string()
    .regex(/^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$/, "must be lower-case letters, digits and hyphens, at most 63")
    .describe("Its name in the audit log."),
  tokenFile: z
    .string()
    .optional()
    .describe("File with the bearer tokens that it is known by, one a line; read again when it changes."),
  certificateNames: names
    .optional()
    .describe(
      "Its certificate's common name, or one of its DNS or URI names. Where both are given, both are asked for.",
    ),
  clusters: names.optional().describe("Clusters whose machines it reaches, by the agent's clusterId. Absent: all."),
  nodes: names.optional().describe("Nodes whose machines it reaches. Absent: all."),
  verbs: z
    .array(z.enum(VERBS))
    .min(1)
    .optional()
    .describe(
      "read: machines, volumes, events, stats. logs. write: create, change, stop, delete machines. exec: also attach. port_forward. volumes: create, change, reserve, delete them. images: say which are kept ready. host: machines of the namespaces of engine.host, with what that gives. Absent: all but host and images; with nodes, but volumes too.",
    ),
});

const signal = z.enum(SIGNALS);
const amounts = z
  .partialRecord(
    signal,
    z
      .union([z.string(), z.number()])
      .transform(String)
      .refine((text) => parseAmount(text) !== undefined, "must be a quantity such as 100Mi, or a share such as 10%"),
  )
  .default({});

const evictionSchema = z
  .strictObject({
    hard: amounts.describe(
      "Amounts below which a machine is evicted at once; 0 turns one off. Default 100Mi of memory, 10% of machines' disks, 15% of images', 5% of their inodes, 10% of the process numbers.",
    ),
    soft: amounts.describe("Amounts below which a machine is evicted after softGraceSeconds. Default none."),
    softGraceSeconds: z
      .partialRecord(signal, z.int().min(0))
      .default({})
      .describe("How long there has to be less than the soft amount. Default 0."),
    minimumReclaim: amounts.describe("How much more than the amount there must be before evictions stop. Default 0."),
    maxPodGraceSeconds: z
      .int()
      .min(0)
      .default(0)
      .describe("Longest grace of a machine that is evicted because of a soft amount. Default 0."),
    transitionSeconds: z
      .int()
      .min(0)
      .default(300)
      .describe("For how long the Node shows a pressure after it was last seen. Default 300."),
  })
  .superRefine(({ soft, softGraceSeconds }, context) => {
    for (const name of SIGNALS)
      if (softGraceSeconds[name] !== undefined && soft[name] === undefined)
        context.addIssue({ code: "custom", path: ["softGraceSeconds", name], message: "has no soft amount" });
  })
  .optional();

export const backendConfigSchema = z
  .strictObject({
    apiVersion: z.literal("vmlet.dev/v1").describe("Version of the file's format."),
    kind: z.literal(BACKEND_KIND).describe("What the file is."),
    stateDir: z
      .string()
      .startsWith("/", "must be an absolute path")
      .describe("Folder for all state; one backend per folder."),
    engine: engineSchema
      .prefault({ type: "process" })
      .describe("Where and how containers run. Default: plain processes."),
    listen: listenSchema,
    tokenFile: z
      .string()
      .optional()
      .describe(
        "File with the bearer tokens of a client that may do everything, one a line; read again when it changes.",
      ),
    clients: z
      .array(clientSchema)
      .optional()
      .describe("Clients that may do some of it. A taken-over agent then reaches no more than its own machines."),
    tls: z
      .strictObject({
        certFile: z.string().describe("Certificate that is served (PEM)."),
        keyFile: z.string().describe("Its key (PEM)."),
        clientCaFile: z
          .string()
          .optional()
          .describe(
            "With it, a client must show a certificate that this CA signed. That is enough where there are neither tokenFile nor clients.",
          ),
      })
      .optional(),
    hostName: z
      .string()
      .optional()
      .transform((name) => name ?? hostname())
      .describe("Shown as the machines' host. Default: this host's name."),
    capacity: z
      .strictObject({
        cpu: quantity.optional().describe("Quantity of cpu."),
        memory: quantity.optional().describe("Quantity of bytes."),
        ephemeralStorage: quantity.optional().describe("Quantity of bytes."),
        pods: z.int().min(0).optional().describe("Machines at a time."),
        extended: z
          .record(z.string(), z.int().min(0))
          .optional()
          .describe("Extended resources by name. They are counted; containers are given nothing by them."),
      })
      .optional()
      .describe("What machines may use in all. Absent: the engine's own figure, or none."),
    systemReserved: z
      .strictObject({
        cpu: quantity.optional().describe("Quantity of cpu."),
        memory: quantity
          .optional()
          .describe("Quantity of bytes. Default: a twentieth of the memory, from 256Mi to 2Gi, at most half of it."),
        ephemeralStorage: quantity.optional().describe("Quantity of bytes."),
      })
      .optional()
      .describe(
        "What the host keeps for its own programs, and for the backend's: machines together are held to the rest. Engines oci, cri and vm.",
      ),
    eviction: evictionSchema.describe(
      "When machines are evicted so that the host lives, with a kubelet's signals: memory.available, nodefs.available, nodefs.inodesFree (machines' disks), imagefs.available, imagefs.inodesFree (images), pid.available. Engines oci, cri and vm; process where this section is given.",
    ),
    shutdown: z
      .strictObject({
        graceSeconds: z
          .int()
          .min(0)
          .max(86_400)
          .default(30)
          .describe("For all machines together, as a kubelet's shutdownGracePeriod. Default 30."),
        criticalSeconds: z
          .int()
          .min(0)
          .max(86_400)
          .optional()
          .describe(
            "Of it, for those from priority 2000000000 on, which end last, as a kubelet's shutdownGracePeriodCriticalPods. Default a third.",
          ),
      })
      .prefault({})
      .describe(
        "How machines end when the host goes down: the backend is stopped while systemd is stopping, or gets SIGPWR. When it is only restarted, machines run on.",
      ),
    secrets: z
      .strictObject({
        medium: z
          .enum(["memory", "disk"])
          .default("memory")
          .describe(
            "Where what machines are told in confidence lies: files of Secrets, tokens, environments. In memory it is lost when the host restarts, and its machines fail then; on disk they go on.",
          ),
        dir: z
          .string()
          .startsWith("/", "must be an absolute path")
          .optional()
          .describe("A tmpfs to keep it on. Default: /dev/shm, else /run."),
        maxBytes: quantity
          .optional()
          .describe(
            "How much of it there may be; one namespace has no more than is left. Default: a twentieth of the memory, at most half of the tmpfs.",
          ),
      })
      .prefault({}),
    persistentVolumes: z
      .boolean()
      .default(true)
      .describe(
        "Whether volumes that outlive machines are offered, where the engine has them. false where stateDir may be gone before they are, as in a container: a cluster would count on what is lost. Volumes that machines have stay theirs. Default true.",
      ),
    zone: z
      .string()
      .min(1)
      .refine(isLabelValue, "must be the value of a label: at most 63 letters, digits, '-', '_' and '.'")
      .optional()
      .describe(
        "Where its machines and their volumes are. Needed where a cluster has the volumes of several backends: the name of this host, for example. The nodes get it as the label topology.volumes.vmlet.dev/zone, and pods go where their volumes are. Volumes keep the zone that they were made in. Default: none.",
      ),
    prewarm: z
      .strictObject({
        images: z
          .array(z.string().min(1).max(1024))
          .max(1000)
          .optional()
          .describe("Images to pull before a machine asks for them, without credentials."),
        maxImages: z
          .int()
          .min(0)
          .max(1000)
          .default(100)
          .describe("How many images are kept ready, with those of clients (/v1/images). Default 100."),
        maxSize: quantity
          .optional()
          .describe("How many bytes they may have together. Default: a quarter of the disk that images are on."),
      })
      .prefault({})
      .describe(
        "Images that are kept ready: pulled ahead, and not removed to free disk for as long as they are listed here or by a client. Engines oci, cri and vm.",
      ),
    startConcurrency: z
      .int()
      .min(1)
      .max(256)
      .default(8)
      .describe(
        "Machines and containers of one namespace that may be starting at once; of all together, twice as many.",
      ),
    logs: z
      .strictObject({
        maxSize: quantity
          .refine((text) => bytesOf(text) >= 1, "must be at least one byte")
          .default("10Mi")
          .describe("Size at which a container's log is rotated. Default 10Mi."),
        maxFiles: z.int().min(2).max(100).default(5).describe("Log files kept per container."),
      })
      .prefault({}),
    tracing: tracingSchema,
    audit: z
      .strictObject({
        commands: z
          .enum(["first", "full"])
          .default("first")
          .describe(
            "How much of a command a line of the audit says, at level info of the log: its first word, or all of it, with the secrets that may stand there.",
          ),
      })
      .prefault({}),
    logLevel: z
      .enum(["debug", "info", "warn", "error"])
      .default("info")
      .describe("Lowest level of log lines that are written."),
  })
  .superRefine(({ listen, tokenFile, clients = [], tls, shutdown, engine, prewarm }, context) => {
    const fault = (path: (string | number)[], message: string) => context.addIssue({ code: "custom", path, message });
    if ("socket" in listen && tls !== undefined)
      fault(["tls"], "is for an address and port: a socket cannot be overheard");
    // Not even on loopback: a caller that makes a program of this host send a request, as a probe may, would run
    // commands in any machine.
    if ("port" in listen && tokenFile === undefined && clients.length === 0 && tls?.clientCaFile === undefined)
      fault(
        ["listen"],
        "every program of this host would run commands in any machine: set tokenFile (openssl rand -hex 32 > FILE), clients or " +
          "tls.clientCaFile, or listen on a socket, which only its owner can open: { socket: /run/vmlet/backend.sock }",
      );
    if (engine.type === "process" && (prewarm.images?.length ?? 0) > 0)
      fault(["prewarm", "images"], "engine process has no images: name another engine, or leave this out");
    if ((shutdown.criticalSeconds ?? 0) > shutdown.graceSeconds)
      fault(["shutdown", "criticalSeconds"], `must not be more than graceSeconds (${shutdown.graceSeconds})`);
    clients.forEach((client, index) => {
      if (clients.findIndex(({ name }) => name === client.name) < index)
        fault(["clients", index, "name"], `${client.name} is another client's name`);
      if (client.tokenFile === undefined && client.certificateNames === undefined)
        fault(
          ["clients", index],
          "needs a tokenFile or certificateNames: without either, no caller could be this client",
        );
      if (client.certificateNames !== undefined && tls?.clientCaFile === undefined)
        fault(["clients", index, "certificateNames"], "needs tls.clientCaFile: without it no certificate is asked for");
    });
  });

export type BackendConfig = z.infer<typeof backendConfigSchema>;

/** @throws ConfigError naming file, line and field */
export function loadBackendConfig(path: string): BackendConfig {
  let text: string;
  try {
    text = readFileSync(path, "utf8");
  } catch (thrown) {
    throw new ConfigError(`cannot read the configuration file ${path}: ${toError(thrown).message}`, { cause: thrown });
  }
  return parseBackendConfig(text, path);
}

/** @param path names the text in messages. @throws ConfigError naming line and field */
export function parseBackendConfig(text: string, path: string): BackendConfig {
  return parseFile(backendConfigSchema, text, path);
}

const DEFAULT_EVICTION = evictionSchema.unwrap().parse({});

const NANO = 1_000_000_000n;

/** Millicores and bytes, rounded down. */
export function capacityOf(config: BackendConfig): ProviderCapacity | undefined {
  const { capacity } = config;
  if (capacity === undefined) return undefined;
  const whole = (text: string, factor = 1n) => Number((Quantity.tryParse(text)!.nano * factor) / NANO);
  return {
    allocatable: {
      ...(capacity.cpu === undefined ? {} : { cpu_millis: whole(capacity.cpu, 1000n) }),
      ...(capacity.memory === undefined ? {} : { memory_bytes: whole(capacity.memory) }),
      ...(capacity.ephemeralStorage === undefined ? {} : { ephemeral_bytes: whole(capacity.ephemeralStorage) }),
      ...(capacity.extended === undefined
        ? {}
        : { extended: Object.entries(capacity.extended).map(([name, count]) => ({ name, count })) }),
      ...(capacity.pods === undefined ? {} : { pods: capacity.pods }),
    },
  };
}

/** Millicores and bytes, rounded down. */
export function systemReservedOf({ systemReserved }: BackendConfig): ResourceAmounts | undefined {
  if (systemReserved === undefined) return undefined;
  const { cpu, memory, ephemeralStorage } = systemReserved;
  return {
    ...(cpu === undefined ? {} : { cpu_millis: Number(Quantity.tryParse(cpu)!.nano / 1_000_000n) }),
    ...(memory === undefined ? {} : { memory_bytes: bytesOf(memory) }),
    ...(ephemeralStorage === undefined ? {} : { ephemeral_bytes: bytesOf(ephemeralStorage) }),
  };
}

export function shutdownGraceOf({ shutdown }: BackendConfig): ShutdownGrace {
  const { graceSeconds, criticalSeconds = graceSeconds / 3 } = shutdown;
  return { graceMs: graceSeconds * 1000, criticalGraceMs: criticalSeconds * 1000 };
}

/** Undefined: nothing is evicted. Engine process is for development, on hosts whose disks may be full for years. */
export function evictionOf({ eviction, engine }: BackendConfig): EvictionOptions | undefined {
  if (eviction === undefined && engine.type === "process") return undefined;
  const { maxPodGraceSeconds, transitionSeconds, ...amounts } = eviction ?? DEFAULT_EVICTION;
  return {
    thresholds: thresholdsOf(amounts),
    maxPodGraceMs: maxPodGraceSeconds * 1000,
    transitionMs: transitionSeconds * 1000,
  };
}

export function prewarmOf({ prewarm: { images, maxImages, maxSize } }: BackendConfig): PrewarmOptions {
  return { images, maxImages, maxBytes: maxSize === undefined ? undefined : bytesOf(maxSize) };
}

/** Absent: the host decides. */
export function secretBytesOf({ secrets: { maxBytes } }: BackendConfig): number | undefined {
  return maxBytes === undefined ? undefined : bytesOf(maxBytes);
}

export function logBytesOf(config: BackendConfig): number {
  return bytesOf(config.logs.maxSize);
}

/** Whole bytes of a quantity, rounded down; 0 for a text that is not one. */
function bytesOf(text: string): number {
  return Number((Quantity.tryParse(text)?.nano ?? 0n) / NANO);
}
