/**
 * One machine of the engine cri: a pod sandbox of the runtime's and the containers in it. Its folder:
 *
 *     etc/                 hosts, hostname, resolv.conf, and a termination message per container: a small tmpfs
 *     volumes/NAME/
 *     containers/ID/sub/   parts of volumes that a container instance mounts
 *
 * All else the runtime keeps, and is found there by labels.
 */
import type { MessageInitShape } from "@bufbuild/protobuf";
import { mkdir } from "node:fs/promises";
import { totalmem } from "node:os";
import { dirname, join, relative } from "node:path";
import { type Duplex, PassThrough } from "node:stream";
import {
  type ContainerResources,
  containersOf,
  type Once,
  type ProcessStreams,
  ProviderError,
  type StreamOptions,
  tenantOf,
  type Volume,
} from "../../../../src/provider/kit/index.ts";
import { cgroupVersion, Cgroup } from "../../bundle/cgroup.ts";
import { etcMounts, makeEtc, readMessage, removeMessage, writeHosts } from "../../bundle/etc.ts";
import { kernelHostname } from "../../bundle/host-files.ts";
import {
  applyFiles,
  growHostVolume,
  makeVolumes,
  readVolumeFile,
  volumeDevices,
  volumeInodes,
  volumeSource,
  volumeStats,
} from "../../bundle/host-volumes.ts";
import { ownLimits, resizeGroup } from "../../bundle/machine-resources.ts";
import {
  type ContainerConclusion,
  ContainerError,
  type ContainerLaunch,
  type ContainerRef,
  type LaunchPlan,
  type MachineHome,
  type Sandbox,
  type SandboxInodes,
  type SandboxLoss,
  type SandboxStats,
  type ShimExit,
} from "../../engine.ts";
import { deviceEnv } from "../../devices.ts";
import { dialHost, dialTcp } from "../../host/dial.ts";
import { unmountBelow } from "../../host/mounts.ts";
import { removeTree } from "../../host/remove-tree.ts";
import { together } from "../../host/together.ts";
import { TreeMeter } from "../../host/tree-use.ts";
import { LoopbackRelay } from "../../network/loopback-relay.ts";
import {
  type ContainerConfigSchema,
  ContainerState,
  MountPropagation,
  type MountSchema,
  type PodSandbox,
  type PodSandboxStats,
  PodSandboxState,
  type UserNamespace,
} from "./api.gen.js";
import { isCut, isLate, isNotFound, runtimeMessage, unavailable, unlessGone } from "./client.ts";
import { criResources, criSecurity, imageMount, stopSignal } from "./container-config.ts";
import type { CriContext } from "./context.ts";
import { removeFormer } from "./former-containers.ts";
import { LABEL_CONTAINER, LABEL_INSTANCE } from "./labels.ts";
import { LOG_LINK, prepareLog } from "./logs.ts";
import { addressOnNetwork, ownAddresses, type OwnAddresses, wantsInfo } from "./own-addresses.ts";
import { userNamespace, usersOf } from "./user-namespace.ts";
import { machineLabels, sandboxConfig } from "./sandbox-config.ts";
import { isRunning, networkNamespace, sandboxInfo } from "./sandbox-info.ts";
import { hasNetwork, joinNetwork, rejoinNetwork } from "./sandbox-network.ts";
import { resizeContainer } from "./resize.ts";
import { containerSamples, layerInodes, networkSample, sandboxPressure } from "./samples.ts";
import { signalProcess } from "./signal-process.ts";
import { commandStreams } from "./streams.ts";

/** The runtime waits so long before it kills by itself: never, for it is we who decide that. */
const NEVER_KILL_S = 10n * 365n * 24n * 3600n;
/** By then a signal has been sent; what is waited for after that is the container's end. */
const SIGNAL_MS = 10_000;
const STOP_AGAIN_MS = 200;
const KILL_MS = 30_000;
/** A container that was killed and has not ended by then waits for a session that does not read. */
const HELD_BACK_MS = 1_000;
const QUICK_CALL_MS = 10_000;
const PROPAGATION = {
  host_to_container: MountPropagation.PROPAGATION_HOST_TO_CONTAINER,
  bidirectional: MountPropagation.PROPAGATION_BIDIRECTIONAL,
} as const;

