/** Which ports of this host lead to which machine: in nft's map, held by our sockets, remembered for repairs. */
import type { ContainerPort } from "../../../src/provider/kit/index.ts";
import { findTool, run } from "../host/command.ts";
import { inUseByMachine, PortHolders } from "./host-ports.ts";
import { hostPortRule } from "./rules.ts";

/** `tcp . 8080`, and `10.99.0.2 . 80`. */
type Forward = readonly [key: string, target: string];

export class PortForwards {
  readonly #table: string;
  readonly #holders = new PortHolders();
  /** What machines have through this process. */
  readonly #own = new Map<string, string>();

  /** @param table of nftables, family inet */
  constructor(table: string) {
    this.#table = table;
  }

  /**
   * Forwards the host ports that a machine's containers ask for. Repeating it is safe.
   * @throws ProviderError conflict when another machine, or this host itself, has one of them: then none is forwarded
   */
  async open(machineId: string, address: string, ports: readonly ContainerPort[]): Promise<void> {
    const asked = ports.flatMap((port) =>
      port.host_port === undefined ? [] : [{ ...port, host_port: port.host_port }],
    );
    if (asked.length === 0) return;
    const current = await this.#inPlace();
    // A former backend's machine may not have been found again yet: its ports are in the rules, and no socket of ours
    // holds them.
    const foreign = asked.find(({ protocol, host_port }) => {
      const target = current.get(`${protocol} . ${host_port}`);
      return target !== undefined && !target.startsWith(`${address} . `);
    });
    if (foreign !== undefined) throw inUseByMachine(foreign);
    try {
      await this.#holders.take(machineId, asked);
    } catch (thrown) {
      // A program that has one now may have taken it while no backend held it: then it keeps the port, and the machine
      // loses it.
      await this.close(machineId, address);
      throw thrown;
    }
    const wanted = asked.map(({ protocol, host_port, port }): Forward => [
      `${protocol} . ${host_port}`,
      `${address} . ${port}`,
    ]);
    for (const [key, target] of wanted) this.#own.set(key, target);
    await this.#tell(
      "add",
      wanted.filter(([key, target]) => current.get(key) !== target),
    );
  }

  /** Takes all that leads to a machine away. */
  async close(machineId: string, address: string): Promise<void> {
    this.release(machineId);
    const isTheirs = ([, target]: Forward) => target.startsWith(`${address} . `);
    for (const [key] of [...this.#own].filter(isTheirs)) this.#own.delete(key);
    await this.#tell("delete", [...(await this.#inPlace())].filter(isTheirs));
  }

  /** Gives the sockets of a machine's ports back. */
  release(machineId: string): void {
    this.#holders.release(machineId);
  }

  /** Gives all sockets back; what nft was told stays. */
  releaseAll(): void {
    this.#holders.close();
  }

  /** A port that another program took out of the map; undefined when none is missing. */
  async missing(): Promise<string | undefined> {
    return (await this.#lost())[0]?.[0];
  }

  /** Puts back what another program took out of the map. */
  async restore(): Promise<void> {
    await this.#tell("add", await this.#lost());
  }

  async #lost(): Promise<Forward[]> {
    const current = await this.#inPlace();
    return [...this.#own].filter(([key]) => !current.has(key));
  }

  async #inPlace(): Promise<Map<string, string>> {
    const { stdout } = await run(findTool("nft") ?? "nft", ["list", "map", "inet", this.#table, "host_ports"]);
    const elements = stdout.toString("utf8").matchAll(/\b(\w+) \. (\d+) : ([\d.]+) \. (\d+)/g);
    return new Map(
      [...elements].map(([, protocol, hostPort, address, port]) => [
        `${protocol} . ${hostPort}`,
        `${address} . ${port}`,
      ]),
    );
  }

  async #tell(verb: "add" | "delete", forwards: readonly Forward[]): Promise<void> {
    if (forwards.length === 0) return;
    const input = forwards.map(([key, target]) => hostPortRule(verb, this.#table, key, target)).join("");
    await run(findTool("nft") ?? "nft", ["-f", "-"], { input });
  }
}
