/** The backend's one configuration file. Strict: a key that is not here is an error. */
import { readFileSync } from "node:fs";
import { hostname } from "node:os";
import { z } from "zod";
import { ConfigError, parseFile, type ProviderCapacity, Quantity, toError } from "../../src/provider/kit/index.ts";
import { engineSchema } from "./engines/index.ts";

export const BACKEND_KIND = "BackendConfig";

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
      .describe("File with the bearer tokens that are accepted, one a line; read again when it changes."),
    tls: z
      .strictObject({
        certFile: z.string().describe("Certificate that is served (PEM)."),
        keyFile: z.string().describe("Its key (PEM)."),
        clientCaFile: z.string().optional().describe("With it, a client must show a certificate that this CA signed."),
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
    startConcurrency: z
      .int()
      .min(1)
      .max(256)
      .default(8)
      .describe("Machines and containers that may be starting at once."),
    logs: z
      .strictObject({
        maxSize: quantity
          .refine((text) => bytesOf(text) >= 1, "must be at least one byte")
          .default("10Mi")
          .describe("Size at which a container's log is rotated. Default 10Mi."),
        maxFiles: z.int().min(2).max(100).default(5).describe("Log files kept per container."),
      })
      .prefault({}),
    logLevel: z
      .enum(["debug", "info", "warn", "error"])
      .default("info")
      .describe("Lowest level of log lines that are written."),
  })
  .superRefine((config, context) => {
    const open = "address" in config.listen && !isLoopback(config.listen.address);
    if (open && config.tokenFile === undefined && config.tls?.clientCaFile === undefined) {
      context.addIssue({
        code: "custom",
        path: ["listen", "address"],
        message:
          "other hosts can reach this address: set tokenFile or tls.clientCaFile, or listen on 127.0.0.1 or a socket",
      });
    }
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

export function logBytesOf(config: BackendConfig): number {
  return bytesOf(config.logs.maxSize);
}

/** Whole bytes of a quantity, rounded down; 0 for what is none. */
function bytesOf(text: string): number {
  return Number((Quantity.tryParse(text)?.nano ?? 0n) / NANO);
}
