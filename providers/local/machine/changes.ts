/** Changes to a machine that goes on: credentials, resources, images, ephemeral containers, files. */
import { isDeepStrictEqual } from "node:util";
import { type ContainerSpec, isOver, type MachinePatch, ProviderError } from "../../../src/provider/kit/index.ts";
import type { Instances } from "./instances.ts";
import type { MachineContext } from "./machine-context.ts";
import type { SandboxKeeper } from "./sandbox-keeper.ts";
import { findFiles } from "./spec-changes.ts";

export class MachineChanges {
  readonly #context: MachineContext;
  readonly #instances: Instances;
  readonly #keeper: SandboxKeeper;
  /** Fulfilled when the patch before has been applied, or has failed. */
  #turn: Promise<void> = Promise.resolve();

  constructor(context: MachineContext, instances: Instances, keeper: SandboxKeeper) {
    this.#context = context;
    this.#instances = instances;
    this.#keeper = keeper;
  }

  /**
   * One after the other: a caller that gives up before the engine does asks again meanwhile.
   * @throws ProviderError conflict when the machine is at its end, unavailable when it is out of sight, or what the
   *   engine throws
   */
  async apply(patch: MachinePatch): Promise<void> {
    const turn = this.#turn.then(() => this.#apply(patch));
    this.#turn = turn.catch(() => {});
    await turn;
  }

  /**
   * Part by part, each of them written down and shown when it is done: when one fails, those before it stand. What is
   * no part of this machine fails before anything is done.
   */
  async #apply(patch: MachinePatch): Promise<void> {
    const { state } = this.#context;
    this.#requireChangeable();
    for (const { container } of patch.resources ?? []) state.findSpec(container);
    for (const { name } of patch.containers ?? []) state.findSpec(name);
    for (const { volume } of patch.files ?? []) findFiles(state.spec, volume);
    if (patch.registry_auth !== undefined) state.replaceCredentials(patch.registry_auth, patch.registry_auth_version);
    try {
      await this.#applyParts(patch);
    } finally {
      // It may have come to its end meanwhile, and its folder with it.
      if (!isOver(state.record.machine)) state.commit();
    }
    this.#requireChangeable();
    this.#context.replan();
  }

  async #applyParts(patch: MachinePatch): Promise<void> {
    const { state } = this.#context;
    for (const change of patch.resources ?? []) await this.#resize(change);
    for (const { name, image } of patch.containers ?? []) this.#changeImage(name, image);
    for (const spec of patch.ephemeral_containers ?? []) state.addEphemeral(spec);
    for (const update of patch.files ?? []) {
      const volume = state.changeFiles(update);
      const sandbox = this.#context.sandbox();
      if (sandbox !== undefined) await this.#keeper.applyFiles(sandbox, volume);
      this.#requireChangeable();
    }
  }

  /** @throws ProviderError conflict when the machine is at its end, unavailable when it is out of sight */
  #requireChangeable(): void {
    const { id, record } = this.#context.state;
    if (isOver(record.machine) || record.ending !== undefined)
      throw new ProviderError("conflict", `machine ${id} is ${record.machine.state}: it cannot be changed any more`);
    if (!this.#context.isReady())
      throw new ProviderError("unavailable", `machine ${id} cannot be reached just now: it cannot be changed yet`);
  }

  #changeImage(name: string, image: string): void {
    const { state } = this.#context;
    if (state.findSpec(name).image === image) return;
    state.changeContainer(name, { image });
    const container = state.container(name);
    container.forgetBackoff();
    const instance = this.#instances.get(name);
    if (instance !== undefined) instance.stopToStartAgain(definitionChanged(name));
    else if (container.own.phase === "exited" && container.own.kind === "main" && container.mayRestart)
      container.showRestart();
  }

  async #resize({
    container: name,
    resources,
    restart,
  }: NonNullable<MachinePatch["resources"]>[number]): Promise<void> {
    const { state, engine } = this.#context;
    const before = state.findSpec(name).resources;
    const instance = this.#instances.get(name);
    const restarts = restart === true && instance !== undefined;
    if (restarts && isDeepStrictEqual(resources, before)) return;
    const sandbox = this.#context.sandbox();
    if (instance !== undefined && sandbox !== undefined) {
      if (sandbox.resize === undefined)
        throw new ProviderError("unsupported", `engine ${engine.name} cannot resize`, { field: "resources" });
      // A change that does not fit is refused before the container is stopped; only a restart can make room for less
      // memory.
      if (!restarts || memoryLimit(resources) >= memoryLimit(before)) await sandbox.resize(instance.ref, resources);
    }
    this.#requireChangeable();
    state.changeContainer(name, { resources });
    if (!restarts) state.container(name).showResources(resources);
    // It may have ended by itself while the engine was asked, and another may run.
    else this.#instances.get(name)?.stopToStartAgain(`Container ${name} resize requires restart`);
  }
}

export const definitionChanged = (name: string) => `Container ${name} definition changed, will be restarted`;

const memoryLimit = (resources: ContainerSpec["resources"]) => resources?.limits?.memory_bytes ?? Infinity;
