/** `vmlet config`: what a configuration file may say. */
import { Command } from "commander";
import { backendConfigSchema } from "../../providers/local/config.ts";
import { ConfigError } from "../config/load.ts";
import { documentFields, type FieldDoc } from "../config/reference.ts";
import { agentConfigSchema } from "../config/schema.ts";
import { didYouMean } from "../util/nearest.ts";

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
  return command;
}

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
          docs.map((doc) => plain(doc.field)),
        )
      : others;
  throw new ConfigError(`there is no field ${field}${meant}`);
}

/** `nodes[0].kubelet` and `nodes[].kubelet` are `nodes.kubelet`. */
const plain = (field: string): string => field.replaceAll(/\[\d*\]/g, "");

function textOf({ field, kinds, meaning, default: fallback }: FieldDoc): string {
  const only = kinds.length === 0 ? "" : ` (${kinds.join(", ")})`;
  const tail = fallback === "required" ? "  [required]" : fallback === "" ? "" : `  [default: ${unquoted(fallback)}]`;
  return [`${field}${only}${tail}`, ...(meaning === "" ? [] : [`    ${unquoted(meaning)}`])].join("\n");
}

const unquoted = (markdown: string): string => markdown.replaceAll("`", "");
