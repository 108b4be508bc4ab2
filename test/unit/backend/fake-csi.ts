/** A CSI driver without a socket, whose mounts are folders with a file, and a backend that knows it. */
import { mkdirSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { CsiPlugin } from "../../../providers/local/plugins/csi-plugin.ts";
import type { NodeServiceCapability_RPC_Type as Rpc } from "../../../src/csi/api.gen.js";
import { World } from "./world.ts";

export const DRIVER = "csi.example.com";

export class FakeDriver implements CsiPlugin {
  readonly asked: string[] = [];
  readonly requests: Parameters<CsiPlugin["publish"]>[0][] = [];
  readonly staged: Parameters<CsiPlugin["stage"]>[0][] = [];
  readonly expanded: Parameters<CsiPlugin["expand"]>[0][] = [];
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
  /** It says that it has mounted, and there is nothing. */
  lies = false;
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
    if (this.expandError !== undefined) throw this.expandError;
    await Promise.resolve();
  }

  async stats({ volumeId }: { volumeId: string }) {
    this.asked.push(`stats ${volumeId}`);
    return await Promise.resolve({ usage: this.usage });
  }

  async publish(request: Parameters<CsiPlugin["publish"]>[0]) {
    this.asked.push(`publish ${nameOf(request.targetPath!)}`);
    this.requests.push(request);
    await this.publishing;
    if (this.publishError !== undefined) throw this.publishError;
    if (this.lies) return;
    mkdirSync(request.targetPath!, { recursive: true });
    writeFileSync(join(request.targetPath!, "told"), "");
  }

  async unpublish({ targetPath }: { targetPath: string }) {
    this.asked.push(`unpublish ${nameOf(targetPath)}`);
    await this.unpublishing;
    if (this.unpublishError !== undefined) throw this.unpublishError;
    rmSync(targetPath, { recursive: true, force: true });
  }

  close(): void {}
}

const nameOf = (target: string): string => target.split("/").at(-2)!;

export async function worldWith(...drivers: string[]) {
  const driver = new FakeDriver();
  const world = await World.create((made) => (made.plugins = { connectCsi: () => driver }));
  const register = async (name = DRIVER) => await world.csi.register(name, `/run/${name}.sock`);
  const forgets = await Promise.all(drivers.map((name) => register(name)));
  const root = () => join(world.stateDir, "plugins");
  return { world, driver, register, forget: () => forgets.forEach((forget) => forget()), root };
}
