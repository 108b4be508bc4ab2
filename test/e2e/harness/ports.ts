import { randomInt } from "node:crypto";
import { readFileSync } from "node:fs";
import { createServer } from "node:net";

/** Above the well-known ports of Kubernetes. */
const lowest = 10_300;
const taken = new Set<number>();

/**
 * Free loopback TCP ports, no two of them equal in one process. They lie below the range that the system takes the local
 * ports of outgoing connections from: one of those could otherwise be given to a connection before it is listened on, and
 * a server that is killed and started again could find its port in use.
 *
 * @throws Error when no free one is found
 */
export async function freePorts(count: number): Promise<number[]> {
  const ports: number[] = [];
  for (let tries = 0; ports.length < count; tries++) {
    if (tries > 1000) throw new Error(`no ${count} free TCP ports between ${lowest} and ${ephemeralStart()}`);
    const port = randomInt(lowest, ephemeralStart());
    if (taken.has(port) || !(await isFree(port))) continue;
    taken.add(port);
    ports.push(port);
  }
  return ports;
}

export async function freePort(): Promise<number> {
  const [port] = await freePorts(1);
  return port!;
}

/** ip(7), ip_local_port_range: the first port for outgoing connections. */
function ephemeralStart(): number {
  const start = Number(readFileSync("/proc/sys/net/ipv4/ip_local_port_range", "utf8").trim().split(/\s+/)[0]);
  return Math.max(start, lowest + 2000);
}

async function isFree(port: number): Promise<boolean> {
  const server = createServer();
  const listening = await new Promise<boolean>((resolve) => {
    server.once("error", () => resolve(false)).listen(port, "0.0.0.0", () => resolve(true));
  });
  if (listening) await new Promise((resolve) => server.close(resolve));
  return listening;
}
