/**
 * Which of the reference backend's engines a suite of containers runs on. `VMLET_TEST_ENGINE=cri` chooses it for every
 * suite that can run on more than one; without it each has its own.
 */
import { join } from "node:path";
import { Cgroup } from "../../providers/local/bundle/cgroup.ts";
import type { Engine } from "../../providers/local/engine.ts";
import { OwnContainerd } from "../../providers/local/engines/cri/own-containerd.ts";
import { createEngine } from "../../providers/local/engines/index.ts";
import { machineHash } from "../../providers/local/host/machine-hash.ts";
import { unmountBelow } from "../../providers/local/host/mounts.ts";
import { HostNetwork } from "../../providers/local/network/network.ts";
import type { Capability } from "../../src/provider/capabilities.ts";
import { silentLogger } from "../../src/telemetry/logger.ts";
import { systemClock } from "../../src/util/clock.ts";
import { missingForContainerd } from "./containerd.ts";

const engineNames = ["oci", "cri", "vm"] as const;

/** Those that run images. */
export type ContainerEngine = (typeof engineNames)[number];

/** The one that the environment asks for, else the suite's own. */
export function chosenEngine<Fallback extends string>(fallback: Fallback): ContainerEngine | Fallback {
  const asked = process.env["VMLET_TEST_ENGINE"] ?? "";
  return asked === "" ? fallback : parseEngine(asked);
}

/** @throws Error when no such engine runs images */
export function parseEngine(name: string): ContainerEngine {
  const found = engineNames.find((each) => each === name);
  if (found === undefined) throw new Error(`there is no engine ${name} that runs images: ${engineNames.join(", ")}`);
  return found;
}

export interface ContainerEngineOptions {
  stateDir: string;
  network?: { bridge?: string | undefined; cidr?: string | undefined } | undefined;
  images?: { insecureRegistries: string[] } | undefined;
}

/** An engine inside this process. */
export function createContainerEngine(
  type: ContainerEngine,
  { stateDir, network, images }: ContainerEngineOptions,
): Engine {
  return createEngine({ type, network, images }, { stateDir, clock: systemClock, logger: silentLogger });
}

/** What it can do, and what this host lacks for it, by name. Makes ready what a test may make ready by itself. */
export async function engineOnThisHost(
  name: ContainerEngine,
): Promise<{ capabilities: readonly Capability[]; missing: string[] }> {
  const unbuilt = name === "cri" ? await missingForContainerd() : undefined;
  const engine = createContainerEngine(name, { stateDir: "/nonexistent" });
  const problems = (await engine.check()).filter(({ fatal }) => fatal).map(({ problem }) => problem);
  return { capabilities: engine.capabilities, missing: unbuilt === undefined ? problems : [unbuilt] };
}

/** Takes away what a backend that has ended, or was killed, has left on this host outside of its folder. */
export async function removeEngine(
  type: ContainerEngine,
  { stateDir, network = {} }: ContainerEngineOptions,
): Promise<void> {
  const machines = new Cgroup(`/vmlet-${machineHash(stateDir)}`);
  await machines.kill(systemClock);
  if (type === "cri") {
    const unused = { bridge: "", range: () => undefined };
    await new OwnContainerd({ dir: join(stateDir, "cri"), clock: systemClock, ...unused }).remove();
  }
  await unmountBelow(stateDir);
  await machines.remove();
  await new HostNetwork({ dir: join(stateDir, "network"), ...network }).remove();
}
