/** The kit of VM clouds: the simulated one keeps all of it, and for each check there is a bug that it finds. */
import { mkdtemp, rm } from "node:fs/promises";
import { createConnection } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import type { CloudVolumes, EntryStore, VmCloud } from "../../providers/cloud/cloud.ts";
import { checkVmCloud, VM_CLOUD_CHECKS } from "../../providers/cloud/kit.ts";
import { MachineApiServer } from "../../providers/http-vm/index.ts";
import { MemoryProvider } from "../../providers/memory/index.ts";
import { ProviderError } from "../../src/provider/errors.ts";
import { silentLogger } from "../../src/telemetry/logger.ts";
import { SMALL } from "../support/cloud-state.ts";
import { SimulatedCloud } from "../support/simulated-cloud.ts";

let folder: string;
let server: MachineApiServer;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "vmlet-kit-"));
  server = new MachineApiServer({ provider: new MemoryProvider(), logger: silentLogger });
  await server.listen({ socketPath: join(folder, "guest.sock") });
});

afterAll(async () => {
  await server.close();
  await rm(folder, { recursive: true });
});

/** Its guests are all the same one; which VM is dialled is looked at here. */
function good(): SimulatedCloud & VmCloud {
  const cloud = new SimulatedCloud();
  cloud.state.copiesInUse = true;
  return Object.assign(cloud, {
    dial: async ({ name, labels }: Parameters<VmCloud["dial"]>[0]) => {
      const now = cloud.state.vm(name);
      await Promise.resolve();
      if (JSON.stringify(now.labels) !== JSON.stringify(labels))
        throw new ProviderError("unavailable", "another VM has this name by now");
      return createConnection(join(folder, "guest.sock"));
    },
  });
}

const failures = async (cloud: VmCloud, { state }: SimulatedCloud) => {
  const announce = (name: string) => {
    const vm = state.vms.get(name)!;
    vm.notice = { reason: "HostEvacuated", message: "its host is emptied", at: "2026-11-22T12:00:00Z" };
    return Promise.resolve(() => Promise.resolve(void (vm.notice = undefined)));
  };
  const results = await checkVmCloud(cloud, { type: SMALL, patienceMs: 300, announce });
  expect(results.map(({ name }) => name)).toEqual(VM_CLOUD_CHECKS.map(({ name }) => name));
  return results.filter(({ failure }) => failure !== undefined);
};

test("a cloud that does what it must passes, and keeps nothing of the checks", async () => {
  const cloud = good();
  expect(await failures(cloud, cloud)).toEqual([]);
  expect([...cloud.state.vms.keys(), ...cloud.state.words.keys()]).toEqual([]);
});

test("announcements are not looked at where nobody can make one, and that is said", async () => {
  const results = await checkVmCloud(good(), { type: SMALL, patienceMs: 300 });
  const skipped = results.flatMap(({ name, skipped: why }) => (why === undefined ? [] : [name]));
  expect(skipped).toEqual(["vms/tell-what-is-about-to-befall-them"]);
});

type Flaw = (real: SimulatedCloud & VmCloud) => Partial<Omit<VmCloud, "entries" | "volumes">> & {
  entries?: Partial<EntryStore>;
  volumes?: Partial<CloudVolumes>;
};

