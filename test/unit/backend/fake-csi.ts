/** A CSI driver without a socket, whose mounts are folders with a file, and a backend that knows it. */
import { existsSync, mkdirSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { BlockDevices } from "../../../providers/local/plugins/csi-devices.ts";
import type { CsiPlugin } from "../../../providers/local/plugins/csi-plugin.ts";
import type { NodeServiceCapability_RPC_Type as Rpc } from "../../../src/csi/api.gen.js";
import { World } from "./world.ts";

export const DRIVER = "csi.example.com";

export class FakeDriver implements CsiPlugin {
  readonly asked: string[] = [];
  readonly requests: Parameters<CsiPlugin["publish"]>[0][] = [];
  readonly staged: Parameters<CsiPlugin["stage"]>[0][] = [];
  readonly expanded: Parameters<CsiPlugin["expand"]>[0][] = [];
  readonly measured: string[] = [];
  can: ReadonlySet<Rpc> = new Set();
  publishError: Error | undefined;
  unpublishError: Error | undefined;
  stageError: Error | undefined;
  unstageError: Error | undefined;
  expandError: Error | undefined;
  /** It takes as long as this to mount, or to take back. */
  publishing: Promise<void> = Promise.resolve();
  unpublishing: Promise<void> = Promise.resolve();
  staging: Promise<void> = Promise.resolve();
  unstaging: Promise<void> = Promise.resolve();
  expanding: Promise<void> = Promise.resolve();
  /** It says that it has mounted, and there is nothing. */
  lies = false;
  /** Of the devices that it publishes, by volume. Default: the volume's id. */
  readonly numbers = new Map<string, string>();
  usage: Awaited<ReturnType<CsiPlugin["stats"]>>["usage"] = [];

  info = () => Promise.resolve({ nodeId: "h", maxVolumesPerNode: 0n });
  capabilities = () => Promise.resolve(this.can);

  async stage(request: Parameters<CsiPlugin["stage"]>[0]) {
    this.asked.push(`stage ${request.volumeId}`);
    this.staged.push(request);
    await this.staging;
    if (this.stageError !== undefined) throw this.stageError;
    writeFileSync(join(request.stagingTargetPath!, "staged"), "");
  }

  async unstage({ volumeId, stagingTargetPath }: { volumeId: string; stagingTargetPath: string }) {
    this.asked.push(`unstage ${volumeId}`);
    await this.unstaging;
    if (this.unstageError !== undefined) throw this.unstageError;
    rmSync(join(stagingTargetPath, "staged"), { force: true });
  }

  async expand(request: Parameters<CsiPlugin["expand"]>[0]) {
    this.asked.push(`expand ${request.volumeId}`);
    this.expanded.push(request);
    await this.expanding;
    if (this.expandError !== undefined) throw this.expandError;
  }

  async stats({ volumeId, volumePath }: { volumeId: string; volumePath: string }) {
    this.asked.push(`stats ${volumeId}`);
    this.measured.push(volumePath);
    return await Promise.resolve({ usage: this.usage });
  }

  async publish(request: Parameters<CsiPlugin["publish"]>[0]) {
    this.asked.push(`publish ${nameOf(request.targetPath!)}`);
    this.requests.push(request);
    await this.publishing;
    if (this.publishError !== undefined) throw this.publishError;
    if (this.lies) return;
    if (request.volumeCapability?.accessType?.case === "block") {
      // To the backend of these tests a file with a device's numbers is one.
      writeFileSync(request.targetPath!, "");
      devices.set(request.targetPath!, this.numbers.get(request.volumeId!) ?? request.volumeId!);
      return;
    }
    mkdirSync(request.targetPath!, { recursive: true });
    writeFileSync(join(request.targetPath!, "told"), "");
  }

  async unpublish({ targetPath }: { targetPath: string }) {
    this.asked.push(`unpublish ${nameOf(targetPath)}`);
    await this.unpublishing;
    if (this.unpublishError !== undefined) throw this.unpublishError;
    rmSync(targetPath, { recursive: true, force: true });
    devices.delete(targetPath);
  }

  close(): void {}
}

/** Numbers of what is published as a block device, by path. */
const devices = new Map<string, string>();

/** Of a mount and of a device alike. */
const nameOf = (target: string): string => target.split("/").at(-2)!;

/** Which paths are held open, as by a loop device: what a backend that is killed leaves as it is. */
export class FakeDevices implements BlockDevices {
  readonly held = new Set<string>();
  readonly journal: string[] = [];
  holdError: Error | undefined;
  letGoError: Error | undefined;

  numbers(path: string): string {
    const numbers = devices.get(path);
    if (numbers === undefined || !existsSync(path)) throw new Error(`${path} is a folder, and no block device`);
    return numbers;
  }

  hold(path: string): Promise<void> {
    this.journal.push("hold");
    if (this.holdError !== undefined) return Promise.reject(this.holdError);
    this.held.add(path);
    return Promise.resolve();
  }

  letGo(path: string): Promise<void> {
    this.journal.push("let go");
    if (this.letGoError !== undefined) return Promise.reject(this.letGoError);
    this.held.delete(path);
    return Promise.resolve();
  }
}

export async function worldWith(...drivers: string[]) {
  const driver = new FakeDriver();
  const blockDevices = new FakeDevices();
  const world = await World.create((made) => (made.plugins = { connectCsi: () => driver, blockDevices }));
  const register = async (name = DRIVER) => await world.csi.register(name, `/run/${name}.sock`);
  const forgets = await Promise.all(drivers.map((name) => register(name)));
  const root = () => join(world.stateDir, "plugins");
  return { world, driver, blockDevices, register, forget: () => forgets.forEach((forget) => forget()), root };
}
