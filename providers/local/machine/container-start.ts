/**
 * Starts containers: images, what the engine prepares, the record, the shim, post_start; and shows why a container does
 * not start. When to start which is the plan's.
 */
import { isUtf8 } from "node:buffer";
import {
  backoffLimits,
  type ContainerSpec,
  ENV_FILE_BYTES,
  type EnvFileRef,
  envFilesOf,
  failure,
  isOver,
  linkAbort,
  type Result,
  success,
  toError,
  withAddresses,
  withEnvFiles,
} from "../../../src/provider/kit/index.ts";
import { claimedCdi } from "../claims.ts";
import { type DeviceGrant, grantOf } from "../devices.ts";
import {
  ContainerError,
  type ContainerLaunch,
  type ContainerRef,
  type LaunchPlan,
  NeverBegunError,
  type PreparedImage,
  type Sandbox,
} from "../engine.ts";
import type { StartCommand } from "../engine.ts";
import { type ContainerInstance, START_ERROR_EXIT } from "./container-instance.ts";
import type { ContainerStatus } from "./container-status.ts";
import { clear, isCleared } from "./conclusion.ts";
import { obtainImage } from "./image-pull.ts";
import { launchFile, removeQuietly } from "./instance-folders.ts";
import type { Instances } from "./instances.ts";
import type { MachineContext } from "./machine-context.ts";
import type { ContainerRecord } from "./record.ts";

const CONFIG_RETRY_MS = 10_000;
/** After this long, ErrImagePull becomes ImagePullBackOff: kubelet shows the first until its next turn. */
const PULL_BACKOFF_SHOWN_MS = 2_000;
const PULL_ERRORS: readonly string[] = ["ErrImagePull", "RegistryUnavailable", "SignatureValidationFailed"];

/** What is obtained before anything is begun. */
type Parts = Pick<ContainerLaunch, "image" | "imageVolumes" | "devices">;
type Images = Omit<Parts, "devices">;

export class ContainerStarter {
  readonly #context: MachineContext;
  readonly #instances: Instances;
  readonly #starting = new Set<string>();
  /** Obtained while there is no sandbox yet. Of this version of the container alone. */
  #early: { spec: ContainerSpec; images: Promise<Images> } | undefined;
  /** Aborts what is being prepared for containers that are not wanted any more. */
  #wanted = new AbortController();

  constructor(context: MachineContext, instances: Instances) {
    this.#context = context;
    this.#instances = instances;
  }

  /** Names of the containers whose start is under way, up to the end of post_start. */
  get starting(): ReadonlySet<string> {
    return this.#starting;
  }

  /** @param backoff what the container's record becomes with the start; undefined leaves it */
  start(name: string, backoff: ContainerRecord["backoff"]): void {
    this.#starting.add(name);
    this.#context.work.background(this.#start(this.#context.state.findSpec(name), backoff));
  }

