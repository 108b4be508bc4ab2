/**
 * What plugins of the host do for one machine: before anything of it is made, they give its devices, make its claims
 * ready and mount its volumes; when nothing of it runs any more, they take back what is theirs.
 */
import { doubledMs, isOver, linkAbort, pause, ProviderError, toError } from "../../../src/provider/kit/index.ts";
import { ClaimsNotReady } from "../claims.ts";
import { type CsiGrowth, csiVolumes, VolumesNotReady } from "../csi-volumes.ts";
import type { MachineContext } from "./machine-context.ts";

const RETRY_MS = { first: 1_000, max: 30_000 };
/**
 * For so long a machine waits for drivers to take back the volumes that were its alone. After that it waits for them no
 * more, and they are asked on: nobody else waits for such a volume.
 */
const UNPUBLISH_MS = 120_000;

const NOT_SET = "engine.plugins is not set any more";

/** Tries again, later and later, until it succeeds. False when the backend ends before, or `until` aborts. */
export async function repeated(
  { work, clock, logger }: Pick<MachineContext, "work" | "clock" | "logger">,
  step: () => Promise<void>,
  how: { fault: string; maxMs: number; until?: AbortSignal },
): Promise<boolean> {
  const { fault, maxMs, until } = how;
  using linked = linkAbort(work.closing, ...(until === undefined ? [] : [until]));
  for (let failures = 0; !linked.signal.aborted; failures++) {
    try {
      await step();
      return true;
    } catch (thrown) {
      logger.warn({ err: thrown }, fault);
      await pause(clock, doubledMs({ ...RETRY_MS, max: maxMs }, failures), linked.signal);
    }
  }
  return false;
}

export class PluginWork {
  readonly #context: MachineContext;

  constructor(context: MachineContext) {
    this.#context = context;
  }

  /**
   * Without a place among the starts: a plugin takes the time that it likes. Again for each sandbox, for the host may
   * have started again since.
   * @throws DevicesRefused, and ClaimsNotReady or VolumesNotReady, after which it is to be tried again
   */
  async prepare(signal: AbortSignal): Promise<void> {
    const { claims, csi, state } = this.#context;
    await this.#takeDevices(signal);
    if ((state.spec.resource_claims ?? []).length > 0) {
      if (claims === undefined) throw new ClaimsNotReady(NOT_SET);
      await claims.prepare(state.claims, signal);
      state.devices.show(this.#context);
    }
    if (csiVolumes(state.spec).length > 0) {
      if (csi === undefined) throw new VolumesNotReady(NOT_SET);
      await csi.publish(state.csi, signal);
    }
  }

  async #takeDevices(signal: AbortSignal): Promise<void> {
    const { devices, state, home, work } = this.#context;
    if (devices === undefined || state.devices.areGiven) return;
    await devices.allocate(
      home,
      (held) => {
        // The next backend chooses again.
        work.closing.throwIfAborted();
        state.devices.keep(held, this.#context);
      },
      signal,
    );
  }

  /** What a pod that waits for plugins is told, as a kubelet's; undefined for any other error. */
  waitsFor(error: Error): { reason: string; message: string } | undefined {
    if (error instanceof VolumesNotReady) return { reason: "FailedMount", message: error.message };
    if (!(error instanceof ClaimsNotReady)) return undefined;
    const message = `Failed to prepare dynamic resources: ${error.message}`;
    return { reason: "FailedPrepareDynamicResources", message };
  }

  /** @throws ProviderError as CsiSource has it, conflict when the machine is at its end */
  async grow(growth: CsiGrowth, signal: AbortSignal): Promise<void> {
    const { csi, state, work } = this.#context;
    const { record } = state;
    if (isOver(record.machine) || record.ending !== undefined)
      throw new ProviderError("conflict", `machine ${state.id} is ${record.machine.state}: its volumes do not grow`);
    if (csi === undefined) throw new ProviderError("unavailable", NOT_SET);
    using linked = linkAbort(work.closing, signal);
    await csi.grow(state.csi, growth, linked.signal);
  }

  /**
   * When nothing of the machine runs any more, and before it is said to be over. Claims are waited for without end, for
   * others get what they hold, and so are volumes that outlive it: who is told that it is over may detach them. Volumes
   * that were its alone are not. False when the backend ends before that.
   */
  async giveBack(): Promise<boolean> {
    const { csi, state, work, clock } = this.#context;
    const late = new AbortController();
    const cancel = clock.after(UNPUBLISH_MS, () => late.abort(new Error("its driver has not taken it back in time")));
    const volumes = { fault: "A machine's volumes are not taken back yet", maxMs: RETRY_MS.max, until: late.signal };
    const areBack = await repeated(this.#context, () => this.#giveVolumesBack(late.signal), volumes).finally(cancel);
    if (work.isClosing) return false;
    const leave = async () => csi?.leave(state.csi);
    const left = { fault: "A machine's volumes cannot be left to their drivers yet", maxMs: RETRY_MS.first };
    if (!areBack && !(await repeated(this.#context, leave, left))) return false;
    const outliving = { fault: volumes.fault, maxMs: RETRY_MS.max };
    if (!(await repeated(this.#context, () => this.#giveVolumesBack(work.closing), outliving))) return false;
    state.csi.showNone();
    const claims = { fault: "A machine's claims are not taken back yet", maxMs: RETRY_MS.max };
    return await repeated(this.#context, () => this.#giveClaimsBack(), claims);
  }

  async #giveVolumesBack(late: AbortSignal): Promise<void> {
    const { csi, state, work } = this.#context;
    if (state.csi.published === undefined) return;
    try {
      if (csi === undefined) throw new Error(NOT_SET);
      using linked = linkAbort(work.closing, late);
      await csi.unpublish(state.csi, linked.signal);
    } catch (thrown) {
      this.#tell("FailedUnmount", toError(thrown).message);
      throw thrown;
    }
  }

  async #giveClaimsBack(): Promise<void> {
    const { claims, state, work } = this.#context;
    if (state.claims.prepared === undefined) return;
    try {
      if (claims === undefined) throw new Error(NOT_SET);
      await claims.unprepare(state.claims, work.closing);
    } catch (thrown) {
      const message = `Failed to unprepare dynamic resources: ${toError(thrown).message}`;
      this.#tell("FailedUnprepareDynamicResources", message);
      throw thrown;
    }
  }

  /** Once, while it is the same. */
  #tell(reason: string, message: string): void {
    const { state, work } = this.#context;
    if (work.isClosing || state.record.machine.message === message) return;
    state.notice("Warning", reason, message);
    state.showMessage(message);
  }
}
