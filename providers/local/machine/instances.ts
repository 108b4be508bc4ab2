/** The instances of a machine's containers that run, at most one of each. */
import type { ContainerSpec } from "../../../src/provider/kit/index.ts";
import type { ContainerRef } from "../engine.ts";
import { ContainerInstance } from "./container-instance.ts";
import type { MachineContext } from "./machine-context.ts";

export class Instances {
  readonly #context: MachineContext;
  readonly #byName = new Map<string, ContainerInstance>();

  constructor(context: MachineContext) {
    this.#context = context;
  }

  /** An instance leaves by itself when it is dropped. */
  add(spec: ContainerSpec, ref: ContainerRef): ContainerInstance {
    const instance = new ContainerInstance(this.#context, spec, ref, () => this.#byName.delete(spec.name));
    this.#byName.set(spec.name, instance);
    return instance;
  }

  get(name: string): ContainerInstance | undefined {
    return this.#byName.get(name);
  }

  /** None runs. */
  get isEmpty(): boolean {
    return this.#byName.size === 0;
  }

  refs(): ContainerRef[] {
    return [...this.#byName.values()].map(({ ref }) => ref);
  }

  /** What they ran in is gone. */
  dropAll(): void {
    for (const instance of [...this.#byName.values()]) instance.drop();
  }

  /** The backend ends: they live on. */
  releaseAll(reason: unknown): void {
    for (const instance of this.#byName.values()) instance.release(reason);
  }
}
