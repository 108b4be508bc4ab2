import { describe, expect, test } from "vitest";
import { isServiceAddress, type ServicePort, ServiceTable } from "../../../src/provider/services.ts";
import { ToldServices } from "../../../src/provider/told-services.ts";
import { ProviderError } from "../../../src/provider/errors.ts";

const service = (address: string, ...endpoints: string[]): ServicePort => ({
  ...{ address, protocol: "TCP", port: 80 },
  endpoints: endpoints.map((each) => ({ address: each, port: 8080 })),
});
const address = (text: string) => ({ address: text, protocol: "TCP", port: 80 }) as const;
const signal = new AbortController().signal;

test.each([
  ["10.96.0.10", true],
  ["fd00::10", true],
  ["127.0.0.1", false],
  ["169.254.169.254", false],
  ["224.0.0.1", false],
  ["255.255.255.255", false],
  ["0.0.0.0", false],
  ["::1", false],
  ["::ffff:10.0.0.1", false],
  ["fe80::1", false],
  ["fd00::1%eth0", false],
  ["10.0.0.1; flush ruleset", false],
  ["example.org", false],
])("%s may be a Service's address or an endpoint's: %s", (text, expected) => {
  expect(isServiceAddress(text)).toBe(expected);
});

describe("where Services lead", () => {
  test("of a whole table, only what differs from before is other", () => {
    const table = new ServiceTable();
    table.apply({ revision: "1", services: [service("10.0.0.1", "10.1.0.1"), service("10.0.0.2")] });
    const difference = table.apply({ revision: "2", services: [service("10.0.0.1", "10.1.0.1"), service("10.0.0.3")] });
    expect(difference).toEqual({ set: [service("10.0.0.3")], replaced: [service("10.0.0.2")] });
  });

  test("a change of another revision than there is is refused, and changes nothing", () => {
    const table = new ServiceTable();
    table.apply({ revision: "1", services: [service("10.0.0.1")] });
    expect(() => table.apply({ revision: "3", base: "2", services: [] })).toThrow("tell all of it");
    expect(table.revision).toBe("1");
  });

  test("a change that was made already is no change", () => {
    const table = new ServiceTable();
    table.apply({ revision: "1", services: [service("10.0.0.1")] });
    const change = { revision: "2", base: "1", services: [service("10.0.0.2")], gone: [address("10.0.0.1")] };
    expect(table.apply(change).set).toHaveLength(1);
    expect(table.apply(change)).toEqual({ set: [], replaced: [] });
    expect(table.ports).toEqual([service("10.0.0.2")]);
  });

  test("an endpoint of another family than its Service is refused, and all that comes with it", () => {
    const table = new ServiceTable();
    const services = [service("10.0.0.1"), service("10.0.0.2", "fd00::1")];
    expect(() => table.apply({ revision: "1", services })).toThrow('the address "fd00::1" is refused');
    expect(table.size).toBe(0);
  });

  test("who has an earlier revision is told what has changed since, once each", () => {
    const table = new ServiceTable();
    table.replace([service("10.0.0.1"), service("10.0.0.2")], "1");
    table.replace([service("10.0.0.1", "10.1.0.1"), service("10.0.0.2")], "2");
    table.replace([service("10.0.0.1", "10.1.0.2")], "3");
    const [change, ...others] = table.since("1");
    expect(others).toEqual([]);
    expect(change).toEqual({
      ...{ base: "1", revision: "3" },
      services: [service("10.0.0.1", "10.1.0.2")],
      gone: [address("10.0.0.2")],
    });
    expect(table.since("3")).toEqual([]);
  });

  test("what is replaced by the same keeps its revision: nobody is told", () => {
    const table = new ServiceTable();
    table.replace([service("10.0.0.1", "10.1.0.1")], "1");
    table.replace([service("10.0.0.1", "10.1.0.1")], "2");
    expect(table.revision).toBe("1");
  });

  test("who is too far behind is told all of it", () => {
    const table = new ServiceTable();
    for (let n = 1; n <= 100; n++) table.replace([service("10.0.0.1", `10.1.0.${n}`)], `${n}`);
    expect(table.since("1")).toEqual([{ revision: "100", services: [service("10.0.0.1", "10.1.0.100")] }]);
    expect(table.since("99")[0]?.base).toBe("99");
  });

  test("a table of many Services comes in parts, each on top of the one before", () => {
    const table = new ServiceTable();
    const all = Array.from({ length: 25_000 }, (_, n) => service(`10.1.${n >> 8}.${n & 255}`));
    table.replace(all, "r");
    const copy = new ServiceTable();
    const parts = table.since(undefined);
    for (const part of parts) copy.apply(part);
    expect(parts.map(({ services }) => services.length)).toEqual([10_000, 10_000, 5_000]);
    expect([copy.size, copy.revision]).toEqual([25_000, "r"]);
  });

  test("who has lost its table is told all of it", async () => {
    const table = new ServiceTable();
    table.replace([service("10.0.0.1")], "1");
    let backend = new ServiceTable();
    const told = new ToldServices({
      put: (change) => {
        try {
          backend.apply(change);
          return Promise.resolve({ revision: change.revision, services: backend.size });
        } catch (thrown) {
          return Promise.reject(thrown);
        }
      },
    });
    await told.bring(table, {}, signal);
    backend = new ServiceTable();
    await told.bring(table, {}, signal);
    expect(backend.ports).toEqual(table.ports);
  });

  test("what is no conflict is told to who asks, and the next call says all of it", async () => {
    const table = new ServiceTable();
    table.replace([service("10.0.0.1")], "1");
    const bases: (string | undefined)[] = [];
    const told = new ToldServices({
      put: ({ base, revision }) => {
        bases.push(base);
        if (bases.length === 2) return Promise.reject(new ProviderError("unavailable", "busy"));
        return Promise.resolve({ revision, services: 1 });
      },
    });
    await told.bring(table, {}, signal);
    table.replace([service("10.0.0.2")], "2");
    await expect(told.bring(table, {}, signal)).rejects.toThrow("busy");
    await told.bring(table, {}, signal);
    expect(bases).toEqual([undefined, "1", undefined]);
  });
});
