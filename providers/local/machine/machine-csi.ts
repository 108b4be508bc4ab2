/** The volumes that CSI drivers were asked to mount for one machine, as its record has them. */
import { join } from "node:path";
import type { MachineSpec } from "../../../src/provider/kit/index.ts";
import type { CsiHolder, PublishedVolumes } from "../csi-volumes.ts";
import type { MachineRecord } from "./record.ts";

interface State {
  readonly id: string;
  readonly spec: MachineSpec;
  write(): void;
}

export class MachineCsi implements CsiHolder {
  readonly #state: State;
  readonly #record: MachineRecord;

  constructor(state: State, record: MachineRecord) {
    this.#state = state;
    this.#record = record;
  }

  get id(): string {
    return this.#state.id;
  }

  get spec(): MachineSpec {
    return this.#state.spec;
  }

  get published(): PublishedVolumes | undefined {
    return this.#record.published;
  }

  /** Where the volume of this name is mounted; undefined: nobody was asked for it. */
  pathOf(name: string): string | undefined {
    const volume = this.#record.published?.[name];
    return volume?.root === undefined ? undefined : join(volume.root, volume.path);
  }

  keep(volumes: PublishedVolumes | undefined): void {
    const before = this.#record.published;
    this.#set(volumes);
    try {
      this.#state.write();
    } catch (thrown) {
      this.#set(before);
      throw thrown;
    }
  }

  showSize({ driver, volume }: { driver: string; volume: string }, sizeBytes: number): void {
    const { machine } = this.#record;
    machine.csi_volumes = (machine.csi_volumes ?? []).map((each) =>
      each.driver === driver && each.volume === volume ? { ...each, size_bytes: sizeBytes } : each,
    );
    this.#state.write();
  }

  /** Its drivers have taken all back. Not written: that it is over is what is told next. */
  showNone(): void {
    delete this.#record.machine.csi_volumes;
  }

  #set(volumes: PublishedVolumes | undefined): void {
    if (volumes === undefined) delete this.#record.published;
    else this.#record.published = volumes;
  }
}
