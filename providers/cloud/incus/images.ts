/** Images in an Incus project. */
import { createReadStream } from "node:fs";
import { stat } from "node:fs/promises";
import { type CallOptions, ConfigError, ProviderError } from "../../../src/provider/kit/index.ts";
import { IncusClient, type IncusReply, type IncusServer } from "./client.ts";

const IMPORT_SECONDS = 600;

/**
 * Brings the image there unless it is there, and has its alias mean it.
 * @returns whether it had to be brought
 * @throws ProviderError, ConfigError
 */
export async function bringImage(
  server: IncusServer,
  { file, fingerprint, alias }: { file: string; fingerprint: string; alias: string },
  options: CallOptions,
): Promise<boolean> {
  const client = new IncusClient(server);
  try {
    const isThere = await hasImage(client, fingerprint, options);
    if (!isThere) {
      const { size } = await stat(file);
      const asked = {
        method: "POST",
        path: "images",
        file: { stream: createReadStream(file), bytes: size },
        ...options,
      } as const;
      const brought = await client.carryOut(asked, IMPORT_SECONDS);
      // Another may have been faster.
      if (brought.error !== undefined && !(await hasImage(client, fingerprint, options))) throw refused(brought);
    }
    await pointAlias(client, alias, fingerprint, options);
    return !isThere;
  } finally {
    await client.close();
  }
}

async function hasImage(client: IncusClient, fingerprint: string, options: CallOptions): Promise<boolean> {
  const reply = await client.ask({ method: "GET", path: `images/${fingerprint}`, ...options });
  if (reply.error === undefined) return true;
  if (reply.status === 404) return false;
  throw refused(reply);
}

async function pointAlias(client: IncusClient, name: string, target: string, options: CallOptions): Promise<void> {
  const path = `images/aliases/${encodeURIComponent(name)}`;
  const body = { name, description: "", target };
  const changed = await client.ask({ method: "PUT", path, body, ...options });
  if (changed.error === undefined) return;
  if (changed.status !== 404) throw refused(changed);
  const made = await client.ask({ method: "POST", path: "images/aliases", body, ...options });
  if (made.error !== undefined) throw refused(made);
}

const refused = ({ status, error }: IncusReply) =>
  status === 403
    ? new ConfigError(
        `Incus: ${error}: the certificate must be trusted for this project, which must have images of its own`,
      )
    : new ProviderError("unavailable", `Incus: ${error} (${status})`);