/** By the check that must find it. */
const FLAWS: Readonly<Record<string, Flaw>> = {
  "entries/what-is-absent-is-not-found": ({ entries }) => ({
    entries: {
      get: (name, options) =>
        entries.get(name, options).catch(() => {
          throw new ProviderError("unavailable", "HTTP 404");
        }),
    },
  }),
  "entries/keep-words-as-they-are": ({ entries }) => ({
    entries: {
      create: (name, words, options) => {
        const short = Object.entries(words).map(([key, value]) => [key, value.slice(0, 255)]);
        return entries.create(name, Object.fromEntries(short) as Record<string, string>, options);
      },
    },
  }),
  "entries/one-create-of-several-wins": ({ entries }) => ({
    entries: {
      // A look, and then a write, with room for another between the two.
      create: async (name, words, options) => {
        const before = await entries.get(name, options).catch(() => undefined);
        if (before !== undefined) throw new ProviderError("conflict", "it is there");
        await new Promise((resolve) => setImmediate(resolve));
        return await entries
          .create(name, words, options)
          .catch(async () => entries.swap(name, words, (await entries.get(name, options)).version, options));
      },
    },
  }),
  "entries/one-swap-of-several-wins": ({ entries }) => ({
    entries: {
      swap: async (name, words, version, options) => {
        const now = await entries.get(name, options);
        if (now.version !== version) throw new ProviderError("conflict", "ETag doesn't match");
        await new Promise((resolve) => setImmediate(resolve));
        return await entries.swap(name, words, (await entries.get(name, options)).version, options);
      },
    },
  }),
  "entries/a-late-write-changes-nothing": ({ entries }) => ({
    entries: {
      remove: async (name, _version, options) =>
        entries.remove(name, (await entries.get(name, options)).version, options),
    },
  }),
  "entries/a-removed-name-is-free-and-its-versions-are-not": ({ entries }) => {
    // Versions are counted from one again.
    const counts = new Map<string, number>();
    const real = new Map<string, string>();
    const told = <T extends { name: string; version: string }>(entry: T): T => {
      if (real.get(entry.name) !== entry.version) counts.set(entry.name, (counts.get(entry.name) ?? 0) + 1);
      real.set(entry.name, entry.version);
      return { ...entry, version: String(counts.get(entry.name)) };
    };
    const known = (name: string, version: string) =>
      version === String(counts.get(name)) ? real.get(name)! : "another";
    return {
      entries: {
        get: async (name, options) => told(await entries.get(name, options)),
        list: async (word, options) => (await entries.list(word, options)).map(told),
        create: async (name, words, options) => told(await entries.create(name, words, options)),
        swap: async (name, words, version, options) =>
          told(await entries.swap(name, words, known(name, version), options)),
        remove: async (name, version, options) => {
          await entries.remove(name, known(name, version), options);
          counts.delete(name);
        },
      },
    };
  },
  "entries/are-listed-by-a-word": ({ entries }) => ({
    entries: { list: ([key], options) => entries.list([key, ""], options) },
  }),
  "vms/what-is-absent-is-not-found": (cloud) => ({
    getVm: (name) =>
      cloud.getVm(name).catch(() => ({ name, labels: {}, state: "stopped", isSeen: true, addresses: [] })),
  }),
  "vms/show-their-labels-from-the-first-moment": (cloud) => ({
    getVm: async (name) => ({ ...(await cloud.getVm(name)), labels: {} }),
  }),
  "vms/one-name-is-one-vm": (cloud) => ({
    createVm: async (request) => {
      cloud.state.lose(request.name);
      await cloud.createVm(request);
    },
  }),
  "vms/come-up-with-a-guest-that-answers": () => ({
    dial: () => Promise.reject(new ProviderError("unavailable", "there is no guest")),
  }),
  "vms/are-gone-when-they-are-deleted": () => ({ deleteVm: () => Promise.resolve() }),
  "vms/tell-what-is-about-to-befall-them": (cloud) => ({
    getVm: async (name) => {
      const { notice, ...vm } = await cloud.getVm(name);
      return { ...vm, ...(notice && { notice: { ...notice, at: "soon" } }) };
    },
  }),
  "volumes/what-is-absent-is-not-found": ({ volumes }) => ({
    volumes: {
      get: (volume, options) =>
        volumes.get(volume, options).catch(() => {
          throw new ProviderError("unavailable", "HTTP 404");
        }),
    },
  }),
  "volumes/one-name-is-one-volume": ({ volumes, state }) => ({
    volumes: {
      create: async (request, options) => {
        state.volumes.delete(request.name);
        await volumes.create(request, options);
      },
    },
  }),
  "volumes/grow-and-tell-it": () => ({ volumes: { grow: () => Promise.resolve() } }),
  "volumes/copies-outlive-their-source": ({ volumes, state }) => ({
    volumes: {
      delete: async (volume, options) => {
        await volumes.delete(volume, options);
        for (const each of state.volumes.values()) if (each.request.source?.name === volume.name) each.state = "broken";
      },
    },
  }),
  "volumes/are-copied-while-a-vm-has-them": ({ volumes, state }) => ({
    volumes: {
      create: (request, options) => {
        if ([...state.vms.values()].some((vm) => vm.volumes.includes(request.source?.name ?? "")))
          throw new ProviderError("in_use", "a VM writes to it");
        return volumes.create(request, options);
      },
    },
  }),
  "volumes/a-vm-has-them-until-they-are-taken": () => ({ volumes: { detach: () => Promise.resolve() } }),
  "vms/dial-reaches-this-very-vm": () => ({
    dial: () => Promise.resolve(createConnection(join(folder, "guest.sock"))),
  }),
};

test.each(VM_CLOUD_CHECKS.map(({ name }) => name))("%s finds its bug", async (name) => {
  const cloud = good();
  const { entries, volumes, ...rest } = FLAWS[name]!(cloud);
  const real: VmCloud = {
    name: cloud.name,
    entries: { ...cloud.entries, ...entries },
    volumes: { ...cloud.volumes, ...volumes },
    createVm: (request) => cloud.createVm(request),
    getVm: (vm) => cloud.getVm(vm),
    listVms: (label) => cloud.listVms(label),
    deleteVm: (vm) => cloud.deleteVm(vm),
    dial: (vm, options) => (cloud as VmCloud).dial(vm, options),
    close: () => cloud.close(),
    ...rest,
  };
  expect((await failures(real, cloud)).map((each) => each.name)).toContain(name);
});
