/** The runtimes of engine cri's containerd, by `runtime_handler`. */
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, expect, test } from "vitest";
import { CriClient } from "../../../providers/local/engines/cri/client.ts";
import { machineHash } from "../../../providers/local/host/machine-hash.ts";
import { onCri } from "./on-cri.ts";

// containerd asks a shim what it can do, and takes one that says nothing.
const shims = mkdtempSync(join(tmpdir(), "vmlet-shims-"));
for (const name of ["containerd-shim-runsc-v1", "runsc"])
  writeFileSync(join(shims, name), "#!/bin/sh\nexit 1\n", { mode: 0o755 });
process.env["PATH"] = `${process.env["PATH"]}:${shims}`;

const runtimes = { "test-handler": "io.containerd.runc.v2" };

await onCri("runtime handlers of engine cri", { runtimes }, (bench) => {
  afterAll(() => rmSync(shims, { recursive: true }));

  const sandboxed = { runtime_handler: "runsc" };

  test("are told with what each can do, the default one without a name", async () => {
    const { runtimeHandlers = [] } = await bench.provider.getInfo({ signal: bench.signal });
    expect(runtimeHandlers.map(({ name }) => name).toSorted()).toEqual(["", "runc", "runsc", "test-handler"]);
    expect(runtimeHandlers.find(({ name }) => name === "runsc")).toMatchObject({ user_namespaces: false });
  });

  test("one that the runtime lacks is refused, and the message names those it has", async () => {
    const created = bench.create({ runtime_handler: "kata", containers: [bench.shell("a", "true")] });
    await expect(created).rejects.toMatchObject({
      code: "unsupported",
      field: "runtime_handler",
      message: expect.stringMatching(/"kata" \(there is .*runsc/),
    });
  });

  test("one without user namespaces refuses a machine that is to have users of its own", async () => {
    const security = { host_users: false };
    const created = bench.create({ ...sandboxed, security, containers: [bench.shell("a", "true")] });
    await expect(created).rejects.toMatchObject({ code: "unsupported", field: "security.host_users" });
  });

  test.each(["runc", "test-handler"])(
    "%s runs the machine that names it, and the runtime has it written down",
    async (handler) => {
      const id = await bench.create({ runtime_handler: handler, containers: [bench.shell("a", "exit 3")] });
      expect(await bench.terminated(id, "a")).toMatchObject({ exit_code: 3 });
      const client = new CriClient(`/run/vmlet-cri-${machineHash(join(bench.stateDir, "cri"))}/containerd.sock`);
      const { items } = await client.runtime.listPodSandbox({}, client.within());
      client.close();
      const handlers = items.map(({ labels, runtimeHandler }) => [labels["dev.vmlet/machine"], runtimeHandler]);
      expect(handlers).toContainEqual([id, handler]);
    },
  );
});
