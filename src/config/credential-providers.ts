/** The kubelet's `CredentialProviderConfig`: one file, or a folder of them that is read in the order of their names. */
import { readdirSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import { z } from "zod";
import { parseDuration } from "../resources/duration.ts";
import { toError } from "../util/errors.ts";
import { ConfigError, parseFile } from "./load.ts";

/** What is spoken with plugins. */
export const PLUGIN_PROTOCOL = "credentialprovider.kubelet.k8s.io/v1";

/** A Go duration, as milliseconds. */
export const durationMs = z.string().transform((text, context) => {
  try {
    return parseDuration(text);
  } catch (thrown) {
    context.addIssue({ code: "custom", message: toError(thrown).message });
    return z.NEVER;
  }
});

/**
 * The fields of kubelet's configuration file. Plugins are found in one folder by their name.
 * @internal
 */
export const credentialProviderConfig = z.object({
  apiVersion: z.string().startsWith("kubelet.config.k8s.io/"),
  kind: z.literal("CredentialProviderConfig"),
  providers: z.array(
    z.object({
      name: z
        .string()
        .regex(/^[^/\\ ]+$/, "must be the file name of a plugin")
        .refine((name) => name !== "." && name !== "..", "must be the file name of a plugin"),
      matchImages: z.array(z.string().min(1)).min(1),
      defaultCacheDuration: durationMs,
      apiVersion: z.literal(PLUGIN_PROTOCOL),
      args: z.array(z.string()).default([]),
      env: z.array(z.object({ name: z.string(), value: z.string() })).default([]),
      tokenAttributes: z
        .object({
          serviceAccountTokenAudience: z.string().min(1),
          cacheType: z.enum(["Token", "ServiceAccount"]),
          requireServiceAccount: z.boolean().default(false),
        })
        .optional(),
    }),
  ),
});

export type CredentialProviderConfig = z.infer<typeof credentialProviderConfig>;

interface CredentialProviders {
  config: CredentialProviderConfig;
  /** What plugins inherit, as those of a kubelet do. */
  environment: Record<string, string>;
}

/** @throws ConfigError naming file, line and field */
export function loadCredentialProviders(
  path: string,
  environment: NodeJS.ProcessEnv = process.env,
): CredentialProviders {
  const [first, ...rest] = filesOf(path).map((file) => parseFile(credentialProviderConfig, read(file), file));
  if (first === undefined) throw new ConfigError(`${path}: the folder holds no .json, .yaml or .yml file`);
  const providers = [first, ...rest].flatMap((config) => config.providers);
  const twice = providers.find(({ name }, index) => providers.findIndex((other) => other.name === name) !== index);
  if (twice !== undefined) throw new ConfigError(`${path}: provider ${twice.name} is listed twice`);
  const inherited = Object.entries(environment).flatMap(([name, value]) =>
    value === undefined ? [] : [[name, value] as const],
  );
  return { config: { ...first, providers }, environment: Object.fromEntries(inherited) };
}

function filesOf(path: string): string[] {
  try {
    if (!statSync(path).isDirectory()) return [path];
    const names = readdirSync(path).filter((name) => /\.(json|ya?ml)$/.test(name));
    return names.sort().map((name) => join(path, name));
  } catch (thrown) {
    throw new ConfigError(`cannot read the credential providers ${path}: ${toError(thrown).message}`, {
      cause: thrown,
    });
  }
}

function read(file: string): string {
  try {
    return readFileSync(file, "utf8");
  } catch (thrown) {
    throw new ConfigError(`cannot read the credential providers ${file}: ${toError(thrown).message}`, {
      cause: thrown,
    });
  }
}
