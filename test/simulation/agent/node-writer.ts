/**
 * One process's writes of its Node's status, as far as they are about volumes: in the order of `NodeController`, which does the
 * same for all that a Node says.
 */
import type { Kube } from "../../../src/kube/kube.ts";
import { strategicPatch } from "../../../src/kube/patch.ts";
import { nodePath } from "../../../src/kube/paths.ts";
import type { Node } from "../../../src/kube/wire.ts";
import { statusPatch } from "../../../src/node/node-status.ts";
import type { VolumesInUse } from "../../../src/node/volumes-in-use.ts";
import { Backoff } from "../../../src/queue/backoff.ts";
import type { Clock } from "../../../src/util/clock.ts";
import { Pulse } from "../../../src/util/pulse.ts";
import type { Random } from "../../../src/util/random.ts";
import { NODE } from "../world/names.ts";

const EVERY_MS = 10_000;

interface NodeStatusWriterOptions {
  kube: Kube;
  volumes: Pick<VolumesInUse, "wanted" | "isNews" | "told">;
  /** The Node as this process's watch has it; undefined before. */
  cached: () => Node | undefined;
  clock: Clock;
  random: Random;
}

export class NodeStatusWriter {
  readonly #options: NodeStatusWriterOptions;
  readonly #wake = new Pulse();
  #readLive = false;
  #isDue = false;

  constructor(options: NodeStatusWriterOptions) {
    this.#options = options;
  }

  refresh(): void {
    this.#isDue = true;
    this.#wake.fire();
  }

  async run(signal: AbortSignal): Promise<void> {
    const { clock, random } = this.#options;
    const backoff = new Backoff({ initialMs: 100, maxMs: 7_000, jitter: "none", clock, random });
    while (!signal.aborted) {
      let waitMs = EVERY_MS;
      try {
        await this.#sync(signal);
        this.#readLive = false;
        backoff.reset();
      } catch {
        this.#readLive = true;
        waitMs = backoff.next();
      }
      if (!this.#isDue) await this.#wake.waitAtMost(clock, waitMs, signal);
      this.#isDue = false;
    }
  }

  async #sync(signal: AbortSignal): Promise<void> {
    const { kube, volumes, cached } = this.#options;
    const known = this.#readLive ? undefined : cached();
    const current = known ?? (await kube.request<Node>({ method: "GET", path: nodePath(NODE), signal }));
    const volumesInUse = volumes.wanted(current);
    const status = { ...current.status, volumesInUse };
    const { patch, changed } = statusPatch(current, {
      status,
      mustTellVolumes: volumes.isNews(volumesInUse),
      labels: {},
      annotations: {},
    });
    if (changed) await kube.request({ ...strategicPatch(nodePath(NODE, "status"), patch), signal });
    volumes.told(volumesInUse);
  }
}
