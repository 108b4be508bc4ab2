/** VMs that wait for machines: started ahead, connected, and replaced in the background as they are taken. */
import { type Logger, pause } from "../../../../src/provider/kit/index.ts";
import type { VmSize } from "./qemu.ts";
import { destroyVm, Vm, type VmContext } from "./vm.ts";

interface PoolOptions {
  /** How many wait. */
  machines: number;
  size: VmSize;
}

/** After a VM could not be started. */
const RETRY_MS = 10_000;
/** A machine may get a larger VM than it asked for, up to this many times its memory. */
const MAX_EXCESS = 2;
/** Behind what machines wait for. */
const PRIORITY = -1;

/**
 * What the log says of each VM that is ready.
 * @internal
 */
export const WAITING = "A VM waits in the warm pool";

export class VmPool {
  readonly #context: VmContext;
  readonly #options: PoolOptions;
  readonly #logger: Logger;
  readonly #idle: Vm[] = [];
  readonly #closing = new AbortController();
  #starting = 0;
  readonly #work = new Set<Promise<void>>();

  constructor(context: VmContext, options: PoolOptions, logger: Logger) {
    this.#context = context;
    this.#options = options;
    this.#logger = logger;
  }

  /** Number of VMs that a machine could have at once. */
  get ready(): number {
    return this.#idle.length;
  }

  /** A VM for a machine of this size: the caller's from now on. Undefined when none fits. */
  take(size: VmSize): Vm | undefined {
    const { memoryMib, cpus } = this.#options.size;
    if (cpus !== size.cpus || memoryMib < size.memoryMib || memoryMib > size.memoryMib * MAX_EXCESS) return undefined;
    for (;;) {
      const vm = this.#idle.shift();
      if (vm === undefined) break;
      if (vm.alive) {
        this.fill();
        return vm;
      }
      this.#background(destroyVm(this.#context, vm.key));
    }
    this.fill();
    return undefined;
  }

  /** Starts what is missing; returns at once. */
  fill(): void {
    while (!this.#closing.signal.aborted && this.#idle.length + this.#starting < this.#options.machines) {
      this.#starting++;
      this.#background(this.#add());
    }
  }

  async close(): Promise<void> {
    this.#closing.abort(new Error("the backend is stopping"));
    await Promise.allSettled(this.#work);
    for (const vm of this.#idle.splice(0)) {
      vm.control.close();
      await destroyVm(this.#context, vm.key);
    }
  }

  async #add(): Promise<void> {
    const { boots, bootTimeoutMs, clock, warming } = this.#context;
    const key = Vm.newKey();
    try {
      const signal = AbortSignal.any([this.#closing.signal, AbortSignal.timeout(bootTimeoutMs)]);
      const vm = await boots.add(
        async () => {
          signal.throwIfAborted();
          const attachment = await Vm.attach(this.#context, key, signal);
          const started = await Vm.start(this.#context, key, this.#options.size, signal, { attachment });
          // What a first container would have to load and, in an emulated processor, to translate.
          if (warming !== undefined) await started.control.run([warming.command], signal);
          return started;
        },
        { priority: PRIORITY },
      );
      this.#idle.push(vm);
      this.#starting--;
      this.#logger.debug({ waiting: this.#idle.length }, WAITING);
    } catch (thrown) {
      await destroyVm(this.#context, key).catch((thrown: unknown) =>
        this.#logger.warn({ err: thrown }, "What is left of a VM could not be removed"),
      );
      if (!this.#closing.signal.aborted) {
        this.#logger.warn({ err: thrown }, "A VM for the warm pool could not be started");
        await pause(clock, RETRY_MS, this.#closing.signal);
      }
      this.#starting--;
      this.fill();
    }
  }

  #background(work: Promise<void>): void {
    const done = work
      .catch((thrown: unknown) => this.#logger.warn({ err: thrown }, "The warm pool met an error"))
      .finally(() => this.#work.delete(done));
    this.#work.add(done);
  }
}
