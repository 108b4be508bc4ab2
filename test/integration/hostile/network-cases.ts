/** Somebody who has no credentials at all, but reaches the ports: connections that say nothing, as many as there may be. */
import { connect, type Socket } from "node:net";
import { once } from "node:events";
import type { HostileCase } from "./case.ts";
import type { World } from "./world.ts";

const CONNECTIONS = 1200;

export const networkCases: readonly HostileCase[] = (
  [
    ["the kubelet API", ({ ports }) => ports.kubelets.process],
    ["the health port", ({ ports }) => ports.health],
    ["the Machine API", ({ ports }) => ports.machineApi],
  ] satisfies [string, (world: World) => number][]
).map(([what, portOf]) => ({
  name: `holds ${CONNECTIONS} silent connections to ${what}`,
  async begin({ world }) {
    const sockets = await holdSilent(portOf(world));
    return {
      end() {
        for (const socket of sockets) socket.destroy();
      },
    };
  },
}));

/** Opens them from a hundred addresses of this host; one that is cut off is opened again once. */
async function holdSilent(port: number): Promise<Socket[]> {
  const sockets: Socket[] = [];
  const open = async (index: number): Promise<void> => {
    const socket = connect({ port, host: "127.0.0.1", localAddress: `127.0.1.${1 + (index % 100)}` });
    socket.on("error", () => undefined);
    sockets.push(socket);
    await Promise.race([once(socket, "connect"), once(socket, "close")]);
  };
  for (let index = 0; index < CONNECTIONS; index++) await open(index);
  return sockets;
}
