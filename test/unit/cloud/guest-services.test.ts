import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { GuestServices } from "../../../providers/cloud/guest-services.ts";
import { MemoryProvider } from "../../../providers/memory/index.ts";
import { ProviderError } from "../../../src/provider/errors.ts";
import type { Provider } from "../../../src/provider/provider.ts";
import { type ServicesChange, type ServicePort, ServiceTable } from "../../../src/provider/services.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { settle, VirtualClock } from "../../support/virtual-clock.ts";

const LABELS = { cluster: "c", node: "n" };
const service = (address: string): ServicePort => ({ address, protocol: "TCP", port: 80, endpoints: [] });

/** A guest as far as its Services go. */
class Guest {
  table = new ServiceTable();
  calls: ServicesChange[] = [];
  refusal: ProviderError | undefined;
  answer: Promise<void> = Promise.resolve();
  readonly provider: Provider = Object.assign(new MemoryProvider({}), {
    services: {
      put: async (change: ServicesChange) => {
        this.calls.push(change);
        await this.answer;
        if (this.refusal !== undefined) throw this.refusal;
        this.table.apply(change);
        return { revision: change.revision, services: this.table.size };
      },
    },
  });

  get addresses(): string[] {
    return this.table.ports.map(({ address }) => address);
  }
}

describe("guests are told where the cluster's Services lead", () => {
  let clock: VirtualClock;
  let done: AbortController;
  let services: GuestServices;
  let revision: number;

  beforeEach(() => {
    clock = new VirtualClock();
    done = new AbortController();
    services = new GuestServices({ clock, logger: silentLogger, signal: done.signal });
    revision = 0;
  });
  afterEach(() => done.abort());

  const tell = async (...addresses: string[]) => {
    const change = { labels: LABELS, revision: `${++revision}`, services: addresses.map((each) => service(each)) };
    await services.put(change, { signal: done.signal });
    await settle();
  };
  const later = async (ms: number) => {
    await clock.advance(ms);
    await settle();
  };

  test("before their machine begins", async () => {
    const guest = new Guest();
    await tell("10.0.0.1");
    await services.before(guest.provider, { ...LABELS, pod: "p" }, { signal: done.signal });
    expect(guest.addresses).toEqual(["10.0.0.1"]);
  });

  test("once, however early that is asked for", async () => {
    const guest = new Guest();
    await tell("10.0.0.1");
    const ask = () => services.before(guest.provider, LABELS, { signal: done.signal });
    await Promise.all([ask(), ask()]);
    await ask();
    expect(guest.calls).toHaveLength(1);
  });

  test("while their VM waits for a machine, and then it has none to wait for", async () => {
    const guest = new Guest();
    const warm = () => services.warm(guest.provider, { signal: done.signal });
    await warm();
    expect(guest.calls).toEqual([]);
    await tell("10.0.0.1");
    await Promise.all([warm(), warm()]);
    await warm();
    await services.before(guest.provider, { ...LABELS, pod: "p" }, { signal: done.signal });
    expect([guest.addresses, guest.calls.length]).toEqual([["10.0.0.1"], 1]);
  });

  test("and of what changes afterwards, by that alone", async () => {
    const guest = new Guest();
    await tell("10.0.0.1");
    services.keep("m", guest.provider, LABELS);
    await later(1_000);
    await tell("10.0.0.1", "10.0.0.2");
    expect(guest.addresses).toEqual(["10.0.0.1", "10.0.0.2"]);
    expect(guest.calls.at(-1)).toMatchObject({ base: "1", services: [service("10.0.0.2")] });
  });

  test("while one of them is silent", async () => {
    const [silent, other] = [new Guest(), new Guest()];
    silent.answer = new Promise(() => {});
    services.keep("silent", silent.provider, LABELS);
    services.keep("other", other.provider, LABELS);
    await tell("10.0.0.1");
    await tell("10.0.0.2");
    expect(other.addresses).toEqual(["10.0.0.2"]);
  });

  test("while all that a namespace has are silent", async () => {
    const labels = { ...LABELS, "vmlet.dev/namespace": "hostile" };
    for (let n = 0; n < 200; n++) {
      const silent = new Guest();
      silent.answer = new Promise(() => {});
      services.keep(`silent-${n}`, silent.provider, labels);
    }
    const other = new Guest();
    services.keep("other", other.provider, { ...LABELS, "vmlet.dev/namespace": "other" });
    await tell("10.0.0.1");
    expect(other.addresses).toEqual(["10.0.0.1"]);
  });

  test("again when one of them did not answer, while the others have it", async () => {
    const [silent, other] = [new Guest(), new Guest()];
    silent.refusal = new ProviderError("unavailable", "no route");
    services.keep("silent", silent.provider, LABELS);
    services.keep("other", other.provider, LABELS);
    await tell("10.0.0.1");
    expect([silent.addresses, other.addresses]).toEqual([[], ["10.0.0.1"]]);
    silent.refusal = undefined;
    await later(11_000);
    expect(silent.addresses).toEqual(["10.0.0.1"]);
  });

  test("whose image is too old for it once, and their machines begin all the same", async () => {
    const guest = new Guest();
    guest.refusal = new ProviderError("unsupported", "this backend has no services");
    await tell("10.0.0.1");
    await services.before(guest.provider, LABELS, { signal: done.signal });
    services.keep("m", guest.provider, LABELS);
    await tell("10.0.0.2");
    await later(60_000);
    expect(guest.calls).toHaveLength(1);
  });

  test("that have lost it, when the agent says again that nothing has changed", async () => {
    const guest = new Guest();
    services.keep("m", guest.provider, LABELS);
    await tell("10.0.0.1");
    guest.table = new ServiceTable();
    await services.put({ labels: LABELS, revision: "1", base: "1", services: [] }, { signal: done.signal });
    await settle();
    expect(guest.addresses).toEqual(["10.0.0.1"]);
  });

  test("not of machines of another node, nor of one that is over", async () => {
    const [foreign, ended] = [new Guest(), new Guest()];
    await tell("10.0.0.1");
    services.keep("foreign", foreign.provider, { ...LABELS, node: "other" });
    services.keep("ended", ended.provider, LABELS);
    await settle();
    services.forget("ended");
    await tell("10.0.0.2");
    await later(6_000);
    expect([foreign.calls, ended.addresses]).toEqual([[], ["10.0.0.1"]]);
  });
});
