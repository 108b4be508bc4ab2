/**
 * The backend inside of a VM serves one machine: the first that it is told of, for as long as the VM lives. Whatever
 * comes later for another is refused, also after a restart, and when that machine is deleted.
 */
import { closeSync, fsyncSync, openSync, readFileSync, writeSync } from "node:fs";
import { join } from "node:path";
import {
  type CallOptions,
  type MachineSpec,
  type Provider,
  ProviderError,
  type Volume,
} from "../../src/provider/kit/index.ts";

/** @param stateDir where it is written down which machine that is, before the provider is told of it */
export function oneMachine<P extends Provider>(provider: P, stateDir: string): P {
  const file = join(stateDir, "machine");
  const createPod = async (id: string, spec: MachineSpec, options: CallOptions) => {
    const held = claim(file, id);
    if (held !== id) throw new ProviderError("quota", `this VM is that of machine ${held}, and of no other`);
    return await provider.createPod(id, inThisVm(spec), options);
  };
  const getInfo = async (options: CallOptions) => {
    const info = await provider.getInfo(options);
    const hasPaths = info.capabilities.includes("volumes.host");
    return hasPaths ? { ...info, capabilities: [...info.capabilities, "volumes.host_path"] } : info;
  };
  const own = { createPod, getInfo };
  return new Proxy(provider, {
    get: (target, key) => {
      if (Object.hasOwn(own, key)) return own[key as keyof typeof own];
      const value: unknown = Reflect.get(target, key, target);
      return typeof value === "function" ? (value.bind(target) as unknown) : value;
    },
  });
}

/** To the backend inside, the machine itself is its host. */
function inThisVm(spec: MachineSpec): MachineSpec {
  const volumes = spec.volumes?.map((each) =>
    each.type === "host_path" ? ({ ...each, type: "host" } as Extract<Volume, { type: "host" }>) : each,
  );
  return volumes === undefined ? spec : { ...spec, volumes };
}

/** @returns whose it is now */
function claim(file: string, id: string): string {
  let written: number;
  try {
    written = openSync(file, "wx", 0o600);
  } catch (thrown) {
    if ((thrown as NodeJS.ErrnoException).code !== "EEXIST") throw thrown;
    // Empty: this very claim was cut off, or that of a machine that was never told.
    return readFileSync(file, "utf8") || overwrite(file, id);
  }
  closeSync(written);
  return overwrite(file, id);
}

function overwrite(file: string, id: string): string {
  const written = openSync(file, "r+");
  try {
    writeSync(written, id, 0);
    fsyncSync(written);
  } finally {
    closeSync(written);
  }
  return id;
}
