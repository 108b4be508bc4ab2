/**
 * The steps of one machine as spans: parts of the request that asked for them last, for the ten minutes after it. What
 * comes later by itself (a restart, an end) is a trace of its own, linked to that. It is not written down: after a
 * restart of the backend nobody has asked.
 */
import {
  type Attributes,
  type Clock,
  LABEL_NAMESPACE,
  LABEL_NODE,
  LABEL_POD,
  LABEL_UID,
  type MachineSpec,
  type TraceContext,
  traced,
  tracedStep,
  type Tracing,
} from "../../../src/provider/kit/index.ts";

/** As long as a kubelet's longest wait for an image, and some. */
const ASKED_MS = 10 * 60_000;

interface MachineTraceOptions {
  /** Absent: nothing is traced. */
  tracing: Tracing | undefined;
  clock: Clock;
  id: string;
  labels: MachineSpec["labels"];
}

export class MachineTrace {
  readonly #options: MachineTraceOptions;
  #asked: { by: TraceContext; at: number } | undefined;

  constructor(options: MachineTraceOptions) {
    this.#options = options;
    // Where somebody asks for it, it is made in the course of that.
    this.asked();
  }

  /** Somebody wants something of the machine: what it does from now on is part of that. */
  asked(): void {
    const { tracing, clock } = this.#options;
    const by = tracing?.active();
    if (by !== undefined) this.#asked = { by, at: clock.monotonic() };
  }

  /** Does a part of a step. */
  async part<T>(name: string, attributes: Attributes, work: () => Promise<T>): Promise<T> {
    const { tracing } = this.#options;
    return await (tracing === undefined ? work() : tracedStep(tracing, name, { attributes }, work));
  }

  /** Does the work, as a span where there are any. */
  async step<T>(name: string, attributes: Attributes, work: () => Promise<T>): Promise<T> {
    const { tracing, clock, id, labels } = this.#options;
    if (tracing === undefined) return await work();
    const { by, at = 0 } = this.#asked ?? {};
    const place = clock.monotonic() - at < ASKED_MS ? { parent: by } : { link: by };
    const about = {
      "vmlet.machine.id": id,
      "k8s.pod.uid": labels[LABEL_UID],
      "k8s.pod.name": labels[LABEL_POD],
      "k8s.namespace.name": labels[LABEL_NAMESPACE],
      "k8s.node.name": labels[LABEL_NODE],
    };
    return await traced(tracing, name, { ...place, attributes: { ...about, ...attributes } }, work);
  }
}
