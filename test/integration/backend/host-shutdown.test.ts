/** Whether a stop of the backend is a stop of its host: by what systemd says, and by SIGPWR. */
import { chmodSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { KillableBackend } from "./killable.ts";

/** A backend with one machine that runs, and a host whose systemd is in this state. */
async function backendOn(systemd: string): Promise<{ backend: KillableBackend; env: NodeJS.ProcessEnv }> {
  const dir = mkdtempSync(join(tmpdir(), "vmlet-shutdown-"));
  writeFileSync(join(dir, "systemctl"), `#!/bin/sh\necho ${systemd}\nexit 1\n`);
  chmodSync(join(dir, "systemctl"), 0o755);
  const backend = new KillableBackend(dir, { shutdown: { graceSeconds: 20 } });
  const env = { PATH: `${dir}:${process.env["PATH"]}` };
  await backend.start(env);
  onTestFinished(async () => {
    await backend.call("DELETE", "/v1/machines/m?force=true");
    await expect.poll(async () => (await backend.get("m")).state, { timeout: 20_000 }).toBe("deleted");
    await backend.kill();
    rmSync(dir, { recursive: true, force: true });
  });
  const containers = [{ name: "a", image: "i", command: ["sleep", "1000"] }];
  await backend.call("PUT", "/v1/machines/m", { labels: {}, restart_policy: "always", containers });
  await backend.reaches("m", "running");
  return { backend, env };
}

const shutDown = {
  state: "failed",
  reason: "Terminated",
  message: "Pod was terminated in response to imminent node shutdown.",
};

test("a backend that is stopped alone leaves its machines running", async () => {
  const { backend, env } = await backendOn("running");
  const before = (await backend.get("m")).containers[0];
  await backend.kill("SIGTERM");
  await backend.start(env);
  expect((await backend.get("m")).containers[0]).toEqual(before);
});

test("a backend that systemd stops with the host ends its machines, and the next one tells why", async () => {
  const { backend, env } = await backendOn("stopping");
  await backend.kill("SIGTERM");
  await backend.start(env);
  expect(await backend.get("m")).toMatchObject(shutDown);
});

test("SIGPWR says the same where there is no systemd", async () => {
  const { backend, env } = await backendOn("offline");
  await backend.kill("SIGPWR");
  await backend.start(env);
  expect(await backend.get("m")).toMatchObject(shutDown);
});
