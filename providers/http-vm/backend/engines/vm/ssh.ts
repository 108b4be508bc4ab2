/**
 * The way into a guest: OpenSSH's client with one connection per VM that all sessions share (ControlMaster). The guest is
 * not trusted: nothing is forwarded to it, its key is pinned, for containers' streams and forwarded ports only; the rest is control.ts.
 */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { rm } from "node:fs/promises";
import { findTool, run } from "../../host/command.ts";
import { quote } from "./control.ts";

/** Out of the way of what containers listen on: they share the guest's network. */
export const SSH_PORT = 65_022;

export interface GuestAddress {
  address: string;
  /** Private key of this backend. */
  identityFile: string;
  /** The guest's public key, as known_hosts has it. */
  knownHosts: string;
  /** Socket of the shared connection. */
  controlPath: string;
}

export class GuestShell {
  readonly #guest: GuestAddress;
  #connecting: Promise<void> | undefined;
  #connected = false;

  constructor(guest: GuestAddress) {
    this.#guest = guest;
  }

  /** Arguments of a local command that runs `vmlet VERB ARGS` in the guest with its own streams and exit code. */
  command(args: readonly string[], options: { tty?: boolean } = {}): string[] {
    const remote = `exec vmlet ${args.map(quote).join(" ")}`;
    return [ssh(), ...this.#base(), options.tty === true ? "-tt" : "-T", this.#guest.address, remote];
  }

  /** Arguments of a local command whose streams are a TCP connection to the guest's loopback. */
  forwardCommand(port: number): string[] {
    return [ssh(), ...this.#base(), "-W", `127.0.0.1:${port}`, this.#guest.address];
  }

  /** Makes the shared connection, unless it is there. It outlives this process. */
  async connect(signal?: AbortSignal): Promise<void> {
    if (this.#connected && existsSync(this.#guest.controlPath)) return;
    // Whoever comes meanwhile waits for the same one: of two, one would be nobody's.
    this.#connecting ??= this.#start(signal).finally(() => (this.#connecting = undefined));
    await this.#connecting;
    this.#connected = true;
  }

  async #start(signal: AbortSignal | undefined): Promise<void> {
    const alive = await run(ssh(), [...this.#base(), "-O", "check", this.#guest.address]).then(
      () => true,
      () => false,
    );
    if (alive) return;
    await rm(this.#guest.controlPath, { force: true });
    // With a terminal, though nobody uses it: only then does OpenSSH send small packets at once, which saves each session
    // about a tenth of a second.
    const args = [
      ...this.#base(),
      "-M",
      "-f",
      "-tt",
      "-o",
      "ControlPersist=yes",
      this.#guest.address,
      "exec sleep 2147483647",
    ];
    const child = spawn(ssh(), args, { stdio: "ignore", ...(signal === undefined ? {} : { signal }) });
    const [code] = (await once(child, "exit")) as [number | null];
    if (code !== 0) throw new Error(`cannot reach the guest at ${this.#guest.address}: ssh ended with ${code}`);
  }

  async disconnect(): Promise<void> {
    if (existsSync(this.#guest.controlPath))
      await run(ssh(), [...this.#base(), "-O", "exit", this.#guest.address]).catch(() => undefined);
    await rm(this.#guest.controlPath, { force: true });
  }

  #base(): string[] {
    const { identityFile, knownHosts, controlPath } = this.#guest;
    const options = {
      BatchMode: "yes",
      ControlPath: controlPath,
      ForwardAgent: "no",
      ForwardX11: "no",
      GlobalKnownHostsFile: "/dev/null",
      IdentitiesOnly: "yes",
      LogLevel: "ERROR",
      Port: String(SSH_PORT),
      PreferredAuthentications: "publickey",
      ServerAliveCountMax: "3",
      ServerAliveInterval: "20",
      StrictHostKeyChecking: "yes",
      UpdateHostKeys: "no",
      User: "root",
      UserKnownHostsFile: knownHosts,
    };
    return [
      "-F",
      "/dev/null",
      "-i",
      identityFile,
      ...Object.entries(options).flatMap(([name, value]) => ["-o", `${name}=${value}`]),
    ];
  }
}

function ssh(): string {
  return findTool("ssh") ?? "ssh";
}
