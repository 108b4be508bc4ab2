/** Writes kubeconfig files. JSON is YAML, so nothing is needed to write it. */
import { writeFile } from "node:fs/promises";
import type { KeyPair } from "./certs.ts";

export type Credentials = { clientCertificate: KeyPair } | { token: string } | Record<string, never>;

export async function writeKubeconfig(
  file: string,
  cluster: { url: string; caFile?: string },
  credentials: Credentials,
  impersonate?: { user: string; groups: readonly string[] },
): Promise<string> {
  const user = {
    ...("clientCertificate" in credentials && {
      "client-certificate": credentials.clientCertificate.certFile,
      "client-key": credentials.clientCertificate.keyFile,
    }),
    ...("token" in credentials && { token: credentials.token }),
    ...(impersonate && { as: impersonate.user, "as-groups": impersonate.groups }),
  };
  const config = {
    apiVersion: "v1",
    kind: "Config",
    "current-context": "test",
    contexts: [{ name: "test", context: { cluster: "test", user: "test" } }],
    clusters: [
      {
        name: "test",
        cluster: {
          server: cluster.url,
          ...(cluster.caFile !== undefined && { "certificate-authority": cluster.caFile }),
        },
      },
    ],
    users: [{ name: "test", user }],
  };
  await writeFile(file, JSON.stringify(config, null, 2), { mode: 0o600 });
  return file;
}
