/** What must hold of volumes of a cloud, whatever its calls, its hosts and the agents do. */
import { BIRTH_LABEL } from "../../../providers/cloud/labels.ts";
import type { MemoryProvider } from "../../../providers/memory/index.ts";
import { isOver } from "../../../src/provider/machine.ts";
import type { VolumeAttachment } from "../../../src/provider/volume.ts";
import type { CloudState } from "../../support/cloud-state.ts";
import { Violation } from "../violation.ts";

/** A machine that may write to the volumes of its VM. */
interface Writer {
  readonly vm: string;
  readonly machine: string;
  readonly node: string | undefined;
}

export class Judge {
  readonly #state: CloudState;
  readonly #guests: ReadonlyMap<string, MemoryProvider>;
  /** By volume: the cloud's name of what was acknowledged. */
  readonly #made = new Map<string, string>();
  /** Volumes of which somebody has asked for the end, and those of which it was acknowledged. */
  readonly #unwanted = new Set<string>();
  readonly #deleted = new Set<string>();

  /** @param guests by the VM's birth */
  constructor(state: CloudState, guests: ReadonlyMap<string, MemoryProvider>) {
    this.#state = state;
    this.#guests = guests;
  }

  /** A guest is told of a machine. @throws Violation */
  async told<T>(vm: string, tell: () => Promise<T>): Promise<T> {
    const answer = await tell();
    for (const content of this.#state.vms.get(vm)?.volumes ?? []) {
      const others = (await this.#writersOf(content)).filter((each) => each.vm !== vm);
      if (others.length > 0) throw new Violation("V1", "two machines write to one volume");
      if (!this.#state.copiesInUse && this.#isBeingCopied(content))
        throw new Violation("V8", "a machine writes to what is being copied");
    }
    return answer;
  }

  /** A volume is about to be taken from a VM. @throws Violation */
  async detach(vm: string, content: string): Promise<void> {
    if ((await this.#writersOf(content)).some((each) => each.vm === vm))
      throw new Violation("V2", "a volume is taken from a VM whose machine writes to it");
  }

  /** A copy of this is ordered. @throws Violation */
  async copied(content: string): Promise<void> {
    if (!this.#state.copiesInUse && (await this.#writersOf(content)).length > 0)
      throw new Violation("V8", "what a machine writes to is copied");
  }

  /** A create of this volume was acknowledged. @throws Violation */
  made(id: string, content: string): void {
    if (this.#deleted.has(id)) throw new Violation("V6", "a volume that was deleted comes back");
    this.#made.set(id, content);
  }

  unwanted(id: string): void {
    this.#unwanted.add(id);
  }

  /** Its deletion was acknowledged. @throws Violation */
  deleted(id: string): void {
    this.#deleted.add(id);
    if (this.#state.volumes.has(this.#made.get(id) ?? ""))
      throw new Violation("V6", "a volume that counts as deleted is there");
  }

  /** @throws Violation */
  areThere(): void {
    for (const [id, content] of this.#made)
      if (!this.#unwanted.has(id) && !this.#state.volumes.has(content))
        throw new Violation("V4", "a volume that was acknowledged has vanished");
  }

  /** A node has given a volume back. @throws Violation */
  async released(id: string, node: string): Promise<void> {
    if ((await this.writers(id)).some((writer) => writer.node === node))
      throw new Violation("V5", "a volume counts as given back while a machine of its node writes to it");
  }

  /** Those that write to a volume now. */
  async writers(id: string): Promise<Writer[]> {
    return await this.#writersOf(this.#made.get(id));
  }

  /** It was told who has a volume. @param before who wrote to it when that was asked @throws Violation */
  async toldOf(id: string, before: readonly Writer[], attachments: readonly VolumeAttachment[]): Promise<void> {
    const now = await this.writers(id);
    const isUntold = ({ machine, vm }: Writer) =>
      now.some((each) => each.vm === vm) && !attachments.some((each) => each.machine === machine);
    if (before.some(isUntold)) throw new Violation("V5", "a volume counts as free while a machine writes to it");
  }

  /** All was taken back. @throws Violation */
  nothingLeft(): void {
    const { vms, volumes } = this.#state;
    if (vms.size > 0) throw new Violation("V7", `a VM is left`);
    if (volumes.size > 0) throw new Violation("V7", `a volume of the cloud is left`);
  }

  #isBeingCopied(content: string): boolean {
    return [...this.#state.volumes.values()].some(
      ({ state, request }) => state === "making" && request.source?.name === content,
    );
  }

  async #writersOf(content: string | undefined): Promise<Writer[]> {
    const { signal } = new AbortController();
    const writers: Writer[] = [];
    if (content === undefined) return writers;
    for (const [vm, { request, state, volumes }] of this.#state.vms) {
      // One that is told to go may still do what it did.
      if (!volumes.includes(content) || state === "booting" || state === "stopped") continue;
      const guest = this.#guests.get(request.labels[BIRTH_LABEL] ?? "");
      const { items = [] } = (await guest?.getPods({ labels: {}, signal })) ?? {};
      for (const machine of items)
        if (!isOver(machine)) writers.push({ vm, machine: machine.id, node: machine.labels["node"] });
    }
    return writers;
  }
}
