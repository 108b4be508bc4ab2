import { Command } from "commander";
import { readFileSync } from "node:fs";

/** The package's version. Built files lie one folder deeper than sources, so the manifest is looked for upwards. */
export const VERSION = findVersion();

function findVersion(): string {
  for (const up of ["../../package.json", "../../../package.json"]) {
    try {
      const manifest = JSON.parse(readFileSync(new URL(up, import.meta.url), "utf8")) as { name?: string; version?: string };
      if (manifest.name === "vmlet" && manifest.version !== undefined) return manifest.version;
    } catch (thrown) {
      if ((thrown as NodeJS.ErrnoException).code !== "ENOENT") throw thrown;
    }
  }
  return "0.0.0";
}

export function versionCommand(): Command {
  return new Command("version").action(() => {
    console.log(`vmlet ${VERSION} (node ${process.versions.node}, ${process.platform}-${process.arch})`);
  });
}
