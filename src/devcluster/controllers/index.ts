/** All controllers of the cluster but the binder and those of namespaces, which no cluster can do without. */
import type { Random } from "../../util/random.ts";
import type { Controller, ControllerOptions } from "./controller.ts";
import { HorizontalPodAutoscalers, type ReadUsage } from "./autoscalers.ts";
import { CronJobs } from "./cron-jobs.ts";
import { DaemonSets } from "./daemon-sets.ts";
import { Deployments } from "./deployments.ts";
import { DisruptionBudgets } from "./disruption.ts";
import { ServiceEndpoints } from "./endpoints.ts";
import { GarbageCollector } from "./garbage-collector.ts";
import { Jobs } from "./jobs.ts";
import { NodeLifecycle } from "./node-lifecycle.ts";
import { ObjectIndex } from "./object-index.ts";
import { PodGarbageCollector } from "./pod-gc.ts";
import { ReplicaSets } from "./replica-sets.ts";
import { type PublishNames, ServiceNames } from "./service-names.ts";
import { ServiceProxy, type ServiceProxyOptions } from "./service-proxy.ts";
import { StatefulSets } from "./stateful-sets.ts";
import { TaintEviction } from "./taint-eviction.ts";
import { PersistentVolumes, type VolumeDriver } from "./volumes.ts";

export class ControllerManager {
  readonly #index: ObjectIndex;
  readonly #controllers: readonly Controller[];

  /**
   * @param options.usage what pods use, for those who scale by it
   * @param options.serviceProxy absent: nothing answers on the addresses of Services
   * @param options.publishNames told of their names, and of each change of them
   * @param options.volumeDriver absent: nobody makes volumes for claims
   */
  constructor(
    options: Omit<ControllerOptions, "index"> & {
      usage: ReadUsage;
      serviceProxy?: (ServiceProxyOptions & { random: Random }) | undefined;
      publishNames?: PublishNames | undefined;
      volumeDriver?: VolumeDriver | undefined;
    },
  ) {
    this.#index = new ObjectIndex(options.objects.storage);
    const all = { ...options, index: this.#index };
    this.#controllers = [
      new GarbageCollector(all),
      new ReplicaSets(all),
      new Deployments(all),
      new StatefulSets(all),
      new DaemonSets(all),
      new Jobs(all),
      new CronJobs(all),
      new ServiceEndpoints(all),
      new DisruptionBudgets(all),
      new HorizontalPodAutoscalers(all),
      new NodeLifecycle(all),
      new TaintEviction(all),
      new PodGarbageCollector(all),
      new PersistentVolumes({ ...all, driver: options.volumeDriver }),
      ...(options.serviceProxy ? [new ServiceProxy({ ...all, ...options.serviceProxy })] : []),
      ...(options.publishNames ? [new ServiceNames({ ...all, publish: options.publishNames })] : []),
    ];
  }

  start(): void {
    // First of all: the others ask it.
    this.#index.start();
    for (const controller of this.#controllers) controller.start();
  }

  stop(): void {
    for (const controller of this.#controllers) controller.stop();
    this.#index.stop();
  }
}
