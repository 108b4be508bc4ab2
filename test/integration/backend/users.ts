/** User namespaces of machines: what holds on every engine that has them. */
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { machineHash } from "../../../providers/local/host/machine-hash.ts";
import { type Bench, text } from "./suite.ts";

const CLAIMS = "/run/vmlet/machine-users";
const alone = { security: { host_users: false } };

/** @param bench is open in each test; its engine allows privileged containers */
export function userTests(bench: Bench): void {
  /** What the machine's root is on this host. */
  const rootOf = async (id: string) => {
    const { stdout, stderr } = await bench.exec(id, "a", ["cat", "/proc/self/uid_map"]);
    stderr!.resume();
    const [inside, outside, count] = (await text(stdout)).trim().split(/ +/).map(Number);
    expect([inside, count]).toEqual([0, 65_536]);
    return outside!;
  };
  const sleeper = async () => {
    const id = await bench.create({ ...alone, containers: [bench.shell("a", "sleep 1000")] });
    await bench.reaches(id, "running");
    return id;
  };
  /** Machines of this backend that have users of their own, as it is written down for the next one. */
  const claimed = () => {
    const prefix = `${machineHash(bench.stateDir)}/`;
    return readdirSync(CLAIMS)
      .map((name) => readFileSync(join(CLAIMS, name), "latin1"))
      .filter((owner) => owner.startsWith(prefix))
      .map((owner) => owner.slice(prefix.length));
  };

  test("the runtime says that it has them, and so does the backend", async () => {
    expect((await bench.provider.getInfo({ signal: bench.signal })).capabilities).toContain("user_namespace");
  });

  test("root of one machine is nobody on the host, nor in another machine", async () => {
    const roots = await Promise.all([sleeper(), sleeper()].map(async (id) => rootOf(await id)));
    expect(new Set(roots).size).toBe(2);
    for (const root of roots) expect(root).toBeGreaterThan(65_536);
  });

  test("volumes, files and what the containers share have the machine's own users", async () => {
    const script =
      "stat -c '%u:%g %a' /v /m /f/..data/secret /etc/hosts /root-file; cat /f/secret /i/etc/passwd | head -2;" +
      "touch /v/new; stat -c %u:%g /v/new; echo bye > /dev/termination-log; id -u";
    const id = await bench.create({
      security: { host_users: false, fs_group: 2000 },
      volumes: [
        { name: "v", type: "empty_dir", medium: "disk" },
        { name: "m", type: "empty_dir", medium: "memory" },
        { name: "i", type: "image", image: bench.options.image },
        {
          name: "f",
          type: "files",
          version: "1",
          files: [{ path: "secret", mode: 0o440, content_b64: Buffer.from("told\n").toString("base64") }],
        },
      ],
      containers: [
        bench.shell("a", `touch /root-file; ${script}`, {
          mounts: ["v", "m", "f", "i"].map((volume) => ({ volume, path: `/${volume}` })),
        }),
      ],
    });
    expect(await bench.terminated(id, "a")).toMatchObject({ exit_code: 0, message: "bye\n" });
    expect(await bench.log(id, "a")).toEqual([
      "0:2000 2777",
      "0:2000 3777",
      "0:2000 440",
      "0:0 644",
      "0:0 644",
      "told",
      expect.stringContaining("root:"),
      "0:2000",
      "0",
    ]);
  });

  test("a backend that comes after another one gives no machine the users of one that runs", async () => {
    const before = await sleeper();
    const root = await rootOf(before);
    await bench.provider.close();
    await bench.open();
    await bench.reaches(before, "running");
    expect(await rootOf(before)).toBe(root);
    expect(await rootOf(await sleeper())).not.toBe(root);
  });

  test("a container starts again among the users that its machine had before the backend was restarted", async () => {
    const id = await bench.create({
      ...alone,
      restart_policy: "always",
      volumes: [{ name: "v", type: "empty_dir", medium: "disk" }],
      containers: [
        bench.shell(
          "a",
          "cat /proc/self/uid_map >> /v/maps; cat /v/maps; while [ ! -e /v/end ]; do sleep 0.05; done; rm /v/end",
          {
            mounts: [{ volume: "v", path: "/v" }],
          },
        ),
      ],
    });
    await bench.reaches(id, "running");
    await bench.provider.close();
    await bench.open();
    await bench.reaches(id, "running");
    await (
      await bench.exec(id, "a", ["touch", "/v/end"])
    ).exit;
    await bench.until(async () => {
      const maps = await bench.log(id, "a");
      expect(maps).toHaveLength(2);
      expect(maps[0]).toBe(maps[1]);
    });
  });

  test("a machine that is deleted gives its users back", async () => {
    const id = await sleeper();
    expect(claimed()).toContain(id);
    await bench.provider.deletePod(id, { force: true, signal: bench.signal });
    await bench.reaches(id, "deleted");
    expect(claimed()).not.toContain(id);
  });

  test("a machine that says nothing of users has the host's", async () => {
    const id = await bench.create({ containers: [bench.shell("a", "cat /proc/self/uid_map")] });
    await bench.terminated(id, "a");
    expect((await bench.log(id, "a"))[0]).toMatch(/^ *0 +0 +4294967295$/);
  });
}
