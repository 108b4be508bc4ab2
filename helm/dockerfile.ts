/** The Dockerfile as data: what `npm run image` and the tests make of it is what it says, and not a second list. */
import { readFile } from "node:fs/promises";
import { join } from "node:path";

export interface Instruction {
  name: string;
  value: string;
}

/** What a stage says of how its image is run, as an image's configuration has it. */
export interface RunConfig {
  User?: string;
  Env?: string[];
  ExposedPorts?: Record<string, object>;
  Entrypoint?: string[];
  Cmd?: string[];
}

/** What a stage puts onto its base. */
export interface StageTree {
  /** Debian's packages. */
  packages: string[];
  /** Folders of other stages, by where they go. */
  copies: { stage: string; source: string; target: string }[];
}

/** How the stage `runtime` makes programs. */
export interface StageBuild {
  /** Debian's packages that it takes. */
  packages: string[];
  /** For a shell. They read below /runtime, and write below /runtime/bin. */
  commands: string[];
  env: Record<string, string>;
}

const path = join(import.meta.dirname, "../Dockerfile");

/** @throws Error where there is no such stage */
export async function dockerStage(name: string): Promise<Instruction[]> {
  const text = (await readFile(path, "utf8")).replaceAll(/^#.*\n/gm, "");
  const stage = text.split(/^(?=FROM )/m).find((each) => /^FROM \S+ AS (\S+)\n/.exec(each)?.[1] === name);
  if (stage === undefined) throw new Error(`the Dockerfile has no stage ${name}`);
  return [...stage.matchAll(/^([A-Z]+) ((?:[^\\\n]|\\\n|\\)+)$/gm)].map(([, instruction = "", value = ""]) => ({
    name: instruction,
    value,
  }));
}

/** @throws Error for an instruction that this does not know: an image would lack what it does */
export function runConfigOf(stage: readonly Instruction[]): RunConfig {
  const config: RunConfig = {};
  for (const { name, value } of stage) {
    if (name === "USER") config.User = value;
    else if (name === "ENV") config.Env = [...(config.Env ?? []), value];
    else if (name === "ENTRYPOINT") config.Entrypoint = JSON.parse(value) as string[];
    else if (name === "CMD") config.Cmd = JSON.parse(value) as string[];
    else if (name === "EXPOSE")
      config.ExposedPorts = Object.fromEntries(value.split(" ").map((port) => [`${port}/tcp`, {}]));
    else if (!["FROM", "ARG", "RUN", "COPY"].includes(name)) throw unknown({ name, value });
  }
  return config;
}

/** @throws Error for a command or a copy of another form than those that the Dockerfile has */
export function treeOf(stage: readonly Instruction[]): StageTree {
  const tree: StageTree = { packages: [], copies: [] };
  for (const { name, value } of stage) {
    const copied = /^--from=(\S+) (\S+) (\S+)$/.exec(value);
    const installed = installedBy({ name, value });
    if (installed !== undefined) tree.packages.push(...installed);
    else if (name === "COPY" && copied !== null)
      tree.copies.push({ stage: copied[1]!, source: copied[2]!, target: copied[3]! });
    else if (name === "RUN" || name === "COPY") throw unknown({ name, value });
  }
  return tree;
}

/** @throws Error for an instruction of another form than those that the Dockerfile has */
export function buildOf(stage: readonly Instruction[]): StageBuild {
  const build: StageBuild = { packages: [], commands: [], env: {} };
  for (const { name, value } of stage) {
    const installed = installedBy({ name, value });
    const set = /^(\w+)=(\S+)$/.exec(value);
    if (installed !== undefined) build.packages.push(...installed);
    else if (name === "RUN" && value.startsWith("cd /runtime/")) build.commands.push(value);
    else if (name === "ENV" && set !== null) build.env[set[1]!] = set[2]!;
    else if (!isOfBases({ name, value })) throw unknown({ name, value });
  }
  return build;
}

function installedBy({ name, value }: Instruction): string[] | undefined {
  const list = /^apt-get update[\s\\]+&& apt-get install --yes --no-install-recommends ((?:[^&]|\\\n)+)/.exec(value);
  return name === "RUN" && list !== null ? list[1]!.match(/[a-z][\w.+-]+/g)! : undefined;
}

/** What says of which images a stage is made, and where the sources of its programs are. */
const isOfBases = ({ name, value }: Instruction): boolean =>
  name === "FROM" ||
  name === "ARG" ||
  (name === "RUN" && value.startsWith("for image in ")) ||
  (name === "COPY" && value === "helm/runtime /runtime");

const unknown = ({ name, value }: Instruction): Error =>
  new Error(`Dockerfile: ${name} ${value}: not known here; teach helm/dockerfile.ts what it does`);
