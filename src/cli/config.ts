/** `vmlet config`: what a configuration file may say. */
import { fileURLToPath } from "node:url";
import { Command } from "commander";
import { backendConfigSchema } from "../../providers/local/config.ts";
import { ConfigError } from "../config/load.ts";
import { documentFields, type FieldDoc } from "../config/reference.ts";
import { agentConfigSchema } from "../config/schema.ts";
import { templateOf } from "../config/template.ts";
import { didYouMean } from "../util/nearest.ts";
import { packageFile } from "./version.ts";

export function configCommand(): Command {
  const command = new Command("config");
  command
    .command("explain")
    .description("tell what a field means, and those below it")
    .argument("[field]", "a field such as nodes.kubelet.port; without it, all")
    .option("--backend", "a field of the backend's file")
    .action((field: string | undefined, { backend = false }: { backend?: boolean }) =>
      console.log(explainField(field ?? "", documentFields(backend ? backendConfigSchema : agentConfigSchema))),
    );
  command
    .command("init")
    .description("print a file to begin with: what has to be said, and all else as comments")
    .option("--backend", "the backend's file")
    .action(({ backend = false }: { backend?: boolean }) => {
      const schema = fileURLToPath(packageFile(`schemas/${backend ? "backend" : "agent"}.schema.json`));
      process.stdout.write(backend ? backendFile(schema) : agentFile(schema));
    });
  return command;
}

/** @param schema where an editor finds the JSON Schema */
export const agentFile = (schema: string): string =>
  editorLine(schema) +
  templateOf(agentConfigSchema, {
    apiVersion: "vmlet.dev/v1",
    kind: "AgentConfig",
    nodes: [
      { name: "burst-0", provider: { type: "http-vm", url: "https://vms.example.com", tokenFile: "/etc/vmlet/token" } },
    ],
  });

/** @param schema where an editor finds the JSON Schema */
export const backendFile = (schema: string): string =>
  editorLine(schema) +
  templateOf(backendConfigSchema, {
    apiVersion: "vmlet.dev/v1",
    kind: "BackendConfig",
    stateDir: "/var/lib/vmlet",
    engine: { type: "process" },
    listen: { socket: "/run/vmlet/backend.sock" },
  });

const editorLine = (schema: string): string => `# yaml-language-server: $schema=${schema}\n`;

/**
 * The field and all below it, as text.
 *
 * @param field with or without the brackets and numbers of lists; empty for all
 * @throws ConfigError when there is none of that name
 * @internal
 */
export function explainField(field: string, docs: readonly FieldDoc[]): string {
  const wanted = plain(field);
  const found = docs.filter((doc) => {
    const name = plain(doc.field);
    return wanted === "" || name === wanted || name.startsWith(`${wanted}.`);
  });
  if (found.length > 0) return found.map(textOf).join("\n\n");
  // Also by its last part: who writes `port` may mean one of several.
  const named = docs.filter((doc) => plain(doc.field).endsWith(`.${wanted}`)).map((doc) => doc.field);
  const others = named.length > 0 ? `; there is ${named.join(", ")}` : "";
  const meant =
    others === ""
      ? didYouMean(
          wanted,
          docs.flatMap(({ field: each }) => [plain(each), ...above(plain(each))]),
        )
      : others;
  throw new ConfigError(`there is no field ${field}${meant}`);
}

/** The mappings that a field is in, which have no entry of their own. */
const above = (field: string): string[] =>
  field.split(".").flatMap((_, index, parts) => (index === 0 ? [] : [parts.slice(0, index).join(".")]));

/** `nodes[0].kubelet` and `nodes[].kubelet` are `nodes.kubelet`. */
const plain = (field: string): string => field.replaceAll(/\[\d*\]/g, "");

function textOf({ field, kinds, meaning, default: fallback }: FieldDoc): string {
  const only = kinds.length === 0 ? "" : ` (${kinds.join(", ")})`;
  const tail = fallback === "required" ? "  [required]" : fallback === "" ? "" : `  [default: ${unquoted(fallback)}]`;
  return [`${field}${only}${tail}`, ...(meaning === "" ? [] : [`    ${unquoted(meaning)}`])].join("\n");
}

const unquoted = (markdown: string): string => markdown.replaceAll("`", "");
