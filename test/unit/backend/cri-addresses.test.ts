import { mkdirSync, mkdtempSync, readdirSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { SandboxAddresses } from "../../../providers/local/engines/cri/sandbox-addresses.ts";
import { taskIds } from "../../../providers/local/engines/cri/shims.ts";

const [LIVE, GONE, NEW] = ["1".repeat(64), "2".repeat(64), "3".repeat(64)];

function written(leases: Record<string, string>, results: readonly string[] = []) {
  const dir = mkdtempSync(join(tmpdir(), "vmlet-addresses-"));
  const [folder, cache] = [join(dir, "leases/vmlet-vmlet0"), join(dir, "results")];
  mkdirSync(folder, { recursive: true });
  mkdirSync(cache);
  for (const [name, text] of Object.entries(leases)) writeFileSync(join(folder, name), text);
  for (const name of results) writeFileSync(join(cache, name), "{}");
  return {
    addresses: new SandboxAddresses(join(dir, "leases"), "vmlet-vmlet0", cache),
    write: (name: string, text: string) => writeFileSync(join(folder, name), text),
    writeResult: (name: string) => writeFileSync(join(cache, name), "{}"),
    leases: () => readdirSync(folder).toSorted(),
    results: () => readdirSync(cache).toSorted(),
  };
}

describe("the address of a sandbox", () => {
  test("that there is stays its own, and so does the order in which addresses are given out", async () => {
    const { addresses, leases } = written({
      "10.99.0.2": `${LIVE}\r\neth0`,
      "10.99.0.3": `${LIVE}\neth0`,
      "last_reserved_ip.0": "10.99.0.3",
      lock: "",
    });
    await addresses.retain(new Set([LIVE]));
    expect(leases()).toEqual(["10.99.0.2", "10.99.0.3", "last_reserved_ip.0", "lock"]);
  });

  test.each([
    ["that is gone", `${GONE}\r\neth0`],
    ["that a loss of power has taken out of the lease", ""],
    ["that a loss of power has left in part", LIVE.slice(0, 12)],
    ["of which zeros are left", "\0".repeat(64)],
  ])("%s is free again", async (_what, text) => {
    const { addresses, leases } = written({ "10.99.0.2": text, lock: "" });
    await addresses.retain(new Set([LIVE]));
    expect(leases()).toEqual(["lock"]);
  });

  test("that CNI's library has kept is forgotten with the sandbox, and nobody else's is", async () => {
    const others = [`cni-loopback-${GONE}-lo`, `vmlet-vmlet0-2-${GONE}-eth0`, `other-${GONE}-eth0`];
    const { addresses, results } = written({}, [`vmlet-vmlet0-${LIVE}-eth0`, `vmlet-vmlet0-${GONE}-eth0`, ...others]);
    await addresses.retain(new Set([LIVE]));
    expect(results()).toEqual([...others, `vmlet-vmlet0-${LIVE}-eth0`].toSorted());
  });

  test("that is being made while those before are forgotten is its own", async () => {
    const world = written({ "10.99.0.2": `${GONE}\r\neth0`, "10.99.0.3": GONE });
    const before = await world.addresses.written();
    world.write("10.99.0.3", `${NEW}\r\neth0`);
    world.write("10.99.0.4", "");
    world.writeResult(`vmlet-vmlet0-${NEW}-eth0`);
    await world.addresses.forget(before, new Set([LIVE]));
    expect(world.leases()).toEqual(["10.99.0.3", "10.99.0.4"]);
    expect(world.results()).toEqual([`vmlet-vmlet0-${NEW}-eth0`]);
  });

  test("is nothing to forget where there never was one", async () => {
    const addresses = new SandboxAddresses("/nonexistent", "vmlet-vmlet0", "/nonexistent");
    expect(await addresses.retain(new Set())).toBeUndefined();
  });
});

test("tasks that cannot be listed are not taken for none", async () => {
  const state = mkdtempSync(join(tmpdir(), "vmlet-state-"));
  expect(await taskIds(state)).toEqual([]);
  const tasks = join(state, "io.containerd.runtime.v2.task");
  mkdirSync(tasks);
  symlinkSync("k8s.io", join(tasks, "k8s.io"));
  await expect(taskIds(state)).rejects.toThrow("ELOOP");
});
