/** Changes to a machine that goes on: credentials, resources, images, ephemeral containers, files. */
import { isDeepStrictEqual } from "node:util";
import {
  containersOf,
  type ContainerSpec,
  isOver,
  type MachinePatch,
  ProviderError,
} from "../../../src/provider/kit/index.ts";
import type { Instances } from "./instances.ts";
import type { MachineContext } from "./machine-context.ts";
import type { SandboxKeeper } from "./sandbox-keeper.ts";
import { findFiles, withoutSummedLimits } from "./spec-changes.ts";

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
  async apply({ csi_volumes: growing = [], ...patch }: MachinePatch, signal: AbortSignal): Promise<void> {
    this.#context.trace.asked();
    if (growing.length === 0 || Object.keys(patch).length > 0) {
      const turn = this.#turn.then(() => this.#apply(patch));
      this.#turn = turn.catch(() => {});
      await turn;
    }
    // In no other change's turn: a driver takes the time that it likes.
    for (const each of growing) await this.#keeper.growVolume(each, signal);
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
    await this.#resizeAll(patch);
    for (const { name, image } of patch.containers ?? []) this.#changeImage(name, image);
    for (const spec of patch.ephemeral_containers ?? []) state.addEphemeral(spec);
    for (const update of patch.files ?? []) {
      const volume = state.changeFiles(update);
      const sandbox = this.#context.sandbox();
      if (sandbox !== undefined) await this.#keeper.applyFiles(sandbox, volume);
      this.#requireChangeable();
    }
    for (const { name } of patch.host_volumes ?? []) await this.#growHostVolume(name);
  }

  /** @throws ProviderError conflict when the machine is at its end, unavailable when it is out of sight */
  #requireChangeable(): void {
    const { id, record } = this.#context.state;
    if (isOver(record.machine) || record.ending !== undefined)
      throw new ProviderError("conflict", `machine ${id} is ${record.machine.state}: it cannot be changed any more`);
    if (!this.#context.isReady())
      throw new ProviderError("unavailable", `machine ${id} cannot be reached just now: it cannot be changed yet`);
  }

  async #growHostVolume(name: string): Promise<void> {
    const sandbox = this.#context.sandbox();
    if (sandbox?.growHostVolume === undefined)
      throw new ProviderError("unavailable", `machine ${this.#context.state.id} has no volume ${name} yet`);
    await sandbox.growHostVolume(name);
    this.#requireChangeable();
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

  /**
   * A former backend has ended before the machine had the resources that were written down for it: that is done now.
   * What cannot be done any more is taken back.
   */
  async settle(): Promise<void> {
    const { state } = this.#context;
    const { resources = {} } = state.spec;
    const { resources: shown } = state.record.machine;
    if (isDeepStrictEqual(resources, shown)) return;
    // A machine of a release that could not change it shows nothing yet.
    if (shown !== undefined && this.#context.sandbox()?.resizeMachine !== undefined)
      return await this.apply({ machine_resources: resources }, this.#context.work.closing);
    state.showOwnResources(resources);
    state.commit();
  }

  async #resizeAll({ resources: changes = [], machine_resources: asked }: MachinePatch): Promise<void> {
    const { state, engine } = this.#context;
    const sandbox = this.#context.sandbox();
    if (asked === undefined && (changes.length === 0 || sandbox?.resizeMachine === undefined)) {
      for (const change of changes) await this.#resize(change);
      return;
    }
    if (asked !== undefined && this.#keeper.isOpening)
      throw new ProviderError("unavailable", `machine ${state.id} is being made: its own resources cannot change yet`);
    const from = state.record.machine.resources;
    const to = asked ?? withoutSummedLimits(state.spec);
    const hasChanged = asked !== undefined && !isDeepStrictEqual(from, asked);
    // Before anything is done: a backend that ends in the middle leaves word of it for the next one.
    if (asked !== undefined) state.adopt({ ...state.spec, resources: asked });
    const containers = async () => {
      const named = new Set(changes.map(({ container }) => container));
      for (const change of changes) await this.#resize(change, hasChanged);
      // Their limit is the machine's.
      for (const { spec, kind } of containersOf(state.spec))
        if (kind !== "ephemeral" && !named.has(spec.name) && isBoundByMachine(spec.resources)) {
          const instance = this.#instances.get(spec.name);
          if (instance !== undefined) await sandbox?.resize?.(instance.ref, spec.resources ?? {});
        }
    };
    try {
      if (sandbox === undefined) await containers();
      else if (sandbox.resizeMachine !== undefined) await sandbox.resizeMachine({ from, to }, containers);
      else
        throw new ProviderError("unsupported", `engine ${engine.name} cannot resize a machine`, { field: "resources" });
    } catch (thrown) {
      if (asked !== undefined) state.adopt({ ...state.spec, resources: from ?? {} });
      throw thrown;
    }
    if (asked === undefined) return;
    this.#requireChangeable();
    state.showOwnResources(asked);
  }

  /** @param isMachineNew the machine's own have changed, and with them the limits of those that have none */
  async #resize(
    { container: name, resources, restart }: NonNullable<MachinePatch["resources"]>[number],
    isMachineNew = false,
  ): Promise<void> {
    const { state, engine } = this.#context;
    const before = state.findSpec(name).resources;
    const instance = this.#instances.get(name);
    const restarts = restart === true && instance !== undefined;
    const isNew = !isDeepStrictEqual(resources, before) || (isMachineNew && isBoundByMachine(resources));
    if (restarts && !isNew) return;
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

/** It has no limit of its own for one or the other. */
const isBoundByMachine = (resources: ContainerSpec["resources"]) =>
  !resources?.limits?.cpu_millis || !resources.limits.memory_bytes;

const memoryLimit = (resources: ContainerSpec["resources"]) => resources?.limits?.memory_bytes ?? Infinity;
