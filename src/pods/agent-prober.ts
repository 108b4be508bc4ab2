/**
 * Readiness probes, run from here, for backends that run none themselves but whose machines can be reached and take
 * commands. The same prober as in a machine. Liveness and startup probes are refused at admission: what fails one has
 * to be restarted, and no backend offers that from outside.
 */
import { aboutPod, containerStatusesOf, uidOf } from "../kube/pod.ts";
import type { Container, Pod } from "../kube/wire.ts";
import { renderProbe } from "../podspec/render/handlers.ts";
import type { PodEvent } from "../podspec/types.ts";
import { fieldPathOf } from "../podspec/render/render.ts";
import { ProviderError } from "../provider/errors.ts";
import { isOver, type ContainerState, type Machine, type Probe } from "../provider/machine.ts";
import { connect, runProbe, type Target } from "../provider/probes/actions.ts";
import { Prober } from "../provider/probes/prober.ts";
import type { ProbeTally, Provider } from "../provider/provider.ts";
import { isSidecar } from "../resources/pod-resources.ts";
import type { Logger } from "../telemetry/logger.ts";
import type { Clock } from "../util/clock.ts";
import type { ReadinessSource } from "./reconciler-options.ts";

interface AgentProberOptions {
  provider: Provider;
  /** False while the backend runs the probes. */
  isActive: () => boolean;
  /** A container of this pod became ready, or no longer is. */
  onChange: (podUid: string) => void;
  event: (pod: Pod, event: PodEvent) => void;
  clock: Clock;
  logger: Logger;
}

/** One instance of a container. `ready` is undefined until enough probes were made. */
interface Watched {
  instance: string;
  prober: Prober;
  target: { machine: Machine };
  ready: boolean | undefined;
}

export class AgentProber implements ReadinessSource {
  readonly #options: AgentProberOptions;
  /** By pod UID and container name. */
  readonly #watched = new Map<string, Map<string, Watched>>();

  constructor(options: AgentProberOptions) {
    this.#options = options;
  }

  apply(pod: Pod, machine: Machine): Machine {
    const uid = uidOf(pod);
    const probed = isOver(machine) || !this.#options.isActive() ? [] : probedContainers(pod);
    if (probed.length === 0) {
      this.release(uid);
      return machine;
    }
    const watched = this.#watched.get(uid) ?? new Map<string, Watched>();
    this.#watched.set(uid, watched);
    const containers = machine.containers.map((state) => {
      const container = probed.find(({ name }) => name === state.name);
      if (container === undefined) return state;
      const ready = this.#readiness(pod, machine, container, state, watched);
      return { ...state, ready };
    });
    return { ...machine, containers };
  }

  /** What the probes of the running containers came to. */
  tallies(): { podUid: string; container: string; tally: Readonly<ProbeTally> }[] {
    return [...this.#watched].flatMap(([podUid, containers]) =>
      [...containers].map(([container, { prober }]) => ({ podUid, container, tally: prober.tally })),
    );
  }

  /** Probes nothing any more. */
  close(): void {
    for (const podUid of this.#watched.keys()) this.release(podUid);
  }

  release(podUid: string): void {
    for (const { prober } of this.#watched.get(podUid)?.values() ?? []) prober.stop();
    this.#watched.delete(podUid);
  }

  #readiness(
    pod: Pod,
    machine: Machine,
    container: Container,
    state: ContainerState,
    watched: Map<string, Watched>,
  ): boolean {
    const known = watched.get(container.name);
    if (state.state !== "running" || state.id === undefined) {
      known?.prober.stop();
      watched.delete(container.name);
      return false;
    }
    if (known?.instance === state.id) {
      known.target.machine = machine;
      return known.ready ?? wasReady(pod, state);
    }
    known?.prober.stop();
    const rendered = renderProbe(container, container.readinessProbe!);
    if (!rendered.ok) {
      this.#options.logger.warn(
        { ...aboutPod(pod), container: container.name, reason: rendered.message },
        "Readiness probe cannot be run",
      );
      return false;
    }
    const entry = this.#watch(pod, container.name, rendered.value, state, machine);
    watched.set(container.name, entry);
    entry.prober.start(Date.parse(state.started_at ?? "") || this.#options.clock.now());
    return wasReady(pod, state);
  }

  #watch(pod: Pod, name: string, probe: Probe, state: ContainerState, machine: Machine): Watched {
    const { clock, provider } = this.#options;
    const holder = { machine };
    const entry: Watched = {
      instance: state.id!,
      target: holder,
      ready: undefined,
      prober: undefined as unknown as Prober,
    };
    const target: Target = {
      get addresses() {
        return holder.machine.addresses.map(({ ip }) => ip);
      },
      dial(port, signal) {
        const [address] = this.addresses;
        if (address === undefined) return Promise.reject(new Error("the machine has no address"));
        return connect(address, port, signal);
      },
      exec(command, options) {
        if (provider.exec === undefined)
          return Promise.reject(new ProviderError("unsupported", "the backend lacks capability exec"));
        return provider.exec(holder.machine.id, name, command, options);
      },
    };
    entry.prober = new Prober("readiness", probe, clock, () => runProbe(probe, target, probe.timeout_s * 1000, clock), {
      verdict: (_kind, healthy) => {
        entry.ready = healthy;
        this.#options.onChange(uidOf(pod));
      },
      complaint: (reason, message) =>
        this.#options.event(pod, { type: "Warning", reason, message, fieldPath: fieldPathOf(pod, name) }),
    });
    return entry;
  }
}

/** Containers with a readiness probe: those that count towards Ready. */
function probedContainers(pod: Pod): Container[] {
  const sidecars = (pod.spec?.initContainers ?? []).filter(isSidecar);
  return [...sidecars, ...(pod.spec?.containers ?? [])].filter(({ readinessProbe }) => readinessProbe !== undefined);
}

/** What the API server was told of this very instance: it holds until a probe of this process says otherwise. */
function wasReady(pod: Pod, state: ContainerState): boolean {
  const statuses = containerStatusesOf(pod);
  const old = statuses.find(({ name }) => name === state.name);
  return old?.ready === true && old.containerID?.endsWith(`/${state.id}`) === true;
}
