/** A signal to the first process of a container, past the runtime. */
import { readFile } from "node:fs/promises";
import type { CriClient } from "./client.ts";

const QUICK_CALL_MS = 10_000;

/** @returns false when the runtime's container is no process of this host */
export async function signalProcess(
  client: Pick<CriClient, "runtime" | "within">,
  { containerId, signal, abort }: { containerId: string; signal: number; abort: AbortSignal },
): Promise<boolean> {
  const { info } = await client.runtime.containerStatus(
    { containerId, verbose: true },
    client.within(QUICK_CALL_MS, abort),
  );
  const { pid } = JSON.parse(info["info"] ?? "{}") as { pid?: number };
  if (pid === undefined) return false;
  // The pid may have gone to another process since: its control group tells, which is named after the container.
  const groups = await readFile(`/proc/${pid}/cgroup`, "latin1").catch(() => "");
  if (!groups.includes(containerId)) return false;
  process.kill(pid, signal);
  return true;
}
