/**
 * Just enough of sh that demos, examples and the conformance kit behave as in a real machine: `;`, `&&`, quotes,
 * variables, `>`, `trap`, `while true`, and the commands of commands.ts. It is not a shell: an unknown one answers 127.
 */
import { COMMANDS, ExitSignal, PROGRAMS, type Session } from "./commands.ts";
import { type Program, type ProgramIo, ReadOnlyFile } from "./program.ts";
import { parseScript, splitWords, type Step } from "./script.ts";

/** The program for a command line, or undefined for an unknown command. */
export function shellProgram(argv: readonly string[]): Program | undefined {
  const name = argv[0]?.split("/").at(-1) ?? "";
  if ((name === "sh" || name === "bash" || name === "ash") && argv[1] === "-c") {
    return (io) => new Shell(io).run(argv[2] ?? "");
  }
  if (!PROGRAMS.has(name)) return undefined;
  return (io) => new Shell(io).runWords([name, ...argv.slice(1)]);
}

class Shell implements Session {
  readonly io: ProgramIo;
  readonly variables: Record<string, string>;
  #killed = false;
  #wake: (() => void) | undefined;
  readonly #traps = new Map<string, string>();
  /** The script of the signal that came and was not answered yet. */
  #trapped: string | undefined;
  #input: AsyncIterator<Buffer> | undefined;
  #inputRest = Buffer.alloc(0);

  constructor(io: ProgramIo) {
    this.io = io;
    this.variables = { ...io.env };
    io.onKill(() => {
      this.#killed = true;
      this.#wake?.();
    });
  }

  run(script: string): Promise<number> {
    return this.#toExitCode(() => this.#runSteps(parseScript(script)));
  }

  runWords(words: string[]): Promise<number> {
    return this.#toExitCode(() => this.#command(words, "stdout"));
  }

  async #toExitCode(work: () => Promise<number>): Promise<number> {
    try {
      return await work();
    } catch (thrown) {
      if (thrown instanceof ExitSignal) return thrown.exitCode;
      throw thrown;
    }
  }

  async #runSteps(steps: readonly Step[]): Promise<number> {
    let code = 0;
    for (const step of steps) {
      if (step.and && code !== 0) continue;
      if (step.kind === "loop") {
        while (!this.#killed) code = await this.#runSteps(step.body);
      } else code = await this.#simple(step.text);
      if (this.#killed) throw new ExitSignal(137);
      if (this.#trapped !== undefined) {
        const script = this.#trapped;
        this.#trapped = undefined;
        await this.#runSteps(parseScript(script));
      }
    }
    return code;
  }

  #simple(text: string): Promise<number> {
    const arrow = text.lastIndexOf(">");
    const target = arrow === -1 ? undefined : /^(&2|[^\s'"&]+)$/.exec(text.slice(arrow + 1).trim())?.[1];
    const words = splitWords(target === undefined ? text : text.slice(0, arrow).replace(/1$/, ""), this.variables);
    if (words.length === 0) return Promise.resolve(0);
    return this.#command(words, target ?? "stdout");
  }

  /** @param target "stdout", "&2" or a file's path */
  async #command(words: string[], target: string): Promise<number> {
    const { surroundings } = this.io;
    let written = "";
    const print = async (text: string | Buffer) => {
      const bytes = typeof text === "string" ? Buffer.from(text) : text;
      if (target === "stdout") await this.io.write("stdout", bytes);
      else if (target === "&2" || target === "/dev/stderr") await this.io.write("stderr", bytes);
      else if (target !== "/dev/null") surroundings.writeFile(target, (written += bytes.toString()));
    };
    const [name, ...args] = words as [string, ...string[]];
    const command = COMMANDS.get(name);
    if (command !== undefined) return await this.#orRefused(name, () => command({ args, print, session: this }));
    await this.io.write("stderr", Buffer.from(`sh: ${name}: not found\n`));
    return 127;
  }

  /** A command fails that cannot write to where its output goes. */
  async #orRefused(name: string, work: () => number | Promise<number>): Promise<number> {
    try {
      return await work();
    } catch (thrown) {
      if (!(thrown instanceof ReadOnlyFile)) throw thrown;
      await this.io.write("stderr", Buffer.from(`${name}: ${thrown.message}\n`));
      return 1;
    }
  }

  // ---- what commands need

  get isKilled(): boolean {
    return this.#killed;
  }

  trap(script: string, signals: readonly string[]): void {
    for (const signal of signals) this.#traps.set(signal, script);
    this.io.onStop((signal) => {
      const answer = this.#traps.get(signal);
      if (answer === undefined) return false;
      if (answer === "") return true;
      this.#trapped = answer;
      this.#wake?.();
      return true;
    });
  }

  sleep(ms: number): Promise<void> {
    return new Promise((resolve) => {
      if (this.#killed || this.#trapped !== undefined) {
        resolve();
        return;
      }
      const cancel = this.io.clock.after(ms, () => {
        this.#wake = undefined;
        resolve();
      });
      this.#wake = () => {
        this.#wake = undefined;
        cancel();
        resolve();
      };
    });
  }

  async read(): Promise<Buffer | undefined> {
    if (this.#inputRest.length > 0) {
      const rest = this.#inputRest;
      this.#inputRest = Buffer.alloc(0);
      return rest;
    }
    this.#input ??= this.io.stdin[Symbol.asyncIterator]();
    const next = await this.#input.next();
    return next.done === true ? undefined : next.value;
  }

  unread(bytes: Buffer): void {
    this.#inputRest = Buffer.from(bytes);
  }
}
