/** What a check of pods works with: pods of its own on the node under test, ways to wait, and what the backend has. */
import { containerStatusesOf } from "../../kube/pod.ts";
import { isNotFound, KubeApiError } from "../../kube/errors.ts";
import { eventsPath, podPath, resourcePath } from "../../kube/paths.ts";
import type { KubeTransport } from "../../kube/transport.ts";
import type { Container, ContainerStatus, Pod } from "../../kube/wire.ts";
import { Violation } from "../../provider/kit/context.ts";
import type { Machine } from "../../provider/machine.ts";
import { LABEL_UID } from "../../provider/owner.ts";
import type { Provider, ProviderInfo } from "../../provider/provider.ts";
import { isSubset } from "../../resources/labels.ts";
import { openExec } from "../../ui/terminal.ts";
import { onAbort } from "../../util/abort.ts";
import type { Clock } from "../../util/clock.ts";

/** A program that ends when it is asked to. */
export const POLITE = "trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done";
/** One that cannot be asked. */
export const STUBBORN = "trap '' TERM; while :; do sleep 1; done";

const NAMESPACE = "default";
const POLL_MS = 150;
const CLEAN_UP_MS = 30_000;
/** Of a pod whose wait was in vain. */
const TOLD_EVENTS = 3;

type PodSpec = Partial<NonNullable<Pod["spec"]>>;

/** A container that runs a script in a shell. */
interface ScriptContainer extends Partial<Container> {
  name: string;
  script: string;
}

interface Event {
  involvedObject?: { uid?: string };
  type?: string;
  reason?: string;
  message?: string;
}

interface PodContextOptions {
  kube: KubeTransport;
  provider: Provider;
  info: ProviderInfo;
  /** Of the machines of the node under test. */
  ownerLabels: Record<string, string>;
  nodeName: string;
  /** Names of the check's objects begin with it. */
  prefix: string;
  image: string;
  patienceMs: number;
  clock: Clock;
  signal: AbortSignal;
  /** Resolves when the agent, or the backend, was ended and started again. */
  restarted?: (() => Promise<void>) | undefined;
}

export class PodContext {
  readonly clock: Clock;
  readonly #options: PodContextOptions;
  readonly #signal: AbortSignal;
  readonly #pods: Pod[] = [];
  readonly #configMaps: string[] = [];
  #script: string | undefined;

  constructor(options: PodContextOptions) {
    this.#options = options;
    this.clock = options.clock;
    this.#signal = options.signal;
  }

  /** The script of the last container that was asked for. */
  get script(): string | undefined {
    return this.#script;
  }

  get pods(): readonly Pod[] {
    return this.#pods;
  }

  get nodeName(): string {
    return this.#options.nodeName;
  }

