/** The commands of the memory provider's sh: what they do with their arguments, and their exit codes. */
import { OutOfMemory, type ProgramIo } from "./program.ts";

/** Ends the whole script. */
export class ExitSignal extends Error {
  readonly exitCode: number;
  constructor(exitCode: number) {
    super("exit");
    this.exitCode = exitCode;
  }
}

/** What a command finds around it. */
export interface Session {
  readonly io: ProgramIo;
  readonly variables: Record<string, string>;
  readonly isKilled: boolean;
  /** Ends early when the script is stopped or killed. */
  sleep(ms: number): Promise<void>;
  /** What comes next on stdin; undefined at its end. */
  read(): Promise<Buffer | undefined>;
  /** Gives back what was read and is not wanted: it comes next again. */
  unread(bytes: Buffer): void;
  /** Runs `script` at these signals, in place of the end. */
  trap(script: string, signals: readonly string[]): void;
}

interface Call {
  args: readonly string[];
  /** Writes to where the command's output goes. */
  print: (text: string | Buffer) => Promise<void>;
  session: Session;
}

/** @returns the exit code. @throws ExitSignal */
type Command = (call: Call) => number | Promise<number>;

const LONG_MS = 2_000_000_000;

const succeed: Command = () => 0;

/** Prints a line of what it finds. */
const show =
  (text: (session: Session) => string | number): Command =>
  async ({ print, session }) => {
    await print(`${text(session)}\n`);
    return 0;
  };

const waitForever: Command = async ({ session }) => {
  await session.sleep(LONG_MS);
  return 0;
};

const echo: Command = async ({ args, print }) => {
  const [first, ...rest] = args;
  await (first === "-n" ? print(rest.join(" ")) : print(`${args.join(" ")}\n`));
  return 0;
};

/** The format is used again until no argument is left. */
const printf: Command = async ({ args: [format = "", ...values], print }) => {
  do {
    let text = "";
    for (const [, escape, octal, zeros, string, char = ""] of format.matchAll(
      /\\([ntr\\])|\\([0-7]{1,3})|%0(\d{1,6})d|(%s)|([\s\S])/gu,
    )) {
      if (escape !== undefined) text += { n: "\n", t: "\t", r: "\r", "\\": "\\" }[escape];
      // Not more than one byte: what is no text must come through.
      else if (octal !== undefined) text += String.fromCharCode(Number.parseInt(octal, 8) & 0xff);
      else if (zeros !== undefined) text += (values.shift() ?? "0").padStart(Number(zeros), "0");
      else if (string !== undefined) text += bytesOf(values.shift() ?? "");
      else text += bytesOf(char);
    }
    await print(Buffer.from(text, "latin1"));
  } while (values.length > 0 && /%/.test(format));
  return 0;
};

/** UTF-8, one character for each byte. */
const bytesOf = (text: string) => Buffer.from(text).toString("latin1");

/** Whatever it is asked for, it says the seconds. */
const date = show(({ io }) => Math.floor(io.clock.now() / 1000));

const sleep: Command = async ({ args: [seconds = "0"], session }) => {
  await session.sleep(seconds === "infinity" ? LONG_MS : Math.min(Number(seconds) * 1000, LONG_MS));
  return 0;
};

const cat: Command = async ({ args, print, session }) => {
  for (const path of args) {
    const content = session.io.surroundings.readFile(path);
    if (content === undefined) return 1;
    await print(content);
  }
  if (args.length > 0) return 0;
  for (let chunk = await session.read(); chunk !== undefined; chunk = await session.read()) await print(chunk);
  return 0;
};

/** `head -c COUNT` of /dev/zero. */
const head: Command = async ({ args: [, count = "0"], print, session }) => {
  const block = Buffer.alloc(65_536);
  for (let left = Number(count); left > 0 && !session.isKilled; left -= block.length)
    await print(left < block.length ? block.subarray(0, left) : block);
  return 0;
};

const tail: Command = ({ args }) => {
  // Of what has no end it has to keep everything.
  if (args.includes("/dev/zero")) throw new OutOfMemory();
  return 0;
};

const env: Command = async ({ print, session }) => {
  const lines = Object.entries(session.variables).map(([key, value]) => `${key}=${value}\n`);
  await print(lines.join(""));
  return 0;
};

/** A line of stdin into a variable. */
const read: Command = async ({ args: [variable = "REPLY"], session }) => {
  let line = Buffer.alloc(0);
  for (;;) {
    const chunk = await session.read();
    if (chunk === undefined) return 1;
    line = Buffer.concat([line, chunk]);
    const end = line.indexOf(10);
    if (end < 0) continue;
    session.unread(line.subarray(end + 1));
    session.variables[variable] = line.subarray(0, end).toString();
    return 0;
  }
};

const exit: Command = ({ args: [code = "0"] }) => {
  throw new ExitSignal(Number(code) & 0xff);
};

/** The only process that it can be aimed at is its own. */
const kill: Command = ({ args: [signal] }) => {
  throw new ExitSignal(signal === "-9" || signal === "-KILL" ? 137 : 143);
};

const trap: Command = ({ args: [script = "", ...signals], session }) => {
  session.trap(script, signals);
  return 0;
};

/** Programs of their own: they can be a container's command. */
export const PROGRAMS: ReadonlyMap<string, Command> = new Map(
  Object.entries({
    cat,
    date,
    echo,
    env,
    head,
    printf,
    sleep,
    pause: waitForever,
    true: succeed,
    false: () => 1,
    rm: succeed,
    hostname: show(({ io }) => io.surroundings.hostname),
    id: show(({ io }) => io.surroundings.user),
    pwd: show(({ io }) => io.surroundings.folder),
    stty: show(({ io }) => `${io.size().rows} ${io.size().columns}`),
  }),
);

/** All that a script can use. */
export const COMMANDS: ReadonlyMap<string, Command> = new Map([
  ...PROGRAMS,
  ...Object.entries({ exit, kill, read, tail, trap, wait: waitForever, ":": succeed }),
]);
