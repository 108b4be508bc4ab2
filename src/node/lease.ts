/**
 * The node's Lease, by which the control plane tells whether the agent is alive (pkg/kubelet/... nodelease,
 * component-helpers apimachinery/lease).
 */
import { ConfigError } from "../config/load.ts";
import { isNotFound } from "../kube/errors.ts";
import type { Kube } from "../kube/kube.ts";
import type { Lease } from "../kube/wire.ts";
import { mergePatch } from "../kube/patch.ts";
import { leasePath, leasesPath } from "../kube/paths.ts";
import { Backoff } from "../queue/backoff.ts";
import type { Logger } from "../telemetry/logger.ts";
import { rfc3339Micro, type Clock } from "../util/clock.ts";
import type { Random } from "../util/random.ts";

const NAMESPACE = "kube-node-lease";
export const LEASE_DURATION_SECONDS = 40;
const RENEW_MS = 10_000;
/** So that three attempts fit into the lease's duration. */
const TIMEOUT_MS = 10_000;

interface NodeLeaseOptions {
  kube: Kube;
  clock: Clock;
  random: Random;
  logger: Logger;
  nodeName: string;
  /** The Node's UID, once it is known: the lease goes when the Node goes. */
  nodeUid: () => string | undefined;
  onRenewed?: ((seconds: number) => void) | undefined;
  /** Asked before the first renewal: ours must not make another's look alive. @throws ConfigError to end it all */
  admit?: ((lastRenewalMs: number, signal: AbortSignal) => Promise<void>) | undefined;
}

/**
 * The node's heartbeat. It says that the agent is alive and nothing else: it depends on no other part, least of all on
 * the backend, and has a connection of its own. The control plane takes the node for lost when it stops for about 40 s.
 *
 * A renewal counts only when its time is later than the one before (node_lifecycle_controller). So the time never
 * falls, even if this host's clock is set back, or the lease's last holder had a clock that was ahead.
 */
export class NodeLease {
  readonly #options: NodeLeaseOptions;
  #renewedAt: number | undefined;
  #attemptedAt: number | undefined;
  /**
   * The time of the last renewal that is known, whosever it was; undefined before the first. Wall-clock milliseconds.
   */
  #renewTime: number | undefined;

  constructor(options: NodeLeaseOptions) {
    this.#options = options;
  }

  /** Monotonic time of the last renewal, in milliseconds. */
  get renewedAt(): number | undefined {
    return this.#renewedAt;
  }

  /**
   * Monotonic time at which the last attempt ended, however it did, in milliseconds: it shows that the process makes
   * progress.
   */
  get attemptedAt(): number | undefined {
    return this.#attemptedAt;
  }

  /**
   * Renews every 10 s; after a failure in 200 ms, doubling to 7 s. Resolves when `signal` aborts.
   * @throws ConfigError when it was not admitted
   */
  async run(signal: AbortSignal): Promise<void> {
    const { clock, random, logger, onRenewed } = this.#options;
    this.#attemptedAt = clock.monotonic();
    const backoff = new Backoff({ initialMs: 200, maxMs: 7_000, jitter: "none", clock, random });
    while (!signal.aborted) {
      const startedAt = clock.monotonic();
      let delayMs: number;
      try {
        await this.#renew(signal);
        this.#renewedAt = clock.monotonic();
        onRenewed?.((this.#renewedAt - startedAt) / 1000);
        backoff.reset();
        delayMs = RENEW_MS * (1 + 0.04 * random());
      } catch (thrown) {
        if (signal.aborted) return;
        if (thrown instanceof ConfigError) throw thrown;
        delayMs = backoff.next();
        logger.warn({ err: thrown, delayMs }, "The node's lease was not renewed");
      }
      this.#attemptedAt = clock.monotonic();
      try {
        await clock.sleep(delayMs, signal);
      } catch {
        return; // aborted
      }
    }
  }

  async #renew(signal: AbortSignal): Promise<void> {
    const { clock, nodeName: holderIdentity } = this.#options;
    if (this.#renewTime === undefined) {
      // Changes no time and says which it is, with no other right than the renewal itself.
      const lease = await this.#patch({ holderIdentity }, signal);
      const lastRenewal = Date.parse(lease?.spec?.renewTime ?? "") || 0;
      await this.#options.admit?.(lastRenewal, signal);
      this.#renewTime = lastRenewal;
    }
    const renewTime = Math.max(clock.now(), this.#renewTime + 1);
    const spec = {
      holderIdentity,
      leaseDurationSeconds: LEASE_DURATION_SECONDS,
      renewTime: rfc3339Micro(renewTime),
    };
    if ((await this.#patch(spec, signal)) === undefined) await this.#create(spec, signal);
    this.#renewTime = renewTime;
  }

  /** The lease as it is then; undefined when there is none. */
  async #patch(spec: Lease["spec"], signal: AbortSignal): Promise<Lease | undefined> {
    const { kube, nodeName } = this.#options;
    const metadata = this.#owner();
    const patch = mergePatch(leasePath(NAMESPACE, nodeName), { ...(metadata && { metadata }), spec });
    try {
      return await kube.request<Lease>({ ...patch, signal, lane: "lease", timeoutMs: TIMEOUT_MS });
    } catch (thrown) {
      if (isNotFound(thrown)) return undefined;
      throw thrown;
    }
  }

  async #create(spec: Lease["spec"], signal: AbortSignal): Promise<void> {
    const { kube, nodeName } = this.#options;
    await kube.request({
      method: "POST",
      path: leasesPath(NAMESPACE),
      body: {
        apiVersion: "coordination.k8s.io/v1",
        kind: "Lease",
        metadata: { name: nodeName, namespace: NAMESPACE, ...this.#owner() },
        spec,
      },
      signal,
      lane: "lease",
      timeoutMs: TIMEOUT_MS,
    });
  }

  /** Always sent along, so that a lease made before the Node, or for an earlier Node, gets its owner. */
  #owner() {
    const uid = this.#options.nodeUid();
    if (uid === undefined) return undefined;
    return { ownerReferences: [{ apiVersion: "v1", kind: "Node", name: this.#options.nodeName, uid }] };
  }
}
