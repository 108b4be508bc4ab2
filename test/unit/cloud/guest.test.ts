/** What is special about a backend inside of a VM. */
import { mkdtemp, readFile, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { guestFiles } from "../../../providers/cloud/guest-files.ts";
import { GUEST_PORT, keyFilesOf } from "../../../providers/cloud/guest-keys.ts";
import { oneMachine } from "../../../providers/cloud/one-machine.ts";
import { parseBackendConfig } from "../../../providers/local/config.ts";
import { defaultLink, hostRules, machineRules } from "../../../providers/local/network/front-door.ts";
import { MemoryProvider } from "../../../providers/memory/index.ts";
import { capabilitiesOf, instanceTypeOf } from "../../../src/cli/cloud-provider.ts";
import { assertInVm, assertPrivate, masterOfItsVm, untilKeysAreThere, withKeys } from "../../../src/cli/guest.ts";
import type { CloudProviderConfig } from "../../../src/config/schema.ts";
import type { MachineSpec } from "../../../src/provider/machine.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { machineSpec, script } from "../../support/builders.ts";
import { caCert, serverCert, serverKey } from "../../support/tls.ts";
import { settle, VirtualClock } from "../../support/virtual-clock.ts";

const signal = new AbortController().signal;
const spec = machineSpec({ containers: [script("sleep 3600")] });
const folder = () => mkdtemp(join(tmpdir(), "guest-"));

test("a guest serves the first machine that it is told of, and no other, also after a restart", async () => {
  const stateDir = await folder();
  const provider = new MemoryProvider();
  const guest = oneMachine(provider, stateDir);
  await guest.createPod("m", spec, { signal });
  await guest.createPod("m", spec, { signal });
  await expect(guest.createPod("other", spec, { signal })).rejects.toMatchObject({ code: "quota" });
  await guest.deletePod("m", { force: true, signal });
  await expect(oneMachine(provider, stateDir).createPod("other", spec, { signal })).rejects.toMatchObject({
    code: "quota",
  });
  expect((await guest.getPods({ labels: {}, signal })).items).toEqual([]);
});

test("a path of the machine itself is one of the guest's VM", async () => {
  const told: MachineSpec[] = [];
  const provider = new MemoryProvider();
  const make = provider.createPod.bind(provider);
  provider.createPod = async (id, asked, options) => {
    told.push(asked);
    return await make(id, { ...asked, volumes: [] }, options);
  };
  const cgroups = { name: "cgroups", path: "/sys/fs/cgroup", path_type: "Directory" } as const;
  const guest = oneMachine(provider, await folder());
  await guest.createPod("m", { ...spec, volumes: [{ ...cgroups, type: "host_path" }] }, { signal });
  expect(told.map(({ volumes }) => volumes)).toEqual([[{ ...cgroups, type: "host" }]]);
});

test("a guest leaves it to the agent who may have paths of its VM", () => {
  const configOf = (engine: object) =>
    parseBackendConfig(
      JSON.stringify({
        apiVersion: "vmlet.dev/v1",
        kind: "BackendConfig",
        listen: { socket: "/run/vmlet/guest.sock" },
        stateDir: "/var/lib/vmlet",
        engine,
      }),
      "guest.yaml",
    );
  expect(masterOfItsVm(configOf({ type: "cri" })).engine).toMatchObject({ host: { namespaces: ["*"] } });
  const host = { namespaces: ["kube-system"] };
  expect(masterOfItsVm(configOf({ type: "cri", host })).engine).toMatchObject({ host });
});

test("a guest whose VM has keys listens by TLS for whom they let in, and one without on its socket alone", async () => {
  const keys = await folder();
  const config = parseBackendConfig(
    JSON.stringify({
      apiVersion: "vmlet.dev/v1",
      kind: "BackendConfig",
      listen: { socket: "/run/vmlet/guest.sock" },
      stateDir: "/var/lib/vmlet",
      engine: { type: "cri" },
    }),
    "guest.yaml",
  );
  expect(withKeys(config, keys)).toBe(config);
  expect(withKeys(config, undefined)).toBe(config);
  for (const [name, text] of Object.entries(keyFilesOf({ certificate: "c", key: "k", clientCa: "a" })))
    await writeFile(join(keys, name), text);
  expect(withKeys(config, keys)).toMatchObject({
    listen: { address: "0.0.0.0", port: GUEST_PORT },
    tls: {
      certFile: join(keys, "guest.crt"),
      keyFile: join(keys, "guest.key"),
      clientCaFile: join(keys, "client-ca.crt"),
    },
  });
});

test("containers are privileged in VMs with a kernel of their own, in others where the owner says so", () => {
  const of = (instanceType: "container" | "virtual-machine", allowPrivileged?: boolean) =>
    capabilitiesOf({ cloud: { instanceType } as CloudProviderConfig["cloud"], allowPrivileged });
  expect(of("virtual-machine")).toContain("privileged");
  expect(of("container")).not.toContain("privileged");
  expect(of("container", true)).toContain("privileged");
  expect(of("virtual-machine", false)).not.toContain("privileged");
});

test("a claim that was cut off before it said of which machine is taken over", async () => {
  const stateDir = await folder();
  await writeFile(join(stateDir, "machine"), "");
  await oneMachine(new MemoryProvider(), stateDir).createPod("m", spec, { signal });
  expect(await readFile(join(stateDir, "machine"), "utf8")).toBe("m");
});

test("a guest listens where only the agent gets to", () => {
  const listen = { address: "0.0.0.0", port: 8443 };
  expect(() => assertPrivate({ listen: { socket: "/run/s" }, tls: undefined }, "g.yaml")).not.toThrow();
  expect(() =>
    assertPrivate({ listen, tls: { certFile: "c", keyFile: "k", clientCaFile: "a" } }, "g.yaml"),
  ).not.toThrow();
  expect(() => assertPrivate({ listen, tls: { certFile: "c", keyFile: "k" } }, "g.yaml")).toThrow("clientCaFile");
});

test("a guest waits until its keys are there, whole", async () => {
  const clock = new VirtualClock();
  const dir = await folder();
  const tls = { certFile: join(dir, "c"), keyFile: join(dir, "k"), clientCaFile: join(dir, "a") };
  let isReady = false;
  const waiting = untilKeysAreThere({ tls }, { clock, logger: silentLogger, signal }).then(() => (isReady = true));
  const written = [
    ["c", serverCert],
    ["a", caCert],
    ["k", serverKey.slice(0, 40)],
    ["k", serverKey],
  ] as const;
  for (const [file, text] of written) {
    await clock.advance(1000);
    await settle();
    expect(isReady).toBe(false);
    await writeFile(join(dir, file), text);
  }
  await clock.advance(1000);
  await waiting;
});

test("what comes to the VM from outside goes to its machine, but for what is the VM's own", () => {
  const rules = hostRules({ address: "100.127.255.2", bridge: "vmlet0", ownPorts: [8443] });
  expect(rules).toContain('iifname != { "lo", "vmlet0" } fib daddr type local dnat to 100.127.255.2');
  expect(rules).toMatch(
    /iifname "vmlet0" .*fib daddr \. iif type != local fib daddr type local dnat to 100\.127\.255\.2/,
  );
  expect(rules.indexOf("tcp dport 8443 return")).toBeLessThan(rules.indexOf("dnat to"));
});

test("the machine has its VM's address: what comes is for that, and what it sends from that goes by its own", () => {
  const rules = machineRules({ address: "100.127.255.2", outside: "10.1.2.3" });
  expect(rules).toContain("prerouting ip daddr 100.127.255.2 dnat to 10.1.2.3");
  expect(rules).toContain('postrouting oifname != "lo" ip saddr 10.1.2.3 snat to 100.127.255.2');
});

test("a VM's address is that of the link by which it reaches what it does not know", () => {
  const heading = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT";
  const row = (link: string, to: string, mask: string) => `${link}\t${to}\t0100A8C0\t0003\t0\t0\t0\t${mask}\t0\t0\t0`;
  const routes = [heading, row("vmlet0", "00FF7F64", "00FFFFFF"), row("eth0", "00000000", "00000000")].join("\n");
  expect(defaultLink(routes)).toBe("eth0");
  expect(defaultLink(heading)).toBeUndefined();
});

test("a guest runs its pod in its own VM, and not in one within", () => {
  const engine = (type: string) => ({ engine: { type } }) as Parameters<typeof assertInVm>[0];
  expect(() => assertInVm(engine("cri"), "g.yaml")).not.toThrow();
  expect(() => assertInVm(engine("vm"), "g.yaml")).toThrow("g.yaml: engine.type");
});

test("the image's own configuration is one that a guest takes", () => {
  const { text } = guestFiles("/opt/vmlet/main.js").find(({ path }) => path === "/etc/vmlet/guest.yaml")!;
  const config = parseBackendConfig(text, "guest.yaml");
  expect(() => assertPrivate(config, "guest.yaml")).not.toThrow();
  expect(config.engine.type).toBe("cri");
});

test("a size is told in the cloud's terms", () => {
  const size = { cpu: "1500m", memory: "2Gi", extended: { "example.com/gpu": 1 } };
  const sold = { name: "gpu", ...size, price: 2, zone: "one", warm: 3 };
  expect(instanceTypeOf(sold)).toMatchObject({
    name: "gpu",
    resources: { cpu_millis: 1500, memory_bytes: 2 ** 31, extended: [{ name: "example.com/gpu", count: 1 }] },
    price: 2,
    zone: "one",
    warm: 3,
  });
});
