import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import fc from "fast-check";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { Ipam, parseSubnet } from "../../../providers/local/network/ipam.ts";
import { ipv6Of } from "../../../providers/local/network/second-family.ts";
import { ipv4Text } from "../../../src/util/cidr.ts";
import { runs } from "../../support/runs.ts";

describe("address ranges", () => {
  test("the first address is the gateway's, network and broadcast are nobody's", () =>
    expect(parseSubnet("10.1.2.77/24")).toMatchObject({
      cidr: "10.1.2.0/24",
      gateway: "10.1.2.1",
      first: 0x0a010202,
      last: 0x0a0102fe,
    }));
  test.each(["10.0.0.0", "10.0.0.0/30", "10.0.0.0/7", "300.0.0.0/16", "fd00::/64", ""])(
    "%j is refused with the cure",
    (cidr) => expect(() => parseSubnet(cidr)).toThrow("such as 10.99.0.0/16"),
  );
  test("of two families: the same place in both", () => {
    const { ipv6, ...ipv4 } = parseSubnet("10.1.2.77/24,fd00:1::7/64");
    expect([ipv4.cidr, ipv6?.cidr, ipv6?.gateway]).toEqual(["10.1.2.0/24", "fd00:1::/64", "fd00:1::1"]);
    const subnet = { prefix: ipv4.prefix, ipv6: ipv6! };
    expect(["10.1.2.2", "10.1.2.254"].map((address) => ipv6Of(subnet, address))).toEqual(["fd00:1::2", "fd00:1::fe"]);
  });
  test("the IPv6 range may be as small as the IPv4 one", () => {
    const { prefix, ipv6, last } = parseSubnet("10.8.0.0/13,fd00:1::/109");
    expect(ipv6Of({ prefix, ipv6: ipv6! }, ipv4Text(last))).toBe("fd00:1::7:fffe");
  });
  test.each([",", "fd00::/121", "10.9.0.0/16", "fd00::", "fd00::/64,fd01::/64", "fd00::/7"])(
    "%j beside an IPv4 range is refused with the cure",
    (second) => expect(() => parseSubnet(`10.1.2.0/24,${second}`)).toThrow("such as fd00:10:99::/64"),
  );
});

describe("leases", () => {
  let dir: string;
  const ipam = (cidr = "10.0.0.0/29") => new Ipam(dir, parseSubnet(cidr));
  beforeEach(async () => void (dir = await mkdtemp(join(tmpdir(), "vmlet-ipam-"))));
  afterEach(() => rm(dir, { recursive: true, force: true }));

  test("a machine keeps its address, also after a restart", async () => {
    const address = await ipam().acquire("a");
    expect(await ipam().acquire("a")).toBe(address);
    expect(await ipam().find("a")).toBe(address);
  });
  test("a full range is a quota problem, and a released address is free again", async () => {
    const pool = ipam();
    for (const id of ["a", "b", "c", "d", "e"]) await pool.acquire(id);
    await expect(pool.acquire("f")).rejects.toMatchObject({
      code: "quota",
      message: expect.stringContaining("10.0.0.0/29"),
    });
    await pool.release("c");
    expect(await pool.acquire("f")).toBe("10.0.0.4");
  });
  test("a released address rests until the others have had their turn", async () => {
    const pool = ipam();
    const first = await pool.acquire("a");
    await pool.release("a");
    expect(await pool.acquire("b")).not.toBe(first);
  });
  test("a released address rests over a restart of the backend, too", async () => {
    const first = await ipam().acquire("a");
    await ipam().release("a");
    expect(await ipam().acquire("b")).not.toBe(first);
  });
  test("what was given out last is not taken for a lease, and may be torn", async () => {
    await ipam().acquire("a");
    expect([...(await ipam().leases()).values()]).toEqual(["a"]);
    await writeFile(join(dir, "last_reserved_ip"), "");
    expect(await ipam().acquire("b")).toBe("10.0.0.3");
  });
  test("an address whose lease cannot be written is nobody's, and free when it can be", async () => {
    const pool = ipam();
    await pool.leases();
    await rm(dir, { recursive: true });
    await expect(pool.acquire("a")).rejects.toMatchObject({ code: "ENOENT" });
    expect(await pool.find("a")).toBeUndefined();
    expect((await pool.leases()).size).toBe(0);
    await mkdir(dir);
    await pool.acquire("a");
    expect([...(await pool.leases()).values()]).toEqual(["a"]);
  });
  test("leases are read once, not again for each machine", async () => {
    const pool = ipam("10.0.0.0/24");
    await pool.acquire("a");
    await writeFile(join(dir, "10.0.0.77"), "somebody else's");
    await pool.acquire("b");
    expect(await pool.find("somebody else's")).toBeUndefined();
  });
  test("a lease that was cut short is not given again before it is released", async () => {
    await writeFile(join(dir, "10.0.0.2"), "");
    expect(await ipam().acquire("a")).toBe("10.0.0.3");
  });
  test("no two machines ever share an address, whatever is taken and given back at the same time", () =>
    fc.assert(
      fc.asyncProperty(
        fc.array(fc.tuple(fc.constantFrom("a", "b", "c", "d", "e", "f", "g"), fc.boolean()), { maxLength: 30 }),
        async (steps) => {
          await rm(dir, { recursive: true, force: true });
          const pools = [ipam("10.0.0.0/28"), ipam("10.0.0.0/28")];
          await Promise.all(
            steps.map(([id, take], i) =>
              take ? pools[i % 2]!.acquire(`${id}${i}`) : pools[(i + 1) % 2]!.release(`${id}${i - 1}`),
            ),
          );
          const leases = await ipam("10.0.0.0/28").leases();
          expect(new Set(leases.values()).size).toBe(leases.size);
        },
      ),
      { numRuns: runs(30) },
    ));
});
