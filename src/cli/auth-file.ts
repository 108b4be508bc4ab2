/** The option `--auth-file`: credentials of registries, as docker's config.json. */
import { readFileSync } from "node:fs";
import { ConfigError } from "../config/load.ts";
import { parseDockerConfig } from "../provider/docker-config.ts";
import type { RegistryAuth } from "../provider/machine.ts";
import { toError } from "../util/errors.ts";

/** @throws ConfigError */
export function readAuthFile(path: string): RegistryAuth[] {
  let text: string;
  try {
    text = readFileSync(path, "utf8");
  } catch (thrown) {
    throw new ConfigError(`--auth-file: ${toError(thrown).message}`, { cause: thrown });
  }
  const auth = parseDockerConfig(text);
  if (auth === undefined) throw new ConfigError(`--auth-file: ${path} is not JSON, as docker's config.json`);
  return auth;
}
