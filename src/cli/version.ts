import { Command } from "commander";
import { existsSync, readFileSync } from "node:fs";

/** A file of the package. Built files lie one folder deeper than sources, so its root is looked for. */
export function packageFile(path: string): URL {
  const root = ["../../", "../../../"]
    .map((up) => new URL(up, import.meta.url))
    .find((url) => existsSync(new URL("package.json", url)));
  return new URL(path, root);
}

export const VERSION = (JSON.parse(readFileSync(packageFile("package.json"), "utf8")) as { version: string }).version;

export function versionCommand(): Command {
  return new Command("version").action(() => {
    console.log(`vmlet ${VERSION} (node ${process.versions.node}, ${process.platform}-${process.arch})`);
  });
}
