import { chmodSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, expect, onTestFinished, test } from "vitest";
import { hasCapability, parseNetwork, readNetwork } from "../../../providers/local/network/cni/configuration.ts";
import { addressesIn } from "../../../providers/local/network/cni/network.ts";
import { addNetwork, removeNetwork } from "../../../providers/local/network/cni/plugins.ts";
import { holdSender } from "../../../providers/local/network/sender-rules.ts";

function folder(files: Record<string, string> = {}): string {
  const dir = mkdtempSync(join(tmpdir(), "vmlet-cni-"));
  onTestFinished(() => rmSync(dir, { recursive: true, force: true }));
  for (const [name, content] of Object.entries(files)) writeFileSync(join(dir, name), content);
  return dir;
}

const list = (name: string) => JSON.stringify({ cniVersion: "1.0.0", name, plugins: [{ type: "p" }] });

describe("the network's configuration", () => {
  test("is the first by name that can be read", async () => {
    const dir = folder({
      "00-torn.conflist": "{",
      "10-b.conflist": list("b"),
      "20-c.conflist": list("c"),
      "0.txt": "",
    });
    expect(await readNetwork(dir)).toMatchObject({ name: "b" });
  });

  test("may have a single plugin, which is its own", () => {
    const text = JSON.stringify({ cniVersion: "0.3.1", name: "n", type: "bridge", bridge: "cni0" });
    expect(parseNetwork(text)).toMatchObject({ name: "n", plugins: [{ type: "bridge", bridge: "cni0" }] });
  });

  test("is missed with the folder, or with what is wrong in it", async () => {
    expect(await readNetwork("/nonexistent")).toBe("no network config found in /nonexistent");
    const dir = folder({ "1.conf": "[]", "2.conf": "no" });
    expect(await readNetwork(dir)).toContain(`${dir}/1.conf: its name is missing`);
    expect(await readNetwork(dir)).toContain(`${dir}/2.conf: it is no JSON`);
  });

  test.each([
    ["null", "it is no object"],
    [JSON.stringify({ name: "../n", cniVersion: "1.0.0", plugins: [{ type: "p" }] }), "its name is missing"],
    [JSON.stringify({ name: "n", cniVersion: "0.2.0", plugins: [{ type: "p" }] }), 'its cniVersion is "0.2.0"'],
    [JSON.stringify({ name: "n", cniVersion: "1.0.0", plugins: [] }), "it names no plugins"],
    [JSON.stringify({ name: "n", cniVersion: "1.0.0", plugins: [{ type: "../../bin/sh" }] }), "it names no plugins"],
    [JSON.stringify({ name: "n", cniVersion: "1.0.0", plugins: [null] }), "it names no plugins"],
  ])("is refused with its reason: %s", (text, why) => {
    expect(parseNetwork(text)).toContain(why);
  });

  test("says which of a runtime's capabilities a plugin has", () => {
    const network = {
      ...{ cniVersion: "1.0.0", name: "n" },
      plugins: [{ type: "a" }, { type: "b", capabilities: { bandwidth: true, portMappings: false } }],
    };
    expect(hasCapability(network, "bandwidth")).toBe(true);
    expect(hasCapability(network, "portMappings")).toBe(false);
  });
});

