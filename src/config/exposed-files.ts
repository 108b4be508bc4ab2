import { lstat } from "node:fs/promises";
import type { AgentConfig } from "./schema.ts";

/** Files of keys and tokens that every user of this host can read, by their paths in the configuration. */
export async function exposedSecrets(config: AgentConfig): Promise<string[]> {
  const paths = new Set([
    config.kubeconfig,
    config.tracing?.headersFile,
    config.tracing?.keyFile,
    ...config.nodes.flatMap(({ provider, kubelet }) => [
      kubelet.keyFile,
      ...(provider.type === "http-vm" ? [provider.tokenFile, provider.keyFile] : []),
      ...(provider.type === "cloud" ? [provider.cloud.keyFile, provider.guestKeysFile] : []),
    ]),
  ]);
  const exposed: string[] = [];
  for (const path of paths) if (path !== undefined && (await isExposed(path))) exposed.push(path);
  return exposed;
}

async function isExposed(path: string): Promise<boolean> {
  // The code that reads the file reports better what is wrong with it.
  const entry = await lstat(path).catch(() => undefined);
  // Kubernetes mounts Secrets as links to files that all users may read, in a container without other users.
  return entry !== undefined && entry.isFile() && (entry.mode & 0o004) !== 0;
}
