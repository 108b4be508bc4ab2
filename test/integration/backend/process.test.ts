import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmdirSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, expect, test } from "vitest";
import { systemClock } from "../../../src/util/clock.ts";
import { createProcessEngine } from "../../../providers/local/engines/process/process.ts";
import { availableNamespaces } from "../../../providers/local/engines/process/view.ts";
import { processStat } from "../../../providers/local/host/proc.ts";
import { backendSuite, Bench, text } from "./suite.ts";

/** Process ids that a container printed. */
async function printedPids(bench: Bench, id: string, count: number): Promise<number[]> {
  return await bench.until(async () => {
    const lines = await bench.log(id, "a");
    expect(lines).toHaveLength(count);
    return lines.map(Number);
  });
}

const hostsDir = mkdtempSync(join(tmpdir(), "vmlet-hosts-"));
afterAll(() => rmSync(hostsDir, { recursive: true, force: true }));
const available = await availableNamespaces();
const file = (content: string) => [{ path: "key", mode: 0o644, content_b64: Buffer.from(content).toString("base64") }];

backendSuite(
  {
    name: "process",
    image: "none",
    createEngine: (stateDir) =>
      createProcessEngine({
        stateDir,
        hostsDir,
        images: { mapped: ["echo"] },
        addressPool: "127.64.0.0/10",
        clock: systemClock,
      }),
  },
  (bench) => {
    test.runIf(available)("containers share an empty volume, and a command beside one sees it too", async () => {
      const mounts = [{ volume: "v", path: "/vmlet-test/shared" }];
      const id = await bench().create({
        volumes: [{ name: "v", type: "empty_dir", medium: "memory" }],
        containers: [
          { ...bench().shell("a", "echo from-a >/vmlet-test/shared/f; sleep 1000"), mounts },
          { ...bench().shell("b", "until cat /vmlet-test/shared/f; do sleep 0.05; done; sleep 1000"), mounts },
        ],
      });
      await bench().until(async () => expect((await bench().log(id, "b")).at(-1)).toBe("from-a"));
      const { stdout } = await bench().exec(id, "a", ["cat", "/vmlet-test/shared/f"]);
      expect(await text(stdout)).toBe("from-a\n");
    });

    test("no program of the backend's own package is found before the host's", async () => {
      const before = process.env["PATH"];
      process.env["PATH"] = `/somewhere/node_modules/.bin:${before}`;
      const id = await bench().create({ containers: [bench().shell("a", "echo $PATH; sleep 1000")] });
      await bench().until(async () => expect((await bench().log(id, "a")).join()).toContain("/bin"));
      process.env["PATH"] = before;
      expect((await bench().log(id, "a")).join()).not.toContain("node_modules");
    });

    test.runIf(available)("files are changed where they are mounted", async () => {
      const id = await bench().create({
        volumes: [{ name: "f", type: "files", version: "1", files: file("one\n") }],
        containers: [
          {
            ...bench().shell(
              "a",
              "cat /etc/vmlet-test/key; until grep two /etc/vmlet-test/key; do sleep 0.05; done; sleep 1000",
            ),
            mounts: [{ volume: "f", path: "/etc/vmlet-test" }],
          },
        ],
      });
      await bench().until(async () => expect(await bench().log(id, "a")).toEqual(["one"]));
      const patch = { files: [{ volume: "f", version: "2", files: file("two\n") }] };
      await bench().provider.updatePod(id, patch, { signal: bench().signal });
      await bench().until(async () => expect(await bench().log(id, "a")).toEqual(["one", "two"]));
    });

    test.runIf(available)("names of the namespace's hosts are known", async () => {
      writeFileSync(join(hostsDir, "shop"), "127.0.0.9 web\n");
      const id = await bench().create({
        labels: { "vmlet.dev/namespace": "shop" },
        containers: [bench().shell("a", "getent hosts web; sleep 1000")],
      });
      await bench().until(async () => expect((await bench().log(id, "a")).join()).toMatch(/^127\.0\.0\.9 +web$/));
    });

    test("a command that is not there fails with the reason that it has without volumes", async () => {
      const id = await bench().create({
        restart_policy: "never",
        volumes: [{ name: "v", type: "empty_dir", medium: "disk" }],
        containers: [
          {
            name: "a",
            image: "none",
            command: ["vmlet-no-such-command"],
            mounts: [{ volume: "v", path: "/vmlet-test" }],
          },
        ],
      });
      expect((await bench().terminated(id, "a")).message).toContain("executable file not found");
    });

    test("a stop kills daemonised children, also those in a session of their own", async () => {
      const script =
        "setsid sh -c 'echo $$; while :; do sleep 0.1; done' & setsid env -i sh -c 'echo $$; exec sleep 1000' & wait";
      const id = await bench().create({ containers: [bench().shell("a", script)] });
      const pids = await printedPids(bench(), id, 2);
      await bench().provider.stopPod(id, { graceSeconds: 1, signal: bench().signal });
      await bench().reaches(id, "stopped");
      expect(pids.map((pid) => processStat(pid))).toEqual([undefined, undefined]);
    });

    test("children that a container leaves behind when it ends are killed", async () => {
      const id = await bench().create({
        containers: [bench().shell("a", "setsid sh -c 'echo $$; exec sleep 1000' & sleep 0.2; exit 0")],
      });
      const [pid] = await printedPids(bench(), id, 1);
      await bench().reaches(id, "stopped");
      expect(processStat(pid!)).toBeUndefined();
      expect((await bench().container(id, "a")).terminated?.exit_code).toBe(0);
    });

    test("a container whose shim is killed is lost, and nothing of it goes on", async () => {
      const id = await bench().create({ containers: [bench().shell("a", "echo $$; sleep 1000")] });
      const [pid] = await printedPids(bench(), id, 1);
      const instances = join(bench().stateDir, "machines", id, "containers", "a");
      const claim = readFileSync(join(instances, readdirSync(instances)[0]!, "shim-claim"), "utf8");
      process.kill(Number(claim.split(" ")[0]), "SIGKILL");
      expect(await bench().terminated(id, "a")).toMatchObject({ exit_code: 137, reason: "ContainerStatusUnknown" });
      expect(processStat(pid!)).toBeUndefined();
    });

    test("how a container ended is kept though the disk was full and no backend ran", async () => {
      const end = join(bench().stateDir, "end");
      const id = await bench().create({
        restart_policy: "never",
        containers: [bench().shell("a", `echo $$; while [ ! -e ${end} ]; do sleep 0.05; done; exit 6`)],
      });
      const [pid] = await printedPids(bench(), id, 1);
      const instances = join(bench().stateDir, "machines", id, "containers", "a");
      const inTheWay = join(instances, readdirSync(instances)[0]!, "shim-exit.json.tmp");
      mkdirSync(inTheWay);
      await bench().provider.close();
      writeFileSync(end, "");
      await bench().until(() => expect(processStat(pid!)).toBeUndefined());
      rmdirSync(inTheWay);
      await bench().open();
      expect(await bench().terminated(id, "a")).toMatchObject({ exit_code: 6, reason: "Error" });
    });

    test("nothing of a deleted machine is left: no process, no socket, no folder, even when its shim was killed", async () => {
      const id = await bench().create({ containers: [bench().shell("a", "echo $$; sleep 1000")] });
      const [pid] = await printedPids(bench(), id, 1);
      const shim = processStat(processStat(pid!)!.ppid)!.pid;
      const sockets = readdirSync(join(bench().stateDir, "run")).length;
      process.kill(shim, "SIGKILL");
      await bench().provider.deletePod(id, { force: true, signal: bench().signal });
      await bench().reaches(id, "deleted");
      expect([processStat(pid!), processStat(shim)]).toEqual([undefined, undefined]);
      expect(readdirSync(join(bench().stateDir, "run")).length).toBe(sockets - 1);
      expect(readdirSync(join(bench().stateDir, "machines"))).not.toContain(id);
    });

    test("a port that a machine serves is reached by port-forward, and half-closing is passed on", async () => {
      const id = await bench().create({ containers: [bench().shell("a", "sleep 1000")] });
      await bench().reaches(id, "running");
      const server = createServer({ allowHalfOpen: true }, (socket) => {
        let received = "";
        socket.on("data", (chunk) => (received += chunk.toString()));
        socket.on("end", () => socket.end(`echo ${received}`));
      });
      await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
      const { port } = server.address() as { port: number };
      const stream = await bench().provider.portForward(id, port, { signal: bench().signal });
      stream.end("hello");
      expect(await text(stream)).toBe("echo hello");
      server.close();
    });

    test("port-forward to a closed port says so", async () => {
      const id = await bench().create({ containers: [bench().shell("a", "sleep 1000")] });
      await bench().reaches(id, "running");
      await expect(bench().provider.portForward(id, 1, { signal: bench().signal })).rejects.toThrow(
        /cannot connect to port 1 .*ECONNREFUSED/,
      );
    });

    test("each machine has an address of its own, which its processes can bind", async () => {
      const ids = await Promise.all(
        [1, 2].map(() => bench().create({ containers: [bench().shell("a", "sleep 1000")] })),
      );
      const machines = await Promise.all(ids.map((id) => bench().reaches(id, "running")));
      const addresses = machines.map((machine) => machine.addresses[0]!.ip);
      expect(new Set(addresses).size).toBe(2);
      const server = createServer();
      await new Promise<void>((resolve, reject) => server.once("error", reject).listen(0, addresses[0], resolve));
      server.close();
    });

    test("an image with an entry in the map needs no command, and args are appended", async () => {
      const id = await bench().create({ containers: [{ name: "a", image: "mapped", args: ["from", "map"] }] });
      await bench().terminated(id, "a");
      expect(await bench().log(id, "a")).toEqual(["from map"]);
    });

    test("a container without command and without entry in the map is invalid, and the reason says what to do", async () => {
      await expect(bench().create({ containers: [{ name: "a", image: "unknown" }] })).rejects.toThrow(
        /needs a command, or the backend's config an entry for image "unknown"/,
      );
    });

    test("a spec that needs what the engine lacks is refused", async () => {
      const create = bench().create({
        containers: [bench().shell("a", "true")],
        volumes: [{ name: "v", type: "empty_dir", medium: "disk", size_bytes: 1 }],
      });
      await expect(create).rejects.toMatchObject({ code: "unsupported", field: "volumes.0.size_bytes" });
    });
  },
);

test("a backend whose state directory is spelled otherwise finds the processes of the former one", async () => {
  const stateDir = mkdtempSync(join(tmpdir(), "vmlet-it-|ü-"));
  const benchOf = (dir: string) =>
    new Bench(
      {
        name: "process",
        image: "none",
        createEngine: () =>
          createProcessEngine({ stateDir: dir, images: {}, addressPool: "127.64.0.0/10", clock: systemClock }),
      },
      dir,
    );
  const first = benchOf(stateDir);
  await first.open();
  const id = await first.create({
    containers: [first.shell("a", "echo $$; trap '' TERM; while :; do sleep 0.1; done")],
  });
  const [pid] = await printedPids(first, id, 1);
  await first.provider.close();
  const second = benchOf(`${stateDir}/`);
  await second.open();
  await second.provider.stopPod(id, { graceSeconds: 0, signal: second.signal });
  await second.reaches(id, "stopped");
  expect(processStat(pid!)).toBeUndefined();
  await second.close();
});