interface SandboxParts {
  addresses: OwnAddresses;
  users: UserNamespace | undefined;
  /** Nothing has been made in it. */
  isNew?: boolean;
  /** Its network, before anything begins. Absent: that is done. */
  joined?: Once<void> | undefined;
}

export async function openSandbox(context: CriContext, home: MachineHome, signal: AbortSignal): Promise<CriSandbox> {
  const { client, groups, pidsLimit, network } = context;
  const { spec, dir, id } = home;
  await mkdir(dir, { recursive: true, mode: 0o755 });
  const etc = join(dir, "etc");
  await mkdir(etc, { recursive: true, mode: 0o755 });
  await network?.ensure();
  await groups.limit(id, { ...ownLimits(spec.resources), pids: pidsLimit });
  const users = spec.security?.host_users === false ? userNamespace(await context.users.take(id)) : undefined;
  const config = sandboxConfig(context, home, users);
  const [{ podSandboxId }] = await together([
    client.runtime.runPodSandbox(
      { config, runtimeHandler: spec.runtime_handler ?? "" },
      client.within(undefined, signal),
    ),
    makeVolumes(home),
    makeEtc(etc, spec, { hostname: kernelHostname(spec, id), addresses: undefined }),
  ]);
  const { status, info } = await client.runtime.podSandboxStatus(
    { podSandboxId, verbose: wantsInfo(context) },
    client.within(QUICK_CALL_MS, signal),
  );
  const address = addressOnNetwork(spec, status) ?? "";
  const isOnHost = spec.host?.network === true;
  if (address === "" && !isOnHost)
    throw new Error("the runtime has given the sandbox no address: look at its CNI configuration");
  const settled = async () => {
    const told = await ownAddresses(context, spec, { status, info, signal });
    await writeHosts(etc, spec, told.shown);
    return told;
  };
  const [joined, addresses] = await together([joinNetwork(context, home, { address, info }), settled()]);
  return new CriSandbox(context, home, podSandboxId, { addresses, users, isNew: true, joined });
}

/** Undefined when it is gone. @throws what the runtime says: then nothing is known */
export async function recoverSandbox(context: CriContext, home: MachineHome): Promise<CriSandbox | undefined> {
  const sandbox = await findSandbox(context, home);
  if (sandbox === undefined) await context.containers.learnEnds(home.id);
  return sandbox;
}

async function findSandbox(context: CriContext, home: MachineHome): Promise<CriSandbox | undefined> {
  const { client, containers } = context;
  const filter = { labelSelector: machineLabels(context, home.id) };
  const { items } = await client.runtime.listPodSandbox({ filter }, client.within(QUICK_CALL_MS));
  const item = await firstRunning(context, items);
  if (item === undefined) return undefined;
  const { status, info } = await client.runtime.podSandboxStatus(
    { podSandboxId: item.id, verbose: wantsInfo(context) },
    client.within(QUICK_CALL_MS),
  );
  const word = { address: addressOnNetwork(home.spec, status) ?? "", info };
  if (!(await hasNetwork(context, home, word))) return undefined;
  const hasBegun = await containers.learn(home.id);
  await rejoinNetwork(context, home, word, hasBegun);
  const addresses = await ownAddresses(context, home.spec, { status, info });
  const users = usersOf(status);
  if (users !== undefined) await context.users.hold(home.id, users.uids[0]!.hostId);
  return new CriSandbox(context, home, item.id, { addresses, users });
}

async function firstRunning({ client }: Pick<CriContext, "client">, items: readonly PodSandbox[]) {
  const ready = items.find(({ state }) => state === PodSandboxState.SANDBOX_READY);
  if (ready !== undefined) return ready;
  for (const item of items) if (await isRunning(client, item.id)) return item;
  return undefined;
}

/**
 * Removes every sandbox of the machine with its containers.
 * @param whenStopped what can be done as soon as they have no network any more
 */
export async function removeSandboxes(
  context: CriContext,
  machineId: string,
  whenStopped: () => Promise<void>,
): Promise<void> {
  const { client } = context;
  const filter = { labelSelector: machineLabels(context, machineId) };
  const { items } = await client.runtime.listPodSandbox({ filter }, client.within(QUICK_CALL_MS));
  for (const { id } of items) await stopSandbox(context, id);
  const remove = async () => {
    for (const { id } of items) await removeStopped(context, id);
  };
  await together([remove(), whenStopped()]);
}