describe("plugins", () => {
  /** Each writes down what it was told, and answers. */
  function plugins(answers: Record<string, string>): { dir: string; told: (name: string) => Record<string, unknown> } {
    const dir = folder();
    for (const [name, answer] of Object.entries(answers)) {
      const script = `#!/bin/sh\necho "$CNI_COMMAND $CNI_CONTAINERID $CNI_NETNS $CNI_IFNAME $CNI_ARGS" >> ${dir}/order\ncat > ${dir}/${name}.json\n${answer}\n`;
      writeFileSync(join(dir, name), script);
      chmodSync(join(dir, name), 0o755);
    }
    return {
      dir,
      told: (name) => JSON.parse(readFileSync(join(dir, `${name}.json`), "utf8")) as Record<string, unknown>,
    };
  }
  const call = {
    containerId: "c1",
    netns: "/run/netns/n",
    args: { K8S_POD_NAME: "web" },
    runtimeConfig: { bandwidth: { ingressRate: 1 } },
  };
  const network = {
    ...{ cniVersion: "1.0.0", name: "n" },
    plugins: [{ type: "first" }, { type: "second", capabilities: { bandwidth: true }, more: 1 }],
  };

  test("are called in order, each with what the one before it has said", async () => {
    const { dir, told } = plugins({ first: "echo '{\"ips\":[]}'", second: "echo '{\"routes\":[]}'" });
    expect(await addNetwork(network, [dir], call)).toEqual({ routes: [] });
    expect(told("first")).toEqual({ type: "first", cniVersion: "1.0.0", name: "n" });
    expect(told("second")).toEqual({
      ...{ type: "second", capabilities: { bandwidth: true }, more: 1, cniVersion: "1.0.0", name: "n" },
      ...{ runtimeConfig: { bandwidth: { ingressRate: 1 } }, prevResult: { ips: [] } },
    });
    expect(readFileSync(join(dir, "order"), "utf8").split("\n")[0]).toBe(
      "ADD c1 /run/netns/n eth0 IgnoreUnknown=1;K8S_POD_NAME=web",
    );
  });

  test("take back what they gave in the other order", async () => {
    const { dir, told } = plugins({ first: "echo first >> ${0%/*}/ends", second: "echo second >> ${0%/*}/ends" });
    await removeNetwork(network, [dir], { ...call, netns: "" }, { ips: [] });
    expect(readFileSync(join(dir, "ends"), "utf8")).toBe("second\nfirst\n");
    expect(told("first")).toMatchObject({ prevResult: { ips: [] } });
  });

  test("that fail are told by name, in their own words", async () => {
    const { dir } = plugins({ first: `echo '{"code":11,"msg":"no address","details":"pool is empty"}'; exit 1` });
    await expect(addNetwork(network, [dir], call)).rejects.toMatchObject({
      code: "unavailable",
      message: 'plugin type="first" failed (add): no address; pool is empty',
    });
  });

  test("that say nothing of use are told all the same", async () => {
    const { dir } = plugins({ first: "echo oops >&2; exit 3", second: "true" });
    await expect(addNetwork(network, [dir], call)).rejects.toThrow(/plugin type="first" failed \(add\): .*oops/);
    const mute = plugins({ first: "true" });
    await expect(addNetwork(network, [mute.dir], call)).rejects.toThrow('plugin type="first" failed (add)');
  });

  test("that come to no end are ended with who waits for them", async () => {
    const { dir } = plugins({ first: "exec sleep 600" });
    const late = new Error("late");
    await expect(addNetwork(network, [dir], call, AbortSignal.abort(late))).rejects.toBe(late);
    const waiting = new AbortController();
    const added = addNetwork(network, [dir], call, waiting.signal);
    waiting.abort(late);
    await expect(added).rejects.toBe(late);
  });

  test("that are not there are told with where they were looked for", async () => {
    await expect(addNetwork(network, ["/nonexistent"], call)).rejects.toThrow(
      'failed to find plugin "first" in path [/nonexistent]',
    );
  });
});

describe("what a VM gets of what plugins say", () => {
  const inside = [{ name: "veth1" }, { name: "eth0", sandbox: "/n" }];

  test("is the addresses of eth0, one of each family, with their gateways by default", () => {
    const ips = [
      { address: "10.9.0.1/24", interface: 0 },
      { address: "fd00::2/64", gateway: "fd00::1", interface: 1 },
      { address: "10.1.2.3/24", gateway: "10.1.2.1", interface: 1 },
    ];
    const routes = [{ dst: "0.0.0.0/0" }, { dst: "::/0" }, { dst: "10.2.0.0/16", gw: "10.1.2.9" }];
    expect(addressesIn({ interfaces: inside, ips, routes })).toEqual({
      ...{ address: "10.1.2.3", prefix: 24, gateway: "10.1.2.1" },
      routes: [{ to: "10.2.0.0/16", via: "10.1.2.9" }],
      ipv6: { address: "fd00::2", prefix: 64, gateway: "fd00::1", routes: [] },
    });
  });

  test("may lead to a gateway on no range of its own", () => {
    const routes = [{ dst: "169.254.1.1/32" }, { dst: "0.0.0.0/0", gw: "169.254.1.1" }];
    expect(addressesIn({ ips: [{ address: "10.1.2.3/32" }], routes })).toEqual({
      ...{ address: "10.1.2.3", prefix: 32, gateway: "169.254.1.1" },
      routes: [{ to: "169.254.1.1/32", via: undefined }],
    });
  });

  test("is nothing where the network has IPv6 alone", () => {
    expect(() => addressesIn({ ips: [{ address: "fd00::2/64" }] })).toThrow("gives its pods no IPv4 address");
  });
});

test("where neighbours find each other, a VM is taken for nobody else by its link-local address either", () => {
  const rules = holdSender("t", {
    link: "tap0",
    address: "10.0.0.2",
    mac: "aa:bb:cc:dd:ee:0f",
    ipv6: { address: "fd00::2" },
  });
  expect(rules).toContain("ip6 saddr { fd00::2, fe80::a8bb:ccff:fedd:ee0f, :: } accept");
  expect(rules).not.toContain("fe80::/");
  expect(rules).toContain("nd-neighbor-advert ip6 saddr fd00::2 @th,64,128 0xfd000000000000000000000000000002 accept");
});
