/** The audit log of a control plane: who has asked for what, and what for nothing. */
import { mkdtemp, readFile, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Json } from "./client.ts";

export interface AuditLog {
  /** For the API server. */
  readonly flags: readonly string[];
  events(): Promise<Json[]>;
}

export async function auditLog(): Promise<AuditLog> {
  const dir = await mkdtemp(join(tmpdir(), "vmlet-audit-"));
  const [policy, log] = [join(dir, "policy.yaml"), join(dir, "audit.log")];
  await writeFile(
    policy,
    JSON.stringify({
      apiVersion: "audit.k8s.io/v1",
      kind: "Policy",
      omitStages: ["RequestReceived"],
      rules: [
        // Some rights are not used by a request of their own: somebody asks whether the user has them.
        {
          level: "RequestResponse",
          resources: [{ group: "authorization.k8s.io", resources: ["subjectaccessreviews"] }],
        },
        { level: "Metadata" },
      ],
    }),
  );
  return {
    flags: [`--audit-policy-file=${policy}`, `--audit-log-path=${log}`],
    async events() {
      const lines = (await readFile(log, "utf8")).split("\n");
      return lines.filter(Boolean).map((line) => JSON.parse(line));
    },
  };
}
