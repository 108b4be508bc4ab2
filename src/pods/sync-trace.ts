/**
 * One round of work on a pod as a span, by kubelet's names and attributes, with a span in it for each step. A round
 * that finds nothing to do has none.
 */
import { isDeleting } from "../kube/pod.ts";
import type { Pod } from "../kube/wire.ts";
import type { Span, Tracing } from "../telemetry/tracing.ts";
import type { Action } from "./decision.ts";
import type { Outcome } from "./reconciler-options.ts";

/** What the trace of a round is told of. */
interface Round {
  uid: string;
  /** As it is, or was last seen. */
  pod: Pod | undefined;
  nodeName: string;
}

export class SyncTrace implements Disposable {
  readonly #tracing: Tracing;
  #round: Span | undefined;

  constructor(tracing: Tracing) {
    this.#tracing = tracing;
  }

  async step(
    round: Round,
    action: Action["do"],
    work: () => Promise<Outcome | undefined>,
  ): Promise<Outcome | undefined> {
    const tracing = this.#tracing;
    this.#round ??= tracing.begin(nameOf(action, round.pod), { attributes: attributesOf(round, action) });
    const span = tracing.begin(action, { parent: this.#round.context });
    try {
      const outcome = await tracing.within(span, work);
      if (outcome?.kind === "retry") {
        const { error } = outcome;
        const type = "code" in error && typeof error.code === "string" ? error.code : error.name;
        span.fail(type);
        this.#round.fail(type);
      }
      return outcome;
    } finally {
      span.end();
    }
  }

  [Symbol.dispose](): void {
    this.#round?.end();
  }
}

/** kubelet: syncPod, syncTerminatingPod and syncTerminatedPod of its pod workers. */
function nameOf(action: Action["do"], pod: Pod | undefined): string {
  if (action === "finalize") return "syncTerminatedPod";
  const isEnding = action === "stop" || action === "bury" || action === "reap";
  return isEnding || (pod !== undefined && isDeleting(pod)) ? "syncTerminatingPod" : "syncPod";
}

function attributesOf({ uid, pod, nodeName }: Round, action: Action["do"]) {
  const { namespace, name } = pod?.metadata ?? {};
  return {
    "k8s.pod.uid": uid,
    "k8s.pod": pod && `${namespace}/${name}`,
    "k8s.pod.name": name,
    "k8s.pod.update_type": action === "create" ? "create" : "sync",
    "k8s.namespace.name": namespace,
    "k8s.node.name": nodeName,
  };
}
