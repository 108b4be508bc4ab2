/** Reads the kubelet's `CredentialProviderConfig`: one file, or a folder of them in the order of their names. */
import { readdirSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import { credentialProviderConfig, type CredentialProviderConfig } from "../podspec/references/credential-provider.ts";
import { toError } from "../util/errors.ts";
import { ConfigError, parseFile } from "./load.ts";

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