export async function removeSandbox(context: CriContext, id: string): Promise<void> {
  await stopSandbox(context, id);
  await removeStopped(context, id);
}

async function stopSandbox({ client }: CriContext, podSandboxId: string): Promise<void> {
  await unlessGone(client.runtime.stopPodSandbox({ podSandboxId }, client.within()));
}

async function removeStopped({ client, own }: CriContext, podSandboxId: string): Promise<void> {
  await unlessGone(client.runtime.removePodSandbox({ podSandboxId }, client.within()));
  await own?.endShim(podSandboxId);
}

class CriSandbox implements Sandbox {
  readonly addresses: readonly string[];
  readonly lost: Promise<SandboxLoss>;
  readonly #context: CriContext;
  readonly #home: MachineHome;
  readonly #id: string;
  readonly #users: SandboxParts["users"];
  readonly #meter: TreeMeter;
  readonly #inner: string | undefined;
  readonly #isNew: boolean;
  readonly #joined: SandboxParts["joined"];
  /** Names of containers of which there may be an instance, where the sandbox is new. */
  readonly #launched = new Set<string>();
  readonly #resolveLost: (loss: SandboxLoss) => void;
  readonly #unwatch: () => void;
  /** Ends what is under way here. */
  readonly #closed = new AbortController();
  /** From the first connection to its loopback on. */
  #relay: Promise<LoopbackRelay> | undefined;

  constructor(
    context: CriContext,
    home: MachineHome,
    id: string,
    { addresses, users, isNew = false, joined }: SandboxParts,
  ) {
    this.#context = context;
    this.#home = home;
    this.#id = id;
    this.#users = users;
    this.#isNew = isNew;
    this.#joined = joined;
    this.addresses = addresses.shown;
    this.#inner = addresses.inner;
    this.#meter = new TreeMeter(context.clock, context.diskWalks, tenantOf(home.spec.labels));
    const { promise, resolve } = Promise.withResolvers<SandboxLoss>();
    this.lost = promise;
    this.#resolveLost = resolve;
    this.#unwatch = context.containers.watchSandbox(id, () => void this.#check());
  }