  container({ script, ...rest }: ScriptContainer): Container {
    this.#script = script;
    return { image: this.#options.image, command: ["sh", "-c", script], ...rest };
  }

  /** A pod whose one container `main` runs the script. */
  run(name: string, script: string, spec: PodSpec = {}): Promise<Pod> {
    return this.create(name, { containers: [this.container({ name: "main", script })], ...spec });
  }

  async create(name: string, spec: PodSpec): Promise<Pod> {
    const pod = await this.#options.kube.request<Pod>({
      method: "POST",
      path: resourcePath({ resource: "pods", namespace: NAMESPACE }),
      body: {
        apiVersion: "v1",
        kind: "Pod",
        metadata: { name: `${this.#options.prefix}-${name}` },
        spec: {
          restartPolicy: "Never",
          terminationGracePeriodSeconds: 5,
          // Neither a volume of files nor an own resolv.conf is what every backend has.
          automountServiceAccountToken: false,
          dnsPolicy: "Default",
          ...spec,
        },
      },
      signal: this.#signal,
    });
    this.#pods.push(pod);
    return pod;
  }

  /** @returns its name */
  async configMap(name: string, data: Record<string, string>): Promise<string> {
    const fullName = `${this.#options.prefix}-${name}`;
    await this.#options.kube.request({
      method: "POST",
      path: resourcePath({ resource: "configmaps", namespace: NAMESPACE }),
      body: { apiVersion: "v1", kind: "ConfigMap", metadata: { name: fullName }, data },
      signal: this.#signal,
    });
    this.#configMaps.push(fullName);
    return fullName;
  }

  async get(pod: Pod): Promise<Pod> {
    return await this.#options.kube.request<Pod>({ method: "GET", path: pathOf(pod), signal: this.#signal });
  }

  /** @throws Violation that has the pod's status and newest events when the wait is in vain */
  async until(pod: Pod, expected: string, holds: (pod: Pod) => boolean): Promise<Pod> {
    let last = pod;
    const arrived = await this.#poll(this.#options.patienceMs, async () => {
      last = await this.get(pod);
      return holds(last);
    });
    if (arrived) return last;
    throw new Violation(
      `pod ${pod.metadata!.name} to ${expected} within ${this.#options.patienceMs / 1000} s`,
      `it is ${describe(last)}${await this.#eventsOf(pod)}`,
    );
  }

  /** An end is final: a pod that has ended otherwise is not waited for. */
  async untilPhase(pod: Pod, phase: "Running" | "Succeeded" | "Failed"): Promise<Pod> {
    const seen = await this.until(pod, `be ${phase}`, ({ status }) =>
      [phase, "Succeeded", "Failed"].includes(status?.phase ?? ""),
    );
    if (seen.status?.phase === phase) return seen;
    throw new Violation(`pod ${pod.metadata!.name} to be ${phase}`, `it is ${describe(seen)}`);
  }

  untilReady(pod: Pod): Promise<Pod> {
    return this.until(pod, "be Ready", isReady);
  }

  /** @returns how long it took, in milliseconds @param withinMs default: the run's patience */
  async untilGone(pod: Pod, withinMs = this.#options.patienceMs): Promise<number> {
    const begun = this.clock.monotonic();
    let last = pod;
    const gone = await this.#poll(withinMs, async () => {
      try {
        last = await this.get(pod);
        return last.metadata?.uid !== pod.metadata?.uid;
      } catch (thrown) {
        if (isNotFound(thrown)) return true;
        throw thrown;
      }
    });
    if (!gone)
      throw new Violation(
        `pod ${pod.metadata!.name} to be gone within ${Math.round(withinMs / 1000)} s of its deletion`,
        `it is ${describe(last)}${await this.#eventsOf(pod)}`,
      );
    return this.clock.monotonic() - begun;
  }

  async delete(pod: Pod, gracePeriodSeconds?: number): Promise<void> {
    await this.#options.kube.request({
      method: "DELETE",
      path: pathOf(pod),
      ...(gracePeriodSeconds !== undefined && {
        body: { kind: "DeleteOptions", apiVersion: "v1", gracePeriodSeconds },
      }),
      signal: this.#signal,
    });
  }

  /** As `kubectl logs` has it. */
  async log(pod: Pod, query: { container?: string; previous?: true } = {}): Promise<string> {
    return await this.#options.kube.requestText({
      method: "GET",
      path: `${pathOf(pod)}/log`,
      query,
      signal: this.#signal,
    });
  }

  /** Waits: what a container has just written need not have arrived. */
  async untilLog(pod: Pod, expected: string, query: { container?: string; previous?: true } = {}): Promise<void> {
    let last = "";
    const arrived = await this.#poll(this.#options.patienceMs, async () => {
      try {
        last = await this.log(pod, query);
      } catch (thrown) {
        // An agent that was restarted listens elsewhere, which the Node says a moment later.
        if (!(thrown instanceof KubeApiError) || thrown.status < 500) throw thrown;
        last = thrown.message;
      }
      return last === expected;
    });
    if (!arrived)
      throw new Violation(
        `the ${query.previous === true ? "earlier " : ""}log of pod ${pod.metadata!.name} to be ${JSON.stringify(expected)}`,
        `it is ${JSON.stringify(last.slice(0, 500))}`,
      );
  }

  /** As `kubectl logs -f` has it, to its end. */
  async followedLog(pod: Pod): Promise<string> {
    const signal = AbortSignal.any([this.#signal, AbortSignal.timeout(this.#options.patienceMs)]);
    const pieces: Buffer[] = [];
    const stream = this.#options.kube.stream({ path: `${pathOf(pod)}/log`, query: { follow: true }, signal });
    try {
      for await (const piece of stream) pieces.push(piece);
    } catch (thrown) {
      this.#signal.throwIfAborted();
      if (!signal.aborted) throw thrown;
      throw new Violation(
        "a log that is followed to end with its container",
        `it goes on ${this.#options.patienceMs / 1000} s later, after ${Buffer.concat(pieces).length} bytes`,
      );
    }
    return Buffer.concat(pieces).toString();
  }

  /** As `kubectl exec` has it. */
  async exec(pod: Pod, script: string): Promise<{ stdout: string; stderr: string; exitCode: number | undefined }> {
    const { kube, patienceMs } = this.#options;
    const signal = AbortSignal.any([this.#signal, AbortSignal.timeout(patienceMs)]);
    const target = { namespace: NAMESPACE, pod: pod.metadata!.name!, container: "main" };
    const command = ["sh", "-c", script];
    const socket = await openExec(
      target,
      { command, stdout: true, stderr: true },
      await kube.credentials(signal),
      signal,
    );
    using _ = onAbort(signal, () => socket.terminate());
    const channels = new Map<number, Buffer[]>();
    socket.on("message", (data: Buffer) => {
      const channel = data[0] ?? 0;
      channels.set(channel, [...(channels.get(channel) ?? []), data.subarray(1)]);
    });
    const ended = new Promise<void>((resolve) => socket.once("close", () => resolve()));
    socket.resume();
    await ended;
    const text = (channel: number) => Buffer.concat(channels.get(channel) ?? []).toString();
    return { stdout: text(1), stderr: text(2), exitCode: exitCodeOf(text(3)) };
  }

  /** The middle of the check: what it is about is ended and started again. */
  async disturb(): Promise<void> {
    await this.#options.restarted?.();
  }

  /** What the backend has for the pod, but tombstones. */
  async machinesOf(pod: Pod): Promise<Machine[]> {
    const labels = { ...this.#options.ownerLabels, [LABEL_UID]: pod.metadata!.uid! };
    const { items } = await this.#options.provider.getPods({ labels, signal: this.#signal });
    return items.filter((machine) => machine.state !== "deleted" && isSubset(labels, machine.labels));
  }

  /** A machine outlives its pod by a moment, not for long. */
  async untilNoMachine(pod: Pod): Promise<void> {
    let left: Machine[] = [];
    const gone = await this.#poll(
      this.#options.patienceMs,
      async () => (left = await this.machinesOf(pod)).length === 0,
    );
    if (!gone)
      throw new Violation(
        `no machine to be left of pod ${pod.metadata!.name}, which is gone`,
        `there is ${left.map(({ id, state }) => `${id} (${state})`).join(", ")}`,
      );
  }

  /** Takes the check's pods away. What cannot be removed now is removed with the node's machines. */
  async cleanUp(): Promise<void> {
    const { kube } = this.#options;
    const signal = AbortSignal.timeout(CLEAN_UP_MS);
    const paths = [
      ...this.#configMaps.map((name) => resourcePath({ resource: "configmaps", namespace: NAMESPACE, name })),
      ...this.#pods.map(pathOf),
    ];
    await Promise.allSettled(
      paths.map((path) =>
        kube.request({
          ...{ method: "DELETE", path, signal },
          body: { kind: "DeleteOptions", apiVersion: "v1", gracePeriodSeconds: 1 },
        } as const),
      ),
    );
  }

  async #poll(withinMs: number, look: () => Promise<boolean>): Promise<boolean> {
    const deadline = this.clock.monotonic() + withinMs;
    for (;;) {
      if (await look()) return true;
      if (this.clock.monotonic() >= deadline) return false;
      await this.clock.sleep(POLL_MS, this.#signal);
    }
  }

  async #eventsOf(pod: Pod): Promise<string> {
    const path = eventsPath(NAMESPACE);
    const { items } = await this.#options.kube.request<{ items: Event[] }>({
      ...{ method: "GET", path, signal: this.#signal },
    });
    const own = items.filter(({ involvedObject }) => involvedObject?.uid === pod.metadata?.uid);
    const told = own.slice(-TOLD_EVENTS).map(({ reason, message }) => `${reason}: ${message}`);
    return told.length === 0 ? ", without an event" : `; its events: ${told.join("; ")}`;
  }
}

const pathOf = ({ metadata }: Pod): string => podPath(NAMESPACE, metadata!.name!);

/** @throws Error for a pod that has no such container */
export function statusOf(pod: Pod, name = "main"): ContainerStatus | undefined {
  return containerStatusesOf(pod).find((each) => each.name === name);
}

export function isReady({ status }: Pod): boolean {
  return status?.conditions?.some(({ type, status: is }) => type === "Ready" && is === "True") === true;
}

/** Of the last message of an exec: a Status, whose cause has the code when it is not 0. */
function exitCodeOf(text: string): number | undefined {
  if (text === "") return undefined;
  const { status, details } = JSON.parse(text) as {
    status?: string;
    details?: { causes?: { reason?: string; message?: string }[] };
  };
  if (status === "Success") return 0;
  const cause = details?.causes?.find(({ reason }) => reason === "ExitCode");
  return cause === undefined ? undefined : Number(cause.message);
}

/** Phase, why, and each container in a few words. */
export function describe(pod: Pod): string {
  const { phase, reason, message } = pod.status ?? {};
  const containers = containerStatusesOf(pod).map(({ name, state, restartCount }) => {
    const { waiting, terminated } = state ?? {};
    const now =
      terminated !== undefined
        ? `ended with ${terminated.exitCode} (${terminated.reason})`
        : (waiting?.reason ?? (state?.running === undefined ? "unknown" : "running"));
    return `${name} ${now}${restartCount > 0 ? `, ${restartCount} restarts` : ""}`;
  });
  return [phase ?? "without a phase", reason, message, ...containers].filter(Boolean).join(", ");
}
