/**
 * Machines with gVisor's kernel on engine cri. Only where VMLET_TEST_GVISOR names a folder with `runsc` and
 * `containerd-shim-runsc-v1`: no package of Debian's has them.
 */
import { describe, expect, test } from "vitest";
import { text } from "../backend/suite.ts";
import { onCri } from "./on-cri.ts";

const programs = process.env["VMLET_TEST_GVISOR"];

if (programs === undefined)
  describe.skip("gVisor on engine cri", () => test("VMLET_TEST_GVISOR names no folder with its programs", () => {}));
else {
  process.env["PATH"] = `${programs}:${process.env["PATH"]}`;
  await onCri("gVisor on engine cri", {}, (bench) => {
    const sandboxed = { runtime_handler: "runsc" };
    const kernel = "dmesg | head -1";

    test("a machine has a kernel of its own, and ends with its exit code and log", async () => {
      const id = await bench.create({ ...sandboxed, containers: [bench.shell("a", `${kernel}; exit 3`)] });
      expect(await bench.terminated(id, "a")).toMatchObject({ exit_code: 3 });
      expect((await bench.log(id, "a"))[0]).toContain("Starting gVisor");
    });

    test("a machine that names no runtime has this host's kernel", async () => {
      const id = await bench.create({ containers: [bench.shell("a", "uname -r")] });
      await bench.terminated(id, "a");
      const sandbox = await bench.create({ ...sandboxed, containers: [bench.shell("a", "uname -r")] });
      await bench.terminated(sandbox, "a");
      expect(await bench.log(sandbox, "a")).not.toEqual(await bench.log(id, "a"));
    });

    test("commands run in it, until it is deleted", async () => {
      const id = await bench.create({ ...sandboxed, containers: [bench.shell("a", "sleep 1000")] });
      await bench.reaches(id, "running");
      const { stdout, stderr, exit } = await bench.exec(id, "a", ["sh", "-c", `${kernel}; exit 4`]);
      stderr!.resume();
      expect(await text(stdout)).toContain("Starting gVisor");
      expect(await exit).toEqual({ exitCode: 4 });
      await bench.provider.deletePod(id, { force: true, signal: bench.signal });
      await bench.reaches(id, "deleted");
    });
  });
}
