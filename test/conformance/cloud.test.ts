/** The conformance kit against machines that are VMs of a cloud, whose guests are in-memory providers. */
import { expect, test } from "vitest";
import { CloudProvider } from "../../providers/cloud/provider.ts";
import { MEMORY_CAPABILITIES, MemoryProvider } from "../../providers/memory/index.ts";
import type { Capability } from "../../src/provider/capabilities.ts";
import { CHECKS, runConformance } from "../../src/provider/kit/index.ts";
import { givenIn } from "../support/cloud-agents.ts";
import { LARGE, SMALL } from "../support/cloud-state.ts";
import { SimulatedCloud } from "../support/simulated-cloud.ts";

const CAPABILITIES: readonly Capability[] = [...MEMORY_CAPABILITIES, "restart_rules"];
const ECHO = { command: ["sleep", "3600"], port: 7777 };

/** A guest's are those of one VM, or gone with it. */
const GUESTS_OWN = ["capacity", "images.prewarm", "volumes.exclusive"];

test.each([
  ["that boot at once", { bootsAtOnce: true }],
  ["that go slowly", { bootsAtOnce: true, deletesSlowly: true }],
])("VMs %s pass every check", async (_name, options) => {
  const guests = new Map<string, MemoryProvider>();
  const cloud = new SimulatedCloud(options);
  const agent = (): CloudProvider =>
    new CloudProvider({
      cloud,
      scope: "conformance",
      types: [SMALL, LARGE],
      capabilities: CAPABILITIES,
      openGuest: (vm) => {
        const birth = vm.labels["vmlet-birth"]!;
        const given = givenIn(cloud.state, vm);
        const guest = guests.get(birth) ?? new MemoryProvider({ capabilities: CAPABILITIES, given });
        guests.set(birth, guest);
        // The guest lives on when the agent lets go of it.
        return new Proxy(guest, {
          get: (target, key) => {
            if (key === "close") return () => Promise.resolve();
            const value: unknown = Reflect.get(target, key, target);
            return typeof value === "function" ? (value.bind(target) as unknown) : value;
          },
        });
      },
      makeEveryMs: 10,
      lookEveryMs: 10,
    });
  cloud.after = (call, name) => {
    // What goes slowly is gone at the next look.
    const vm = cloud.state.vms.get(name);
    if (call === "getVm" && vm?.state === "deleting") cloud.state.lose(name);
  };
  let current = agent();
  const provider = new Proxy(current, {
    get: (_first, key) => {
      const value: unknown = Reflect.get(current, key, current);
      return typeof value === "function" ? (value.bind(current) as unknown) : value;
    },
  });
  // All that is known stands in the cloud: another process is the same provider.
  const restart = async () => {
    await current.close();
    current = agent();
  };
  const disrupt = (id: string) => {
    for (const vm of cloud.state.vms.values())
      if (vm.request.labels["vmlet-machine"] === id)
        vm.notice = { reason: "HostEvacuated", message: "cluster member one is being evacuated" };
    return Promise.resolve();
  };
  const report = await runConformance(provider, { echo: ECHO, concurrency: 20, patienceMs: 8000, restart, disrupt });
  await current.close();
  const failed = report.results.filter(({ outcome }) => outcome === "failed");
  expect(failed.map(({ name, message }) => `${name}: ${message}`)).toEqual([]);
  expect(CAPABILITIES.filter((each) => !report.capabilities.includes(each)).toSorted()).toEqual(GUESTS_OWN);
  const skipped = report.results.filter(({ outcome }) => outcome === "skipped").map(({ name }) => name);
  const inProcess = CHECKS.filter(({ needsHttp, skip }) => !needsHttp && skip === undefined);
  const due = inProcess.filter(({ needs = [] }) => needs.every((each) => report.capabilities.includes(each)));
  expect(due.flatMap(({ name }) => (skipped.includes(name) ? [name] : []))).toEqual([]);
});
