/** The backend's one configuration file. Strict: a key that is not here is an error. */
import { readFileSync } from "node:fs";
import { hostname } from "node:os";
import { z } from "zod";
import { ConfigError, parseFile, type ProviderCapacity, Quantity, toError } from "../../src/provider/kit/index.ts";
import { VERBS } from "../http-vm/server/scope.ts";
import { engineSchema } from "./engines/index.ts";

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
      "read: machines, events, stats. logs. write: create, change, stop, delete. exec: also attach. port_forward. Absent: all.",
    ),
});

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
        extended: z.record(z.string(), z.int().min(0)).optional().describe("Extended resources by name."),
      })
      .optional()
      .describe("What machines may use in all. Absent: the engine's own figure, or none."),
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
  .superRefine(({ listen, tokenFile, clients = [], tls }, context) => {
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