  /**
   * The sandbox is being made: the images of the container that comes first are obtained meanwhile. A failure is its
   * start's.
   */
  prepare(): void {
    const { state } = this.#context;
    const { init_containers: [first] = [], containers } = state.spec;
    const spec = first ?? containers[0];
    if (spec === undefined || this.#early?.spec === spec) return;
    const images = this.#obtainImages(spec, state.container(spec.name));
    this.#early = { spec, images };
    images.catch(() => undefined);
  }

  /** Goes on with an instance that a former backend has begun. */
  resume(instance: ContainerInstance): void {
    this.#starting.add(instance.spec.name);
    this.#context.work.background(this.#finish(instance));
  }

  /** Gives up what is being prepared: the machine ends, or all containers begin again. */
  abandon(reason: string): void {
    this.#wanted.abort(new Error(reason));
    this.#early = undefined;
  }

  /** The sandbox that they were being started in is given up: no start is waited for. */
  forget(): void {
    this.#starting.clear();
  }

  /** Containers are wanted again. */
  reset(): void {
    this.#wanted = new AbortController();
  }

  /** Removes what was prepared for an instance that is never begun, however long that takes. */
  async giveUp(sandbox: Sandbox, ref: ContainerRef, startError: string): Promise<void> {
    if (await clear(this.#context, sandbox, ref, { exitCode: START_ERROR_EXIT, startError })) removeQuietly(ref.dir);
  }

  /** Removes what is left of an instance that has ended, and whose end is told. */
  async clear(sandbox: Sandbox, ref: ContainerRef): Promise<void> {
    await clear(this.#context, sandbox, ref, { exitCode: START_ERROR_EXIT });
  }

  // --- one start ---

  async #start(spec: ContainerSpec, backoff: ContainerRecord["backoff"]): Promise<void> {
    const { state, starts, tenant, trace } = this.#context;
    const container = state.container(spec.name);
    let instance: ContainerInstance | undefined;
    const about = { "k8s.container.name": spec.name, "k8s.container.restart_count": container.own.attempt + 1 };
    try {
      await trace.step("container.start", about, async () => {
        if (container.own.kind === "main") state.initPassed();
        const early = this.#early;
        if (early?.spec === spec) this.#early = undefined;
        const images = await (early?.spec === spec ? early.images : this.#obtainImages(spec, container));
        const parts = { ...images, devices: await this.#prepareDevices(spec) };
        await starts.run(tenant, async () => {
          await this.#context.haveVolumes();
          const begun = await trace.part("container.create", {}, () => this.#begin(spec, parts, backoff));
          instance = begun?.instance;
          if (begun !== undefined)
            await trace.part("container.run", {}, () => this.#startShim(begun.instance, begun.command));
        });
      });
    } catch (thrown) {
      if (!this.#isOutdated(spec)) this.#failed(spec, container, toError(thrown));
    }
    if (instance === undefined) this.#done(spec.name);
    else await this.#finish(instance);
  }

  /** Once for each start: the plan that follows may begin another one at once. */
  #done(name: string): void {
    this.#starting.delete(name);
    this.#context.replan();
  }

  /**
   * Nothing is begun that is not wanted, or that a patch has changed meanwhile: the next plan starts it as it is to be
   * now.
   */
  #isOutdated(spec: ContainerSpec): boolean {
    const { work, state } = this.#context;
    return work.isClosing || state.isStopping || state.findSpec(spec.name) !== spec;
  }

  /**
   * Prepares an instance and writes it down. Undefined when it is not wanted any more.
   * @throws when it cannot be begun
   */
  async #begin(
    spec: ContainerSpec,
    parts: Parts,
    backoff: ContainerRecord["backoff"],
  ): Promise<{ instance: ContainerInstance; command: StartCommand } | undefined> {
    const { folders, state, work } = this.#context;
    const sandbox = this.#context.sandbox();
    if (sandbox === undefined || this.#isOutdated(spec)) return undefined;
    const { name } = spec;
    const container = state.container(name);
    const { folder, ...ref } = folders.make(name, container.own.attempt + 1);
    let launched: LaunchPlan;
    try {
      launched = await sandbox.launch({
        ...ref,
        kind: container.own.kind,
        spec: await this.#filled(spec, sandbox),
        ...parts,
        target: this.#instances.get(spec.target ?? "")?.ref,
      });
    } catch (thrown) {
      // It is tried again, perhaps for days: no try may leave anything behind.
      work.background(this.giveUp(sandbox, ref, "it could not be prepared"));
      throw thrown;
    }
    if (this.#isOutdated(spec)) {
      work.background(this.giveUp(sandbox, ref, "the start was given up"));
      return undefined;
    }
    const { user, notice, ...plan } = launched;
    const command = {
      ...plan,
      tty: spec.tty ?? false,
      stdin: spec.stdin ?? false,
      stdinOnce: spec.stdin_once ?? false,
      socket: this.#context.home.socketPath(ref.id),
    };
    try {
      container.beginInstance({ attempt: ref.attempt, id: ref.id, folder, user, backoff });
    } catch (thrown) {
      work.background(this.giveUp(sandbox, ref, "the machine's state cannot be written"));
      throw thrown;
    }
    folders.forgetOld(name, container.own, isCleared);
    if (notice !== undefined) container.notice("Normal", notice.reason, notice.message);
    return { instance: this.#instances.add(spec, ref), command };
  }

  /**
   * With what is known only now: addresses, and what its files of variables have.
   * @throws ContainerError
   */
  async #filled(spec: ContainerSpec, sandbox: Sandbox): Promise<ContainerSpec> {
    const readings = [];
    let left = ENV_FILE_BYTES;
    for (const file of envFilesOf(spec)) {
      const text = await readEnvFile(sandbox, file, left);
      if (text.ok) left -= Buffer.byteLength(text.value);
      readings.push({ file, text });
    }
    const addressed = withAddresses(spec, this.#context.state.spec.address_tokens, sandbox.addresses);
    // After that: what a file has is never looked at for tokens.
    const filled = withEnvFiles(addressed, readings);
    if (!filled.ok) throw new ContainerError("CreateContainerConfigError", filled.message);
    return filled.value;
  }

  async #startShim(instance: ContainerInstance, command: StartCommand): Promise<void> {
    try {
      const { home, shims } = this.#context;
      await shims.start(instance.ref, command, launchFile(home, instance.ref));
    } catch (thrown) {
      if (thrown instanceof NeverBegunError && instance.isCurrent) {
        this.#takeBack(instance);
        throw thrown;
      }
      await instance.conclude({
        exitCode: START_ERROR_EXIT,
        startError: toError(thrown).message,
        finishedAt: this.#context.clock.now(),
      });
      return;
    }
    instance.watch();
  }

  /** The host could not begin it just now: what was prepared is removed, and it is tried again as any other start. */
  #takeBack(instance: ContainerInstance): void {
    const { state, work } = this.#context;
    const { ref } = instance;
    instance.drop();
    state.container(ref.name).takeBackInstance();
    state.commit();
    const sandbox = this.#context.sandbox();
    if (sandbox !== undefined) work.background(this.giveUp(sandbox, ref, "it was never begun"));
  }

  /** From the shim's start to the end of post_start. */
  async #finish(instance: ContainerInstance): Promise<void> {
    try {
      const started = await instance.started;
      if (!started || !instance.isCurrent) return;
      if ((await this.#postStart(instance)) && instance.isRunning) instance.showRunning();
    } finally {
      this.#done(instance.spec.name);
    }
  }

  /** False when the hook has failed: then the instance is stopped, and that shown. */
  async #postStart(instance: ContainerInstance): Promise<boolean> {
    const { state, logger } = this.#context;
    const container = state.container(instance.spec.name);
    const hook = instance.spec.hooks?.post_start;
    if (hook === undefined || container.own.postStartDone) return true;
    try {
      await instance.hook(hook);
      return true;
    } catch (thrown) {
      if (instance.ended.aborted) return false;
      container.notice("Warning", "FailedPostStartHook", "PostStartHook failed");
      logger.info({ container: container.name, err: thrown }, "The post_start hook failed");
      instance.stopWithGrace("FailedPostStartHook");
      await instance.over;
      container.showFailedStart("PostStartHookError", toError(thrown).message);
      return false;
    }
  }

  // --- why it does not start ---

  /** There is no instance: the image or the configuration does not allow one yet. */
  #failed(spec: ContainerSpec, container: ContainerStatus, error: Error): void {
    const { state, clock } = this.#context;
    const reason = error instanceof ContainerError ? error.reason : "CreateContainerError";
    const isPull = PULL_ERRORS.includes(reason);
    const { initialMs, maxMs } = backoffLimits(state.spec);
    const ms = isPull ? Math.min((container.own.retry?.ms ?? 0) * 2 || initialMs, maxMs) : CONFIG_RETRY_MS;
    container.retryAt(clock.now() + ms, ms);
    container.wait(reason, error.message);
    container.notice("Warning", "Failed", `Error: ${isPull ? reason : error.message}`);
    state.commit();
    if (isPull)
      clock.after(Math.min(PULL_BACKOFF_SHOWN_MS, ms / 2), () =>
        this.#showPullBackOff(spec.image, container, reason, error.message),
      );
  }

  #showPullBackOff(image: string, container: ContainerStatus, reason: string, message: string): void {
    const { state, work } = this.#context;
    const { shown } = container;
    if (work.isClosing || isOver(state.record.machine) || shown.state !== "waiting" || shown.reason !== reason) return;
    container.wait("ImagePullBackOff", `Back-off pulling image "${image}": ${reason}: ${message}`);
    container.notice("Normal", "BackOff", `Back-off pulling image "${image}"`);
    container.notice("Warning", "Failed", "Error: ImagePullBackOff");
    state.commit();
  }

  // --- what it is made of ---

  /** @throws ContainerError when they are not to be had now: it never runs without */
  async #prepareDevices(spec: ContainerSpec): Promise<DeviceGrant | undefined> {
    const { devices, state, work } = this.#context;
    const holdings = state.devices.of(spec.name);
    const claimed = claimedCdi(state.claims.prepared, spec);
    if (holdings.length === 0 && claimed.length === 0) return undefined;
    using wanted = linkAbort(work.closing, this.#wanted.signal);
    try {
      if (devices === undefined) throw new Error("its devices are plugins', and engine.plugins is not set any more");
      await devices.prepare(holdings, wanted.signal);
      const grant = grantOf(holdings);
      return { ...grant, cdi: [...new Set([...grant.cdi, ...claimed])] };
    } catch (thrown) {
      throw new ContainerError("CreateContainerConfigError", toError(thrown).message, { cause: thrown });
    }
  }

  async #obtainImages(spec: ContainerSpec, container: ContainerStatus): Promise<Images> {
    const { engine, state, clock, tenant, work, trace } = this.#context;
    const { images } = engine;
    if (images === undefined) return { image: undefined, imageVolumes: {} };
    const auth = state.spec.registry_auth ?? [];
    using wanted = linkAbort(work.closing, this.#wanted.signal);
    const surroundings = {
      clock,
      tenant,
      signal: wanted.signal,
      notify: (type: "Normal" | "Warning", reason: string, message: string) => {
        container.notice(type, reason, message);
        state.commit();
      },
    };
    const obtain = (wanted: Parameters<typeof obtainImage>[1]) =>
      trace.part("image.obtain", { "container.image.name": wanted.image }, () =>
        obtainImage(images, wanted, auth, surroundings),
      );
    const image = await obtain(spec);
    container.keepImage(image);
    // At once: the pull of the next one may take long, and may need room.
    this.#context.onImagesChanged();
    const mounted = new Set((spec.mounts ?? []).map((mount) => mount.volume));
    const imageVolumes: Record<string, PreparedImage> = {};
    for (const volume of state.spec.volumes ?? []) {
      if (volume.type !== "image" || !mounted.has(volume.name)) continue;
      const obtained = await obtain(volume);
      imageVolumes[volume.name] = obtained;
      container.keepImageVolume(volume.name, obtained);
      this.#context.onImagesChanged();
    }
    return { image, imageVolumes };
  }
}

async function readEnvFile(sandbox: Sandbox, { volume, path }: EnvFileRef, maxBytes: number): Promise<Result<string>> {
  try {
    if (sandbox.readVolumeFile === undefined) return failure("this backend cannot read it");
    const bytes = await sandbox.readVolumeFile(volume, path, maxBytes);
    if (!isUtf8(bytes)) return failure("it is no UTF-8 text");
    return success(bytes.toString("utf8"));
  } catch (thrown) {
    return failure(toError(thrown).message);
  }
}
