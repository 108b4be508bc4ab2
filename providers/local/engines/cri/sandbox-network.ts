/**
 * A machine's place on a bridge of ours: what the runtime's network plugin has made is held to our rules. Nothing of a
 * tenant's begins before they are in force; what only prepares it need not wait.
 */
import { Once } from "../../../../src/provider/kit/index.ts";
import type { MachineHome } from "../../engine.ts";
import { containerPorts } from "../../network/host-ports.ts";
import { isLink } from "../../network/links.ts";
import type { CriContext } from "./context.ts";
import { interfacesOf, networkNamespace, sandboxInfo } from "./sandbox-info.ts";

interface RuntimeWord {
  address: string;
  /** What the runtime says beyond CRI. */
  info: Record<string, string>;
}

/** Undefined where the machine's network is not ours. */
function networkOf({ network }: Pick<CriContext, "network">, { spec }: MachineHome): CriContext["network"] {
  return spec.host?.network === true ? undefined : network;
}

/**
 * Begins to bring the rules of a new sandbox into force, and waits for that where its host ports may be refused.
 * @returns to be waited for before anything begins; what has failed is tried again by who asks then
 */
export async function joinNetwork(
  context: CriContext,
  home: MachineHome,
  word: RuntimeWord,
): Promise<Once<void> | undefined> {
  const network = networkOf(context, home);
  if (network === undefined) return undefined;
  const made = madeBy(word);
  while (network.moves.isMoving) await network.moves.untilStill();
  // In the same turn as `adopt` begins, from when on the range does not move.
  network.range.assertHas(made.address);
  const ports = containerPorts(home.spec);
  const joined = new Once(async () => {
    await network.adopt(home.id, made);
    await network.limits.hold(home.id, home.spec.bandwidth);
    await network.openHostPorts(home.id, ports);
  });
  const begun = joined.get();
  if (ports.some(({ host_port }) => host_port !== undefined)) await begun;
  else begun.catch(() => undefined);
  return joined;
}

/** Whether a former backend's sandbox has its interface still: as the plugin has made it, or as we have named it. */
export async function hasNetwork(context: CriContext, home: MachineHome, word: RuntimeWord): Promise<boolean> {
  const network = networkOf(context, home);
  if (network === undefined || (await network.find(home.id)) !== undefined) return true;
  // In this order: an `ip` of the former backend's may be about to give it its name.
  return isLink(madeBy(word).link) || (await network.find(home.id)) !== undefined;
}

/**
 * As `joinNetwork` for a sandbox of a former backend's, which may have been killed before the rules were in force.
 * @param hasBegun a container has begun in it: then they were
 */
export async function rejoinNetwork(
  context: CriContext,
  home: MachineHome,
  word: RuntimeWord,
  hasBegun: boolean,
): Promise<void> {
  const network = networkOf(context, home);
  if (network === undefined) return;
  if (hasBegun) await network.ensure();
  else await network.adopt(home.id, madeBy(word));
  await network.limits.hold(home.id, home.spec.bandwidth);
  // They are gone when another program has flushed this host's rules meanwhile.
  await network
    .openHostPorts(home.id, containerPorts(home.spec))
    .catch((thrown: unknown) =>
      context.logger.warn({ machine: home.id, err: thrown }, "Cannot open the machine's host ports again"),
    );
}

function madeBy({ address, info }: RuntimeWord) {
  const made = sandboxInfo(info);
  return { address, ...interfacesOf(made), netns: () => networkNamespace(made) };
}