  async launch(launch: ContainerLaunch): Promise<LaunchPlan> {
    const { client, containers, podLogs } = this.#context;
    const { spec, image, name, attempt, id, dir } = launch;
    if (image === undefined)
      throw new ContainerError("CreateContainerError", `container ${spec.name}: there is no image`);
    const security = criSecurity(spec, {
      ...this.#host,
      machineId: this.#home.id,
      image: image.config,
      targetId: launch.target === undefined ? undefined : await containers.find(launch.target),
      users: this.#users,
    });
    await podLogs?.begin(this.#home.spec, launch);
    const [mounts] = await together([this.#mounts(launch), prepareLog(dir), this.#removeFormer(launch)]);
    const config: MessageInitShape<typeof ContainerConfigSchema> = {
      metadata: { name, attempt },
      image: { image: image.location, userSpecifiedImage: spec.image },
      command: spec.command ?? [],
      args: spec.args ?? [],
      workingDir: spec.working_dir ?? "",
      // As a kubelet: the container's own word is the last one.
      envs: [...deviceEnv(launch.devices), ...(spec.env ?? [])].map(({ name, value }) => ({
        key: name,
        value: Buffer.from(value),
      })),
      mounts,
      devices: [...(launch.devices?.nodes ?? []), ...(await volumeDevices(this.#home, spec))].map(
        ({ path, hostPath, permissions }) => ({ containerPath: path, hostPath, permissions }),
      ),
      annotations: launch.devices?.annotations ?? {},
      CDIDevices: [...(spec.cdi_devices ?? []), ...(launch.devices?.cdi ?? [])].map((device) => ({ name: device })),
      labels: {
        ...machineLabels(this.#context, this.#home.id),
        [LABEL_CONTAINER]: name,
        [LABEL_INSTANCE]: id,
      },
      logPath: relative(dirname(this.#home.dir), join(dir, LOG_LINK)),
      stdin: spec.stdin === true,
      stdinOnce: spec.stdin_once === true,
      tty: spec.tty === true,
      stopSignal: stopSignal(spec.stop?.signal),
      linux: { resources: criResources(spec, this.#host), securityContext: security },
    };
    try {
      const sandbox = sandboxConfig(this.#context, this.#home, this.#users);
      const request = { podSandboxId: this.#id, config, sandboxConfig: sandbox };
      const create = () => client.runtime.createContainer(request, client.within(undefined, this.#signal));
      const created = create().catch(async (thrown: unknown) => {
        if (!isCut(thrown) || this.#signal.aborted) throw thrown;
        // The runtime has ended meanwhile: what it has made of it by then goes.
        await this.#removeEnded(launch);
        return await create();
      });
      const [{ containerId }] = await together([created, this.#joined?.get() ?? Promise.resolve()]);
      containers.made(launch, containerId);
      await podLogs?.named(this.#home.spec, launch, containerId);
      return { runtimeId: containerId };
    } catch (thrown) {
      await this.#removePrepared(launch);
      throw new ContainerError("CreateContainerError", runtimeMessage(thrown), { cause: thrown });
    }
  }

  /** In a sandbox that was made here and now, a container's first instance has none before it. */
  async #removeFormer(launch: ContainerLaunch): Promise<void> {
    const { name } = launch;
    if (this.#isNew && !this.#launched.has(name)) this.#launched.add(name);
    else await this.#removeEnded(launch);
  }

  async #removeEnded(launch: ContainerLaunch): Promise<void> {
    const { client } = this.#context;
    const selector = { ...machineLabels(this.#context, this.#home.id), [LABEL_CONTAINER]: launch.name };
    await removeFormer(client, selector, launch, client.within(QUICK_CALL_MS, this.#signal));
  }

  async signal(container: ContainerRef, signal: number): Promise<void> {
    // It returns at the container's end, which others tell: nobody waits for it here.
    void this.#stop(container, signal);
  }

  /** A runtime that ends meanwhile is asked again when it is back: nobody else would, before the time to kill. */
  async #stop(container: ContainerRef, signal: number): Promise<void> {
    const { clock, logger } = this.#context;
    while (!this.#signal.aborted) {
      try {
        return await this.#stopOnce(container, signal);
      } catch (thrown) {
        if (isLate(thrown) || isNotFound(thrown) || this.#signal.aborted) return;
        if (!isCut(thrown))
          return logger.warn({ container: container.id, err: thrown }, "Cannot deliver the stop signal");
        await clock.sleep(STOP_AGAIN_MS);
      }
    }
  }

  async #stopOnce(container: ContainerRef, signal: number): Promise<void> {
    const { client, containers } = this.#context;
    const containerId = await containers.find(container);
    if (containerId === undefined) return;
    const spec = containersOf(this.#home.spec).find(({ spec }) => spec.name === container.name)?.spec;
    // containerd 2.2 sends the image's, whatever it was told.
    const asked = { containerId, signal, abort: this.#signal };
    if (spec?.stop?.signal !== undefined && (await signalProcess(client, asked))) return;
    await client.runtime.stopContainer({ containerId, timeout: NEVER_KILL_S }, client.within(SIGNAL_MS, this.#signal));
  }

  async kill(container: ContainerRef): Promise<void> {
    const { client, containers, clock } = this.#context;
    const containerId = await containers.find(container);
    if (containerId === undefined) return;
    const cancel = clock.after(HELD_BACK_MS, () => containers.detachAll(container));
    try {
      await unlessGone(client.runtime.stopContainer({ containerId, timeout: 0n }, client.within(KILL_MS)));
    } finally {
      cancel();
    }
  }

  async conclude(
    container: ContainerRef,
    exit: ShimExit,
    keep: (conclusion: ContainerConclusion) => void,
  ): Promise<ContainerConclusion> {
    const { client, containers } = this.#context;
    const containerId = await containers.find(container);
    const status = containerId === undefined ? undefined : await containers.status(containerId);
    const terminationMessage = readMessage(this.#etc, container);
    const conclusion =
      exit.startError === undefined
        ? {
            ...(status?.reason === "OOMKilled" ? { oomKilled: true } : {}),
            ...(terminationMessage === "" ? {} : { terminationMessage }),
          }
        : { exitCode: exit.exitCode, startError: exit.startError };
    keep(conclusion);
    // What has run, or may have, stays until the next instance begins: its end may have to be told again.
    if (containerId !== undefined && status?.state === ContainerState.CONTAINER_CREATED)
      await unlessGone(client.runtime.removeContainer({ containerId }, client.within()));
    await this.#removePrepared(container);
    return conclusion;
  }

  async #removePrepared(container: Pick<ContainerRef, "id">): Promise<void> {
    const folder = this.#prepared(container);
    await unmountBelow(folder);
    await removeTree(folder);
    await removeMessage(this.#etc, container);
    this.#context.containers.forget(container);
  }

  async exec(container: ContainerRef, command: string[], options: StreamOptions): Promise<ProcessStreams> {
    const { client, clock } = this.#context;
    const containerId = await this.#running(container);
    const { stdin, stdout, tty } = options;
    const asked = { containerId, cmd: command, stdin, stdout, stderr: options.stderr && !tty, tty };
    const { url } = await client.runtime
      .exec(asked, client.within(QUICK_CALL_MS, options.signal))
      .catch((thrown: unknown) => Promise.reject(unavailable("cannot run the command", thrown)));
    const ended = () => Promise.reject(new ProviderError("unavailable", "the session ended before the command did"));
    return await commandStreams(url, options, { clock, ended });
  }

  async execToEnd(container: ContainerRef, command: string[], options: StreamOptions): Promise<ProcessStreams> {
    const { client } = this.#context;
    const containerId = await this.#running(container);
    const abort = new AbortController();
    const signal = AbortSignal.any([abort.signal, options.signal]);
    const stdout = new PassThrough();
    const stderr = new PassThrough();
    const exit = (async () => {
      try {
        // Its time is the caller's; the runtime ends the command when we give up.
        const reply = await client.runtime.execSync({ containerId, cmd: command }, client.within(undefined, signal));
        stdout.end(reply.stdout);
        stderr.end(reply.stderr);
        return { exitCode: reply.exitCode };
      } catch (thrown) {
        stdout.end();
        stderr.end();
        const text = runtimeMessage(thrown);
        if (/executable file not found|no such file|permission denied/i.test(text))
          throw new ProviderError("invalid", text, { field: "command", cause: thrown });
        throw unavailable("cannot run the command", thrown);
      }
    })();
    exit.catch(() => {});
    const close = () => abort.abort(new Error("the session is closed"));
    return { stdin: null, stdout, stderr, exit, close, resize() {} };
  }

  async #running(container: ContainerRef): Promise<string> {
    const containerId = await this.#context.containers.find(container);
    if (containerId === undefined) throw new ProviderError("conflict", "the container is not running");
    return containerId;
  }

  async dial(port: number, target: "address" | "loopback", signal: AbortSignal): Promise<Duplex> {
    if (this.#home.spec.host?.network === true) return await dialHost(port, target, signal);
    if (target === "address") return await dialTcp(this.#inner!, port, signal);
    this.#relay ??= this.#makeRelay(signal);
    // Another may be told.
    this.#relay.catch(() => (this.#relay = undefined));
    return await (await this.#relay).dial(port, signal);
  }

  async #makeRelay(signal: AbortSignal): Promise<LoopbackRelay> {
    const { client, clock } = this.#context;
    const asked = { podSandboxId: this.#id, verbose: true };
    const { info } = await client.runtime.podSandboxStatus(asked, client.within(QUICK_CALL_MS, signal));
    return new LoopbackRelay({
      netns: networkNamespace(sandboxInfo(info)),
      socketPath: this.#home.socketPath("relay"),
      clock,
    });
  }

  async stats(containers: readonly ContainerRef[]): Promise<SandboxStats> {
    const sample = await this.#sample();
    const network = networkSample(sample);
    return {
      containers: containerSamples(sample, containers),
      volumes: await volumeStats(this.#home, this.#meter),
      ...sandboxPressure(sample),
      ...(network === undefined ? {} : { network }),
    };
  }

  async #sample(): Promise<PodSandboxStats | undefined> {
    const { client } = this.#context;
    const asked = { podSandboxId: this.#id };
    return (await client.runtime.podSandboxStats(asked, client.within(QUICK_CALL_MS, this.#signal))).stats;
  }

  async inodes(containers: readonly ContainerRef[]): Promise<SandboxInodes> {
    const sample = await this.#sample();
    return { containers: layerInodes(sample, containers), volumes: await volumeInodes(this.#home, this.#meter) };
  }

  async processes(): Promise<number> {
    return (await new Cgroup(this.#context.groups.parentOf(this.#home.id)).processes()).length;
  }

  async readVolumeFile(volume: string, path: string, maxBytes: number): Promise<Buffer> {
    return readVolumeFile(this.#home, volume, path, maxBytes);
  }

  async applyFiles(volume: Extract<Volume, { type: "files" }>): Promise<void> {
    applyFiles(this.#home, volume);
  }

  async growHostVolume(name: string): Promise<void> {
    await growHostVolume(this.#home, name);
  }

  async resize(container: ContainerRef, resources: ContainerResources): Promise<void> {
    const { client } = this.#context;
    const containerId = await this.#running(container);
    const limit = resources.limits?.memory_bytes;
    const used = (await this.stats([container])).containers[0]?.memory_working_set_bytes;
    if (limit !== undefined && used !== undefined && used > limit)
      throw new ProviderError("conflict", `memory limit ${limit} is below what the container uses now (${used})`, {
        field: "resources.limits.memory_bytes",
      });
    const asked = { podSandboxId: this.#id, containerId, name: container.name, resources };
    await resizeContainer(client, asked, { host: this.#host, signal: this.#signal });
  }

  async resizeMachine(change: Parameters<typeof resizeGroup>[1], containers: () => Promise<void>): Promise<void> {
    const { groups } = this.#context;
    const { id } = this.#home;
    const group = new Cgroup(groups.parentOf(id));
    await resizeGroup({ usage: () => group.usage(), limit: (limits) => groups.limit(id, limits) }, change, containers);
  }

  async close(): Promise<void> {
    this.#unwatch();
    this.#closed.abort(new Error("the sandbox is closed"));
    this.#relay?.then(
      (relay) => relay.close(),
      () => undefined,
    );
  }

  /** Something may have become of it. */
  async #check(): Promise<void> {
    const { client, logger } = this.#context;
    try {
      if (await isRunning(client, this.#id, this.#signal)) return;
    } catch (thrown) {
      return logger.debug({ err: thrown }, "The runtime cannot be asked about a sandbox");
    }
    if (this.#closed.signal.aborted) return;
    this.#resolveLost({ reason: "SandboxLost", message: "the runtime's sandbox of the machine has ended" });
  }

  async #mounts(launch: ContainerLaunch) {
    const { spec } = launch;
    const mounts: MessageInitShape<typeof MountSchema>[] = [];
    for (const { destination, source, options } of await etcMounts(this.#etc, launch, spec))
      mounts.push({ containerPath: destination, hostPath: source, readonly: options.includes("ro") });
    for (const { path, hostPath, readOnly } of launch.devices?.mounts ?? [])
      mounts.push({ containerPath: path, hostPath, readonly: readOnly });
    for (const [index, mount] of (spec.mounts ?? []).entries()) {
      const volume = (this.#home.spec.volumes ?? []).find(({ name }) => name === mount.volume);
      if (volume?.type === "image") mounts.push(imageMount(mount, launch.imageVolumes[mount.volume]?.location));
      else {
        const at = join(this.#prepared(launch), "sub", String(index));
        const { source, writable, propagation } = await volumeSource(this.#home, launch.name, mount, {
          image: undefined,
          at,
        });
        const how = propagation === undefined ? {} : { propagation: PROPAGATION[propagation] };
        mounts.push({ containerPath: mount.path, hostPath: source, readonly: !writable, ...how });
      }
    }
    // What the pod mounts at the same place replaces what we would.
    const at = (path = "") => join("/", path, ".");
    const shown = mounts.filter(
      ({ containerPath }, index) =>
        !mounts.some((later, other) => other > index && at(later.containerPath) === at(containerPath)),
    );
    const { uids, gids } = this.#users ?? { uids: [], gids: [] };
    // An image's is an overlay, which no kernel can map: its files are nobody's there, and readable as for anybody.
    return shown.map((mount) => ("image" in mount ? mount : { ...mount, uidMappings: uids, gidMappings: gids }));
  }

  get #host() {
    return { machine: this.#home.spec, cgroupVersion: cgroupVersion(), memoryBytes: totalmem() };
  }

  get #signal(): AbortSignal {
    return this.#closed.signal;
  }

  get #etc(): string {
    return join(this.#home.dir, "etc");
  }

  #prepared({ id }: Pick<ContainerRef, "id">): string {
    return join(this.#home.dir, "containers", id);
  }
}
