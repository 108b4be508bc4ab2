/**
 * The ResourceSlices of the node, by which the scheduler knows of devices (Dynamic Resource Allocation): drivers
 * publish them by themselves. Those of a driver that has gone are removed, so that no pod is given what nobody can make
 * ready (kubelet: cm/dra/plugin, DRAPluginManager).
 */
import { isForbidden, isNotFound } from "../kube/errors.ts";
import type { Kube } from "../kube/kube.ts";
import { resourcePath } from "../kube/paths.ts";
import type { Logger } from "../telemetry/logger.ts";
import type { Clock } from "../util/clock.ts";

interface ResourceSlicesOptions {
  node: string;
  kube: Kube;
  clock: Clock;
  logger: Logger;
}

/** A driver that is updated is away for a moment, and back with all of its slices (kubelet: wipingDelay). */
const GONE_MS = 30_000;
const PATH = resourcePath({ group: "resource.k8s.io", resource: "resourceslices" });
/** Of slices of one node; those of more are seen when these are gone. */
const MOST_LISTED = 500;

export class ResourceSlices {
  readonly #options: ResourceSlicesOptions;
  /** Drivers that were registered when that was told last. */
  #registered: readonly string[] = [];
  /** Since when others are not, on the monotonic clock. */
  readonly #goneSince = new Map<string, number>();
  /** What earlier agents, or earlier backends, have left was looked at. */
  #isListed = false;

  constructor(options: ResourceSlicesOptions) {
    this.#options = options;
  }

  /**
   * Tells of what fails, and tries it again with a later call.
   * @param drivers those that are registered; undefined while that is not known: then nothing is removed
   */
  async clean(drivers: readonly string[] | undefined, signal: AbortSignal): Promise<void> {
    if (drivers === undefined) return;
    const now = this.#options.clock.monotonic();
    try {
      if (!this.#isListed) {
        for (const driver of await this.#listed(signal)) this.#goneSince.set(driver, now);
        this.#isListed = true;
      }
      for (const driver of this.#registered)
        if (!drivers.includes(driver) && !this.#goneSince.has(driver)) this.#goneSince.set(driver, now);
      this.#registered = drivers;
      for (const driver of drivers) this.#goneSince.delete(driver);
      for (const [driver, since] of this.#goneSince) {
        if (now - since < GONE_MS) continue;
        // One that fails is behind the others the next time.
        this.#goneSince.delete(driver);
        try {
          await this.#remove(driver, signal);
        } catch (thrown) {
          this.#goneSince.set(driver, since);
          throw thrown;
        }
      }
    } catch (thrown) {
      if (signal.aborted) return;
      // A cluster without this API; or an account that may not: then slices stay, as on a node whose kubelet is off.
      if (isNotFound(thrown) || isForbidden(thrown)) {
        this.#isListed = true;
        this.#goneSince.clear();
      }
      if (!isNotFound(thrown))
        this.#options.logger.warn({ err: thrown }, "ResourceSlices of drivers that are gone cannot be removed");
    }
  }

  /** The drivers of all slices of this node. */
  async #listed(signal: AbortSignal): Promise<Set<string>> {
    const { kube, node } = this.#options;
    const query = { fieldSelector: `spec.nodeName=${node}`, limit: MOST_LISTED };
    const { items } = await kube.request<{ items?: { spec?: { driver?: string } }[] | null }>({
      method: "GET",
      path: PATH,
      query,
      signal,
    });
    return new Set((items ?? []).flatMap(({ spec }) => spec?.driver ?? []));
  }

  async #remove(driver: string, signal: AbortSignal): Promise<void> {
    const { kube, node, logger } = this.#options;
    const query = { fieldSelector: `spec.nodeName=${node},spec.driver=${driver}` };
    await kube.request({ method: "DELETE", path: PATH, query, metadataOnly: "list", signal });
    logger.info({ driver }, "The ResourceSlices of a driver that has gone are removed");
  }
}
