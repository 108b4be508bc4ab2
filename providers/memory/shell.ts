/**
 * Just enough of sh that demos, examples and the conformance kit behave as in a real machine: `;`, `&&`, quotes,
 * variables, `>`, `trap`, `while true`, and the commands below. It is not a shell: an unknown command answers 127.
 */
import { OutOfMemory, type Program, type ProgramIo } from "./program.ts";

/** The program for a command line, or undefined for an unknown command. */
export function shellProgram(argv: readonly string[]): Program | undefined {
  const name = argv[0]?.split("/").at(-1) ?? "";
  if ((name === "sh" || name === "bash" || name === "ash") && argv[1] === "-c") {
    return (io) => new Shell(io).run(argv[2] ?? "");
  }
  if (!BUILTINS.has(name)) return undefined;
  return (io) => new Shell(io).runWords([name, ...argv.slice(1)]);
}

class ExitSignal extends Error {
  readonly exitCode: number;
  constructor(exitCode: number) {
    super("exit");
    this.exitCode = exitCode;
  }
}

type Step = { kind: "simple"; text: string; and: boolean } | { kind: "loop"; body: Step[]; and: boolean };

const LONG_MS = 2_000_000_000;

class Shell {
  readonly #io: ProgramIo;
  readonly #variables: Record<string, string>;
  #killed = false;
  #wake: (() => void) | undefined;
  #trap: string | undefined;
  #trapped = false;
  #input: AsyncIterator<Buffer> | undefined;
  #inputRest = Buffer.alloc(0);

  constructor(io: ProgramIo) {
    this.#io = io;
    this.#variables = { ...io.env };
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
      if (this.#trapped) {
        this.#trapped = false;
        await this.#runSteps(parseScript(this.#trap ?? ""));
      }
    }
    return code;
  }

  #simple(text: string): Promise<number> {
    const arrow = text.lastIndexOf(">");
    const target = arrow === -1 ? undefined : /^(&2|[^\s'"&]+)$/.exec(text.slice(arrow + 1).trim())?.[1];
    const words = splitWords(target === undefined ? text : text.slice(0, arrow).replace(/1$/, ""), this.#variables);
    if (words.length === 0) return Promise.resolve(0);
    return this.#command(words, target ?? "stdout");
  }

  /** @param target "stdout", "&2" or a file's path */
  async #command(words: string[], target: string): Promise<number> {
    const { surroundings } = this.#io;
    let written = "";
    const print = async (text: string | Buffer) => {
      const bytes = typeof text === "string" ? Buffer.from(text) : text;
      if (target === "stdout") await this.#io.write("stdout", bytes);
      else if (target === "&2" || target === "/dev/stderr") await this.#io.write("stderr", bytes);
      else if (target !== "/dev/null") surroundings.writeFile(target, (written += bytes.toString()));
    };
    const [name, ...args] = words as [string, ...string[]];
    switch (name) {
      case "echo": {
        const plain = args[0] === "-n" ? args.slice(1) : args;
        await print(plain.join(" ") + (args[0] === "-n" ? "" : "\n"));
        return 0;
      }
      case "printf":
        await print((args[0] ?? "").replaceAll("\\n", "\n").replace("%s", args[1] ?? ""));
        return 0;
      case "sleep":
        await this.#sleep(args[0] === "infinity" ? LONG_MS : Number(args[0] ?? 0) * 1000);
        return 0;
      case "wait":
      case "pause":
        await this.#sleep(LONG_MS);
        return 0;
      case "exit":
        throw new ExitSignal(Number(args[0] ?? 0) & 0xff);
      case "true":
      case ":":
        return 0;
      case "false":
        return 1;
      case "pwd":
        await print(`${surroundings.folder}\n`);
        return 0;
      case "id":
        await print(`${surroundings.user}\n`);
        return 0;
      case "hostname":
        await print(`${surroundings.hostname}\n`);
        return 0;
      case "cat":
        if (args[0] !== undefined) {
          const content = surroundings.readFile(args[0]);
          if (content === undefined) return 1;
          await print(content);
          return 0;
        }
        for (let chunk = await this.#read(); chunk !== undefined; chunk = await this.#read()) await print(chunk);
        return 0;
      case "head":
        await this.#head(args, print);
        return 0;
      case "tail":
        // Of what has no end it has to keep everything.
        if (args.includes("/dev/zero")) throw new OutOfMemory();
        return 0;
      case "read":
        return this.#readLine(args[0] ?? "REPLY");
      case "kill":
        throw new ExitSignal(args[0] === "-9" || args[0] === "-KILL" ? 137 : 143);
      case "trap": {
        const body = args[0] ?? "";
        this.#trap = body;
        this.#io.onStop(() => {
          if (body === "") return;
          this.#trapped = true;
          this.#wake?.();
        });
        return 0;
      }
      case "stty": {
        const { rows, columns } = this.#io.size();
        await print(`${rows} ${columns}\n`);
        return 0;
      }
      case "env":
        await print(
          Object.entries(this.#variables)
            .map(([key, value]) => `${key}=${value}\n`)
            .join(""),
        );
        return 0;
      default:
        await this.#io.write("stderr", Buffer.from(`sh: ${name}: not found\n`));
        return 127;
    }
  }

  async #head(args: string[], print: (bytes: Buffer) => Promise<void>): Promise<void> {
    const count = Number(args[1] ?? 0);
    const block = Buffer.alloc(65_536);
    for (let left = count; left > 0 && !this.#killed; left -= block.length) {
      await print(left < block.length ? block.subarray(0, left) : block);
    }
  }

  #sleep(ms: number): Promise<void> {
    return new Promise((resolve) => {
      if (this.#killed || this.#trapped) {
        resolve();
        return;
      }
      const cancel = this.#io.clock.after(Math.min(ms, LONG_MS), () => {
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

  async #read(): Promise<Buffer | undefined> {
    if (this.#inputRest.length > 0) {
      const rest = this.#inputRest;
      this.#inputRest = Buffer.alloc(0);
      return rest;
    }
    this.#input ??= this.#io.stdin[Symbol.asyncIterator]();
    const next = await this.#input.next();
    return next.done === true ? undefined : next.value;
  }

  async #readLine(variable: string): Promise<number> {
    let line = Buffer.alloc(0);
    for (;;) {
      const chunk = await this.#read();
      if (chunk === undefined) return 1;
      line = Buffer.concat([line, chunk]);
      const end = line.indexOf(10);
      if (end < 0) continue;
      this.#inputRest = line.subarray(end + 1);
      this.#variables[variable] = line.subarray(0, end).toString();
      return 0;
    }
  }
}

