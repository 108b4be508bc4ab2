/**
 * For the author of a `VmCloud`: named checks of what the provider builds on. They make VMs and entries of their own,
 * of names that nobody else has, and take them away again. A VM costs what it costs: few are made, of the type that is
 * given.
 */
import {
  type Clock,
  isProviderError,
  type ProviderErrorCode,
  type Random,
  systemClock,
  systemRandom,
  toError,
  Violation,
} from "../../src/provider/kit/index.ts";
import type { Entry, InstanceType, Vm, VmCloud, VmRequest, VolumeRef } from "./cloud.ts";
import { dialledGuest } from "./guests.ts";
import { VOLUME_CHECKS } from "./kit-volumes.ts";
import { BIRTH_LABEL, MACHINE_LABEL, newVmName, SCOPE_LABEL } from "./labels.ts";

export interface VmCloudKitOptions {
  /** What VMs are made for the checks. Default: the first of those that the cloud tells. */
  readonly type?: InstanceType | undefined;
  /**
   * Has the cloud announce that it takes this VM away (`Vm.notice`), and resolves with what calls that off. Without it
   * nothing is known of announcements.
   */
  readonly announce?: ((vm: string) => Promise<() => Promise<void>>) | undefined;
  /** How long a VM may take until its guest answers, or it is gone. */
  readonly patienceMs?: number | undefined;
  readonly clock?: Clock | undefined;
  readonly random?: Random | undefined;
  readonly signal?: AbortSignal | undefined;
}

export interface VmCloudCheckResult {
  /** `group/what-holds`. */
  readonly name: string;
  /** What was expected and what came; absent when the rule holds. */
  readonly failure?: string | undefined;
  /** Why it was not looked at. */
  readonly skipped?: string | undefined;
}

export interface Check {
  readonly name: string;
  readonly why: string;
  skip?(context: Context): string | undefined;
  run(context: Context): Promise<void>;
}

const PATIENCE_MS = 120_000;
const POLL_MS = 100;
const AT_ONCE = 8;
/** An entry may have so much. */
const MOST_WORDS = 32;
const MOST_BYTES = 16 * 1024;

export class Context {
  readonly cloud: VmCloud;
  readonly type: InstanceType;
  readonly signal: AbortSignal;
  readonly clock: Clock;
  readonly announce: VmCloudKitOptions["announce"];
  readonly #random: Random;
  readonly #patienceMs: number;
  readonly #entries = new Set<string>();
  readonly #vms = new Set<string>();
  readonly #volumes = new Set<VolumeRef>();

  constructor(cloud: VmCloud, type: InstanceType, options: VmCloudKitOptions) {
    this.cloud = cloud;
    this.type = type;
    this.signal = options.signal ?? new AbortController().signal;
    this.announce = options.announce;
    this.clock = options.clock ?? systemClock;
    this.#random = options.random ?? systemRandom;
    this.#patienceMs = options.patienceMs ?? PATIENCE_MS;
  }

  get options(): { signal: AbortSignal } {
    return { signal: this.signal };
  }

