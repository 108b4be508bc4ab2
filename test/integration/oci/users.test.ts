/** User namespaces of machines on engine oci, by a runc that has them. */
import { existsSync, mkdtempSync, readdirSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { OciEngine } from "../../../providers/local/engines/oci/engine.ts";
import { rootsOf } from "../../../providers/local/engines/oci/user-namespace.ts";
import { HostNetwork } from "../../../providers/local/network/network.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { buildRunc } from "../../e2e/harness/build.ts";
import { missingForRunc } from "../../support/containerd.ts";
import { testNetwork } from "../../support/host.ts";
import { leaveOut } from "../../support/left-out.ts";
import { missingForImages } from "../../support/registry.ts";
import { pushImages } from "../backend/containers.ts";
import { Bench, text } from "../backend/suite.ts";
import { userTests } from "../backend/users.ts";

const { dir: _dir, ...network } = testNetwork("");
const createEngine = (stateDir: string, runtime?: string, insecureRegistries: string[] = []) =>
  new OciEngine({
    stateDir,
    clock: systemClock,
    logger: silentLogger,
    network,
    allowPrivileged: true,
    runtime,
    images: { insecureRegistries },
  });
const problems = (await createEngine("/nonexistent").check()).filter(({ fatal }) => fatal);
const lacks = [
  ...problems.map(({ problem }) => problem),
  ...[(await missingForRunc()) ?? [], missingForImages() ?? []].flat(),
];

if (lacks.length > 0) leaveOut("user namespaces on engine oci", lacks);
else {
  const runtime = await buildRunc();
  const images = await pushImages();
  describe("user namespaces on engine oci", () => {
    const bench = new Bench(
      {
        name: "oci",
        image: images.image,
        createEngine: (stateDir) => createEngine(stateDir, runtime, [images.registry.host]),
      },
      mkdtempSync(join(tmpdir(), "vmlet-oci-users-")),
    );
    beforeAll(() => bench.open(), 60_000);
    afterAll(async () => {
      await bench.close();
      await images.registry.stop();
      await new HostNetwork({ dir: "/nonexistent/network", ...network }).remove();
    }, 60_000);
    userTests(bench);

    const output = async (script: string, machine: object = {}) => {
      const id = await bench.create({
        security: { host_users: false },
        containers: [bench.shell("a", script)],
        ...machine,
      });
      expect(await bench.terminated(id, "a")).toMatchObject({ exit_code: 0 });
      return await bench.log(id, "a");
    };

    test("the image's files and what is written over them are the machine's root's, and its network and name its own", async () => {
      const lines = await output(
        "stat -c %u:%g / /bin/sh /tmp; echo x > /bin/new && chown 12:34 /bin/new && stat -c %u:%g /bin/new;" +
          "hostname; ip -o -4 address show dev eth0 | wc -l; cat /proc/sys/net/ipv4/ping_group_range",
        { hostname: "alone" },
      );
      expect(lines).toEqual(["0:0", "0:0", "0:0", "12:34", "alone", "1", expect.stringMatching(/^0\s+65535$/)]);
    });

    test("containers that share their processes share their users", async () => {
      const id = await bench.create({
        security: { host_users: false, share_process_namespace: true },
        containers: [
          bench.shell("a", "exec sleep 4321"),
          bench.shell(
            "b",
            "while ! ps | grep -q '[s]leep 4321'; do sleep 0.1; done; kill -9 $(pidof sleep | tr ' ' '\\n' | head -1)",
          ),
        ],
      });
      expect((await bench.terminated(id, "b")).exit_code).toBe(0);
      expect((await bench.terminated(id, "a")).exit_code).toBe(137);
    });

    test("a privileged container owns its machine, and nothing of the host's", async () => {
      const script =
        "mount -t tmpfs tmpfs /mnt && echo mounted; echo 1 2>/dev/null > /proc/sys/kernel/panic || echo refused; ls /dev/vda 2>/dev/null || echo none";
      const lines = await output(script, {
        containers: [bench.shell("a", `mkdir -p /mnt; ${script}`, { security: { privileged: true } })],
      });
      expect(lines).toEqual(["mounted", "refused", "none"]);
    });

    test("a command with a terminal runs among the machine's users", async () => {
      const id = await bench.create({
        security: { host_users: false },
        containers: [bench.shell("a", "sleep 1000", { tty: true })],
      });
      await bench.reaches(id, "running");
      const streams = await bench.exec(id, "a", ["sh", "-c", "id -u; tty; stat -c %u $(tty)"], { tty: true });
      expect(await text(streams.stdout)).toMatch(/^0\r\n\/dev\/pts\/\d+\r\n0\r\n$/);
    });

    test("nothing of a deleted machine is left", async () => {
      const id = await bench.create({
        security: { host_users: false },
        containers: [bench.shell("a", "sleep 1000")],
      });
      await bench.reaches(id, "running");
      const roots = rootsOf(join(bench.stateDir, "machines", id, "engine"));
      expect(readdirSync(roots)).toHaveLength(1);
      await bench.provider.deletePod(id, { force: true, signal: bench.signal });
      await bench.reaches(id, "deleted");
      expect(existsSync(roots)).toBe(false);
    });
  });
}