const BUILTINS = new Set([
  "echo",
  "printf",
  "sleep",
  "pause",
  "true",
  "false",
  "cat",
  "head",
  "env",
  "stty",
  "pwd",
  "id",
  "hostname",
]);

/** Splits at `;`, newlines and `&&` outside quotes; `while true; do … done` becomes one step. */
function parseScript(script: string): Step[] {
  const steps: Step[] = [];
  const stack: Step[][] = [steps];
  let and = false;
  for (const { text, separator } of separate(script)) {
    let rest = text.trim();
    const current = stack.at(-1)!;
    if (/^while\s+(true|:)$/.test(rest)) {
      const loop: Step = { kind: "loop", body: [], and };
      current.push(loop);
      stack.push(loop.body);
      rest = "";
    } else if (rest === "done") {
      stack.pop();
      rest = "";
    }
    rest = rest.replace(/^do\s+/, "");
    if (rest !== "" && rest !== "do") stack.at(-1)!.push({ kind: "simple", text: rest, and });
    and = separator === "&&";
  }
  return steps;
}

function* separate(script: string): Generator<{ text: string; separator: string }> {
  let quote = "";
  let start = 0;
  for (let i = 0; i < script.length; i++) {
    const char = script[i]!;
    if (quote !== "") {
      if (char === quote) quote = "";
    } else if (char === "'" || char === '"') quote = char;
    else if (char === "\\") i++;
    else if (char === ";" || char === "\n") {
      yield { text: script.slice(start, i), separator: ";" };
      start = i + 1;
    } else if (char === "&" && script[i + 1] === "&") {
      yield { text: script.slice(start, i), separator: "&&" };
      start = i + 2;
      i++;
    } else if (char === "&" && script[i - 1] !== ">") {
      // In the background: what follows is `wait`, and until then nothing can be told apart.
      yield { text: ":", separator: ";" };
      start = i + 1;
    }
  }
  yield { text: script.slice(start), separator: ";" };
}

function splitWords(text: string, variables: Readonly<Record<string, string>>): string[] {
  const words: string[] = [];
  for (const [word] of text.matchAll(/(?:'[^']*'|"[^"]*"|\\.|[^\s'"\\])+/g)) {
    words.push(
      word.replaceAll(
        /'([^']*)'|"([^"]*)"|\\(.)|([^'"\\]+)/g,
        (_all, single?: string, double?: string, escaped?: string, bare?: string) => {
          if (single !== undefined) return single;
          if (escaped !== undefined) return escaped;
          return expand(double ?? bare ?? "", variables);
        },
      ),
    );
  }
  return words;
}

function expand(text: string, variables: Readonly<Record<string, string>>): string {
  return text.replaceAll(/\$(?:\{(\w+)\}|(\w+)|\$)/g, (_all, braced?: string, bare?: string) => {
    const name = braced ?? bare;
    return name === undefined ? "1" : (variables[name] ?? "");
  });
}
