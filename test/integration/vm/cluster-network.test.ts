/** Engine vm on the network of the host's cluster: CNI's plugins of Debian in place of a DaemonSet's. */
import {
  closeSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  unlinkSync,
  writeFileSync,
} from "node:fs";
import { isIP } from "node:net";
import { availableParallelism, tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { createEngine } from "../../../providers/local/engines/index.ts";
import { dialTcp } from "../../../providers/local/host/dial.ts";
import { findTool, run } from "../../../providers/local/host/command.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { engineOnThisHost } from "../../support/engines.ts";
import { secondRange, testNetwork } from "../../support/host.ts";
import { leaveOut } from "../../support/left-out.ts";
import { busyboxImage, missingForImages, startRegistry, type TestRegistry } from "../../support/registry.ts";
import { Bench, text } from "../backend/suite.ts";

const BINARIES = "/usr/lib/cni";
const MTU = 1400;
const RATE = 2_468_000;
const HOST_PORT = 23_141;
/** As a plugin says it. */
const REFUSAL = `echo '${JSON.stringify({ cniVersion: "1.0.0", code: 11, msg: "try again later" })}'`;
const hasPortmap = findTool("iptables") !== undefined;
const { missing: lacks } = await engineOnThisHost("vm");
const missing = [...lacks, ...[missingForImages() ?? []].flat()];

if (missing.length > 0) leaveOut("engine vm on the cluster's network", missing);
else
  describe("engine vm on the cluster's network", () => {
    const { bridge, cidr } = testNetwork("");
    const cidr6 = secondRange(cidr!);
    const stateDir = mkdtempSync(join(tmpdir(), "vmlet-cni-"));
    const [confDir, binDir, leases] = ["net.d", "bin", "leases"].map((name) => join(stateDir, name)) as [
      string,
      string,
      string,
    ];
    const file = join(confDir, "10-test.conflist");
    const configuration = JSON.stringify({
      cniVersion: "1.0.0",
      name: "test",
      plugins: [
        {
          type: "bridge",
          ...{ bridge, mtu: MTU, isDefaultGateway: true },
          ipam: {
            type: "host-local",
            dataDir: leases,
            ranges: [[{ subnet: cidr }], [{ subnet: cidr6 }]],
            routes: [{ dst: "198.51.100.0/24" }],
          },
        },
        ...(hasPortmap ? [{ type: "portmap", capabilities: { portMappings: true } }] : []),
        { type: "bandwidth", capabilities: { bandwidth: true } },
      ],
    });
    let registry: TestRegistry;
    let bench: Bench;
    let image: string;
    /** It stays, and serves what it has. */
    let id: string;
    let address: string;
    let address6: string;

    beforeAll(async () => {
      mkdirSync(confDir);
      mkdirSync(binDir);
      for (const plugin of readdirSync(BINARIES)) symlinkSync(join(BINARIES, plugin), join(binDir, plugin));
      registry = await startRegistry();
      await registry.push("t/busybox:1", await busyboxImage());
      image = `${registry.host}/t/busybox:1`;
      const createTheEngine = (dir: string) =>
        createEngine(
          {
            type: "vm",
            cni: { confDir, binDirs: [binDir] },
            images: { insecureRegistries: [registry.host] },
          },
          { stateDir: dir, clock: systemClock, logger: silentLogger },
        );
      bench = new Bench({ name: "vm", image, createEngine: createTheEngine, patienceMs: 150_000 }, stateDir);
      writeFileSync(file, configuration);
      await bench.open();
      id = await bench.create({
        labels: { "vmlet.dev/pod": "web", "vmlet.dev/namespace": "shop", "vmlet.dev/uid": "u-1" },
        containers: [
          bench.shell("a", "mkdir /w; echo served > /w/i; httpd -f -p 8080 -h /w", {
            ...(hasPortmap ? { ports: [{ port: 8080, protocol: "tcp", host_port: HOST_PORT }] } : {}),
          }),
        ],
      });
      const { addresses } = await bench.reaches(id, "running");
      [address, address6] = addresses.map(({ ip }) => ip) as [string, string];
      await bench.until(async () => expect(await served(address, 8080)).toContain("served"));
    });
    afterAll(async () => {
      await bench.close();
      await registry.stop();
      await run("ip", ["link", "delete", bridge!]).catch(() => undefined);
      rmSync(stateDir, { recursive: true, force: true });
    });
    const sleeping = (more: object = {}, container: object = {}) =>
      bench.create({ containers: [bench.shell("a", "sleep 1000", container)], ...more });
    const remove = async (machine: string) => {
      await bench.provider.deletePod(machine, { force: true, signal: bench.signal });
      await bench.reaches(machine, "deleted");
    };
    async function served(host: string, port: number, path = "/i"): Promise<string> {
      const socket = await dialTcp(host, port, AbortSignal.timeout(10_000));
      socket.write(`GET ${path} HTTP/1.0\r\n\r\n`);
      return await text(socket);
    }
    const said = async (machine: string, ...command: string[]) => {
      const { stdout, exit } = await bench.exec(machine, "a", command);
      const output = await text(stdout);
      return { output, code: (await exit).exitCode };
    };
    const replace = (plugin: string, script: string) => {
      unlinkSync(join(binDir, plugin));
      writeFileSync(join(binDir, plugin), script, { mode: 0o755 });
    };
    const restore = (plugin: string) => {
      rmSync(join(binDir, plugin));
      symlinkSync(join(BINARIES, plugin), join(binDir, plugin));
    };
    /** Addresses that are given to machines. */
    const given = () => readdirSync(join(leases, "test")).filter((name) => isIP(name) !== 0);
    const records = () => readdirSync(join(stateDir, "vm/cni"));
    const queues = async () => (await run("tc", ["qdisc", "show"])).stdout.toString();
    const condition = async () => (await bench.provider.getCapacity({ signal: bench.signal })).conditions;

    test("a machine waits for the network, and says so; so does the Node", async () => {
      unlinkSync(file);
      const early = await sleeping();
      await bench.until(async () => expect((await bench.get(early)).message).toContain("no network config found in"));
      expect(await condition()).toMatchObject([
        { type: "NetworkUnavailable", status: "True", reason: "NetworkPluginNotReady" },
      ]);
      writeFileSync(file, configuration);
      await bench.reaches(early, "running");
      expect(await condition()).toMatchObject([{ type: "NetworkUnavailable", status: "False" }]);
      await remove(early);
    });

    test("it has the addresses that the plugins gave, one of each family, and this host reaches it there", async () => {
      expect(given()).toEqual(expect.arrayContaining([address, address6]));
      for (const each of [address, address6]) expect(await served(each, 8080)).toContain("served");
    });

    test("it has the network's MTU and routes", async () => {
      expect((await said(id, "ip", "link", "show", "eth0")).output).toContain(`mtu ${MTU}`);
      const { output } = await said(id, "ip", "route");
      expect(output).toMatch(/^default via /m);
      expect(output).toMatch(/^198\.51\.100\.0\/24 via /m);
    });

    test.runIf(hasPortmap)("a port of this host leads to it", async () => {
      const gateway = /^default via ([0-9.]+)/m.exec((await said(id, "ip", "route")).output)![1]!;
      expect(await served(gateway, HOST_PORT)).toContain("served");
    });

    test("its traffic is counted as it sees it", async () => {
      const counted = async () => {
        const all = await bench.provider.getStats({ labels: {}, signal: bench.signal });
        return all.find((each) => each.id === id)!.network!;
      };
      const before = await counted();
      await said(id, "sh", "-c", "head -c 300000 /dev/zero > /w/large");
      expect((await served(address, 8080, "/large")).length).toBeGreaterThan(300_000);
      await bench.until(async () => {
        const after = await counted();
        expect(after.tx_bytes - before.tx_bytes).toBeGreaterThan(300_000);
        expect(after.rx_bytes - before.rx_bytes).toBeLessThan(100_000);
      });
    });

    test("limits of a machine's traffic are the plugins', and go with it, as its addresses do", async () => {
      const { capabilities } = await bench.provider.getInfo({ signal: bench.signal });
      expect(capabilities).toContain("bandwidth");
      const before = given();
      const limited = await sleeping({ bandwidth: { ingress_bits_per_second: RATE } });
      await bench.reaches(limited, "running");
      expect(await queues()).toContain("rate 2468Kbit");
      await remove(limited);
      expect(await queues()).not.toContain("rate 2468Kbit");
      expect(given()).toEqual(before);
    });

    test("another machine reaches it, and not from an address that is not its own", async () => {
      const other = await sleeping({}, { security: { privileged: true } });
      await bench.reaches(other, "running");
      const ask = async (host: string) =>
        (await said(other, "timeout", "5", "wget", "-qO-", `http://${host}:8080/i`)).output;
      expect(await ask(address)).toBe("served\n");
      expect(await ask(`[${address6}]`)).toBe("served\n");
      const [stranger, stranger6] = [cidr!.replace("0/24", "250/24"), cidr6.replace("::/64", "::fa/64")];
      await said(other, "sh", "-c", `ip address flush dev eth0; ip address add ${stranger} dev eth0`);
      expect(await ask(address)).toBe("");
      await said(
        other,
        "sh",
        "-c",
        `ip -6 address flush dev eth0 scope global; ip -6 address add ${stranger6} dev eth0`,
      );
      expect(await ask(`[${address6}]`)).toBe("");
      await remove(other);
    });

    test("a backend that comes back finds it, with its network", async () => {
      await bench.provider.close();
      await bench.open();
      expect((await bench.reaches(id, "running")).addresses).toEqual([{ ip: address }, { ip: address6 }]);
      expect(await served(address, 8080)).toContain("served");
    });

    test("what a machine has is given back also where its namespace is gone", async () => {
      const [before, known] = [given(), records()];
      const late = await sleeping();
      await bench.reaches(late, "running");
      const [key = ""] = records().filter((name) => !known.includes(name));
      const namespaces = async () => (await run("ip", ["netns"])).stdout.toString();
      const own = new RegExp(`vmlet-\\S+-${key.replace(".json", "")}`).exec(await namespaces())![0];
      await run("ip", ["netns", "delete", own]);
      await remove(late);
      expect(given()).toEqual(before);
      expect(records()).toEqual(known);
      expect(await namespaces()).not.toContain(own);
    });

    test("what a plugin fails to make is tried again, and nothing of what failed stays", async () => {
      const [before, known, mark] = [given(), records(), join(stateDir, "failed")];
      replace(
        "bandwidth",
        `#!/bin/sh\n[ $CNI_COMMAND = DEL ] && exit\necho $CNI_CONTAINERID >> ${mark}\n${REFUSAL}\nexit 1\n`,
      );
      const late = await sleeping();
      await bench.until(() => expect(readFileSync(mark, "utf8").trim().split("\n").length).toBeGreaterThan(1));
      expect((await bench.get(late)).message).toContain('plugin type="bandwidth" failed (add): try again later');
      restore("bandwidth");
      await bench.reaches(late, "running");
      expect(given()).toHaveLength(before.length + 2);
      expect(records()).toHaveLength(known.length + 1);
      await remove(late);
      expect(given()).toEqual(before);
    });

    test("plugins that hang hold up no other machine's start", async () => {
      const [held, asked] = [join(stateDir, "held"), join(stateDir, "hung")];
      await run("mkfifo", [held]);
      const hang = `echo >> ${asked}; : < ${held}`;
      replace(
        "bandwidth",
        `#!/bin/sh\ncase $CNI_COMMAND$CNI_ARGS in ADD*K8S_POD_NAME=slow*) ${hang};; esac\nexec ${BINARIES}/bandwidth\n`,
      );
      const labels = { "vmlet.dev/pod": "slow", "vmlet.dev/namespace": "shop", "vmlet.dev/uid": "u-2" };
      const starts = Math.max(2, availableParallelism());
      const slow = await Promise.all(Array.from({ length: starts }, () => sleeping({ labels })));
      await bench.until(() => expect(readFileSync(asked, "utf8")).toHaveLength(starts));
      const other = await sleeping();
      await bench.reaches(other, "running");
      restore("bandwidth");
      // Its readers go on as soon as somebody may write.
      closeSync(openSync(held, "r+"));
      for (const machine of [other, ...slow]) await remove(machine);
    });

    test("what a plugin cannot give back yet is given back when it can", async () => {
      const [before, asked] = [given(), join(stateDir, "asked")];
      const late = await sleeping();
      await bench.reaches(late, "running");
      replace("bridge", `#!/bin/sh\ntouch ${asked}\n${REFUSAL}\nexit 1\n`);
      await bench.provider.deletePod(late, { force: true, signal: bench.signal });
      await bench.until(() => expect(existsSync(asked)).toBe(true));
      expect(given()).toHaveLength(before.length + 2);
      restore("bridge");
      await bench.reaches(late, "deleted");
      expect(given()).toEqual(before);
    });
  });