  name(): string {
    return newVmName(this.#random);
  }

  /** A name for an entry, which is removed when the check is over. */
  entryName(): string {
    const name = `kit-${this.name()}`;
    this.#entries.add(name);
    return name;
  }

  /** Of a volume, which is removed when the check is over. */
  volumeRef(): VolumeRef {
    const volume = { name: this.name(), class: this.cloud.volumes!.classes[0]!.name };
    this.#volumes.add(volume);
    return volume;
  }

  request(name = this.name()): VmRequest {
    this.#vms.add(name);
    const labels = { [SCOPE_LABEL]: "kit", [MACHINE_LABEL]: `kit-${name}`, [BIRTH_LABEL]: this.name() };
    return { name, type: this.type, labels };
  }

  async vm(): Promise<VmRequest> {
    const request = this.request();
    await this.cloud.createVm(request, this.options);
    return request;
  }

  async untilRuns(name: string): Promise<Vm> {
    let vm: Vm | undefined;
    await this.eventually(`VM ${name} to run`, async () => {
      vm = await this.vmOf(name);
      return vm?.state === "running" ? undefined : vm === undefined ? "there is none" : `it is ${vm.state}`;
    });
    return vm!;
  }

  /** Deletes it, again where the cloud could not just then, until it is gone. */
  gone(name: string): Promise<void> {
    return this.eventually(`VM ${name} to be gone when it was deleted`, async () => {
      let said = "it is still there";
      await this.cloud.deleteVm(name, this.options).catch((thrown: unknown) => {
        if (!isProviderError(thrown, "unavailable")) throw thrown;
        said = thrown.message;
      });
      return (await this.vmOf(name)) === undefined ? undefined : said;
    });
  }

  async vmOf(name: string): Promise<Vm | undefined> {
    try {
      return await this.cloud.getVm(name, this.options);
    } catch (thrown) {
      if (isProviderError(thrown, "not_found")) return undefined;
      throw thrown;
    }
  }

  async guestAnswers(vm: Vm): Promise<void> {
    const guest = dialledGuest(this.cloud, this.clock)(vm, () => vm);
    try {
      await guest.getInfo(this.options);
    } finally {
      await guest.close();
    }
  }

  untilAnswers(vm: Vm): Promise<void> {
    return this.eventually("the guest to answer by `dial`", async () => {
      try {
        await this.guestAnswers(vm);
        return undefined;
      } catch (thrown) {
        return `it did not: ${toError(thrown).message}`;
      }
    });
  }

  /** @param lacking what came in place of what was expected */
  async eventually(expected: string, lacking: () => Promise<string | undefined>): Promise<void> {
    const end = this.clock.monotonic() + this.#patienceMs;
    for (;;) {
      const came = await lacking();
      if (came === undefined) return;
      if (this.clock.monotonic() > end) throw new Violation(expected, came);
      await this.clock.sleep(POLL_MS, this.signal);
    }
  }

  /** Nothing of the check stays. */
  async clean(): Promise<void> {
    for (const name of this.#entries)
      try {
        const { version } = await this.cloud.entries.get(name, this.options);
        await this.cloud.entries.remove(name, version, this.options);
      } catch {
        // It is gone, or its store does what the checks have told.
      }
    for (const name of this.#vms) await this.gone(name);
    for (const volume of this.#volumes) await this.cloud.volumes?.delete(volume, this.options);
  }
}

async function refused(what: string, codes: readonly ProviderErrorCode[], work: Promise<unknown>): Promise<void> {
  const came = await work.then(
    () => "it succeeded",
    (thrown: unknown) =>
      codes.some((code) => isProviderError(thrown, code)) ? undefined : `it failed with ${String(thrown)}`,
  );
  if (came !== undefined) throw new Violation(`${what} to fail with ${codes.join(" or ")}`, came);
}

function equal(what: string, expected: unknown, came: unknown): void {
  const [left, right] = [canonical(expected), canonical(came)];
  if (left !== right) throw new Violation(`${what} to be ${left}`, `it is ${right}`);
}

const canonical = (value: unknown): string =>
  JSON.stringify(value, (_key, each: unknown) =>
    typeof each === "object" && each !== null && !Array.isArray(each)
      ? Object.fromEntries(Object.entries(each).toSorted(([a], [b]) => (a < b ? -1 : 1)))
      : each,
  );

const succeeded = (results: readonly PromiseSettledResult<unknown>[]): number =>
  results.filter(({ status }) => status === "fulfilled").length;

const ENTRY_CHECKS: readonly Check[] = [
  {
    name: "entries/what-is-absent-is-not-found",
    why: "`not_found` is the only proof that nobody has written a machine down",
    async run(context) {
      const { options } = context;
      const { entries } = context.cloud;
      const name = context.entryName();
      await refused("`get` of what never was", ["not_found"], entries.get(name, options));
      const { version } = await entries.create(name, {}, options);
      await entries.remove(name, version, options);
      await refused("`get` of what was removed", ["not_found"], entries.get(name, options));
      await refused("`swap` of what was removed", ["not_found", "conflict"], entries.swap(name, {}, version, options));
      await refused("`remove` of what was removed", ["not_found", "conflict"], entries.remove(name, version, options));
    },
  },
  {
    name: "entries/keep-words-as-they-are",
    why: "all that is known of a machine stands in its entry, exit codes and texts of containers among it",
    async run(context) {
      const { options } = context;
      const { entries } = context.cloud;
      const name = context.entryName();
      const bytes = Math.floor(MOST_BYTES / MOST_WORDS) - 8;
      const keys = Array.from({ length: MOST_WORDS }, (_, i) => [`word-${i}`, "x".repeat(bytes)] as const);
      const words = { ...Object.fromEntries(keys), "word-0": '{"text":"é 🙂 \\n\\" \n end"}', "word-1": " " };
      equal("what `create` returns", words, (await entries.create(name, words, options)).words);
      equal("what `get` returns", words, (await entries.get(name, options)).words);
      const { version } = await entries.get(name, options);
      equal("what is left by `swap`", { b: "2" }, (await entries.swap(name, { b: "2" }, version, options)).words);
      equal("what `get` returns then", { b: "2" }, (await entries.get(name, options)).words);
    },
  },
  {
    name: "entries/one-create-of-several-wins",
    why: "two agents that make one machine at the same time would make two VMs",
    async run(context) {
      const { options } = context;
      const { entries } = context.cloud;
      const name = context.entryName();
      const creates = Array.from({ length: AT_ONCE }, (_, i) => entries.create(name, { by: String(i) }, options));
      const results = await Promise.allSettled(creates);
      if (succeeded(results) !== 1)
        throw new Violation("one create of one name to succeed", `${succeeded(results)} of ${AT_ONCE} did`);
      await refused("a later create of the name", ["conflict"], entries.create(name, {}, options));
    },
  },
  {
    name: "entries/one-swap-of-several-wins",
    why: "the agent that lost would go on with what another has decided against",
    async run(context) {
      const { options } = context;
      const { entries } = context.cloud;
      const name = context.entryName();
      const { version } = await entries.create(name, { by: "" }, options);
      const swaps = Array.from({ length: AT_ONCE }, (_, i) => entries.swap(name, { by: String(i) }, version, options));
      const results = await Promise.allSettled(swaps);
      if (succeeded(results) !== 1)
        throw new Violation("one swap of one version to succeed", `${succeeded(results)} of ${AT_ONCE} did`);
      const winner = results.findIndex(({ status }) => status === "fulfilled");
      equal("who is in the entry", { by: String(winner) }, (await entries.get(name, options)).words);
    },
  },
  {
    name: "entries/a-late-write-changes-nothing",
    why: "what an agent sent before it was killed arrives when another has long gone on",
    async run(context) {
      const { options } = context;
      const { entries } = context.cloud;
      const name = context.entryName();
      const first = await entries.create(name, { n: "1" }, options);
      const second = await entries.swap(name, { n: "2" }, first.version, options);
      if (first.version === second.version) throw new Violation("a version for each change", "it stayed the same");
      await refused(
        "`swap` of an old version",
        ["conflict"],
        entries.swap(name, { n: "late" }, first.version, options),
      );
      await refused("`remove` of an old version", ["conflict"], entries.remove(name, first.version, options));
      equal("the entry", second, await entries.get(name, options));
    },
  },
  {
    name: "entries/a-removed-name-is-free-and-its-versions-are-not",
    why: "a write that was meant for an entry must not change another one of its name",
    async run(context) {
      const { options } = context;
      const { entries } = context.cloud;
      const name = context.entryName();
      const first = await entries.create(name, { n: "1" }, options);
      await entries.remove(name, first.version, options);
      await entries.create(name, { n: "2" }, options);
      const late = entries.swap(name, { n: "late" }, first.version, options);
      await refused("`swap` of a version from before the removal", ["conflict", "not_found"], late);
      equal("the words", { n: "2" }, (await entries.get(name, options)).words);
    },
  },
  {
    name: "entries/are-listed-by-a-word",
    why: "an agent that was started anew finds its machines by the list",
    async run(context) {
      const { options } = context;
      const { entries } = context.cloud;
      const [one, other] = [context.entryName(), context.entryName()];
      await entries.create(one, { "kit-of": one, n: "1" }, options);
      await entries.create(other, { "kit-of": other }, options);
      const { version } = await entries.get(one, options);
      const now = await entries.swap(one, { "kit-of": one, n: "2" }, version, options);
      let found: readonly Entry[] = [];
      await context.eventually("the entry to be listed as it is now", async () => {
        found = await entries.list(["kit-of", one], options);
        return canonical(found) === canonical([now]) ? undefined : `the list is ${canonical(found)}`;
      });
    },
  },
];

const VM_CHECKS: readonly Check[] = [
  {
    name: "vms/what-is-absent-is-not-found",
    why: "a VM that the cloud does not know is the only proof that nothing runs in it any more",
    async run(context) {
      const { cloud, options } = context;
      const name = context.name();
      await refused("`getVm` of what is not there", ["not_found"], cloud.getVm(name, options));
      await cloud.deleteVm(name, options);
    },
  },
  {
    name: "vms/show-their-labels-from-the-first-moment",
    why: "a VM that does not say whose it is cannot be removed when nobody lives to use it",
    async run(context) {
      const { cloud, options } = context;
      const { name, labels } = await context.vm();
      const vm = await cloud.getVm(name, options);
      for (const [key, value] of Object.entries(labels)) equal(`label ${key} of the VM`, value, vm.labels[key]);
      await context.eventually("the VM to be listed by its label, with all of them", async () => {
        const found = await cloud.listVms([BIRTH_LABEL, labels[BIRTH_LABEL]!], options);
        const shown = found.map((each) => [each.name, each.labels[MACHINE_LABEL]]);
        const isSo = canonical(shown) === canonical([[name, labels[MACHINE_LABEL]]]);
        return isSo ? undefined : `the list is ${canonical(shown)}`;
      });
    },
  },
  {
    name: "vms/one-name-is-one-vm",
    why: "the order of a machine is sent again when its answer was lost, and two agents send it",
    async run(context) {
      const { cloud, options } = context;
      const first = await context.vm();
      const again = { ...first, labels: { ...first.labels, [BIRTH_LABEL]: context.name() } };
      await refused("a second order of the name", ["conflict"], cloud.createVm(again, options));
      const { labels } = await cloud.getVm(first.name, options);
      equal("the VM's birth", first.labels[BIRTH_LABEL], labels[BIRTH_LABEL]);
    },
  },
  {
    name: "vms/come-up-with-a-guest-that-answers",
    why: "a machine is told to the guest that `dial` leads to",
    async run(context) {
      const { name } = await context.vm();
      const vm = await context.untilRuns(name);
      await context.untilAnswers(vm);
    },
  },
  {
    name: "vms/are-gone-when-they-are-deleted",
    why: "a pod's end is told when its VM is gone, and what stays costs money",
    async run(context) {
      const { cloud, options } = context;
      const { name, labels } = await context.vm();
      await context.gone(name);
      await cloud.deleteVm(name, options);
      await context.eventually("the list to have it no more", async () => {
        const found = await cloud.listVms([BIRTH_LABEL, labels[BIRTH_LABEL]!], options);
        return found.length === 0 ? undefined : `it has ${found.length}`;
      });
    },
  },
  {
    name: "vms/dial-reaches-this-very-vm",
    why: "what is meant for one VM must not come to another that has its name by now",
    async run(context) {
      const { cloud, options } = context;
      const first = await context.vm();
      const before = await context.untilRuns(first.name);
      await context.untilAnswers(before);
      await context.gone(first.name);
      await cloud.createVm(context.request(first.name), options);
      const now = await context.untilRuns(first.name);
      await context.untilAnswers(now);
      await refused("`dial` of the VM before", ["unavailable", "not_found", "conflict"], context.guestAnswers(before));
    },
  },
  {
    name: "vms/tell-what-is-about-to-befall-them",
    why: "the pod of a VM that is about to go is evicted while there is time, and stays when that is called off",
    skip: ({ announce }) => (announce ? undefined : "needs a way to have it announced (`announce`)"),
    async run(context) {
      const { name } = await context.vm();
      const before = await context.untilRuns(name);
      equal("the notice of a VM of which nothing was announced", undefined, before.notice);
      const callOff = await context.announce!(name);
      let vm = before;
      await context.eventually("`getVm` to show the notice", async () => {
        vm = await context.cloud.getVm(name, context.options);
        return vm.notice === undefined ? "there is none" : undefined;
      });
      const { reason, message, at } = vm.notice!;
      if (!/^[A-Z][A-Za-z0-9]*$/.test(reason)) throw new Violation("a reason in CamelCase", `it is "${reason}"`);
      if (message === "") throw new Violation("a message that says more", "it is empty");
      if (at !== undefined && Number.isNaN(Date.parse(at))) throw new Violation("a time", `it is ${at}`);
      equal("the state of a VM that has its notice", "running", vm.state);
      await callOff();
      await context.eventually("the notice to go when it is called off", async () => {
        const { notice } = await context.cloud.getVm(name, context.options);
        return notice === undefined ? undefined : `it is still ${notice.reason}`;
      });
    },
  },
];

/** @internal */
export const VM_CLOUD_CHECKS: readonly Check[] = [...ENTRY_CHECKS, ...VM_CHECKS, ...VOLUME_CHECKS];

/**
 * Runs all checks, one after the other. Nothing that they have made is left, unless the cloud cannot remove it.
 *
 * @throws TypeError when there is no type to make VMs of
 */
export async function checkVmCloud(cloud: VmCloud, options: VmCloudKitOptions = {}): Promise<VmCloudCheckResult[]> {
  const signal = options.signal ?? new AbortController().signal;
  const type = options.type ?? (await cloud.types?.({ signal }))?.[0];
  if (type === undefined) throw new TypeError("say of which type VMs are to be made: the cloud tells none");
  const results: VmCloudCheckResult[] = [];
  for (const { name, why, run, skip } of VM_CLOUD_CHECKS) {
    const context = new Context(cloud, type, { ...options, signal });
    let failure: string | undefined;
    const keep = (thrown: unknown) => {
      signal.throwIfAborted();
      failure ??= `${toError(thrown).message}: ${why}`;
    };
    const skipped = skip?.(context);
    if (skipped === undefined) {
      await run(context).catch(keep);
      await context.clean().catch(keep);
    }
    results.push({ name, ...(failure !== undefined && { failure }), ...(skipped !== undefined && { skipped }) });
  }
  return results;
}
