/** `npm run docs:site`: the site, as files for any web server, in docs/site/dist or the folder that is named. */
import { spawnSync } from "node:child_process";
import { delimiter, dirname, join, resolve } from "node:path";
import { fill, ROOT } from "./fill.ts";

const outDir = resolve(process.argv[2] ?? join(import.meta.dirname, "dist"));
fill(join(import.meta.dirname, ".pages"));
const vitepress = join(ROOT, "node_modules/vitepress/bin/vitepress.js");
const { status } = spawnSync(process.execPath, [vitepress, "build", import.meta.dirname, "--outDir", outDir], {
  stdio: "inherit",
  // What it starts in turn calls `node` by name: an older one than this breaks off now and then.
  env: { ...process.env, PATH: [dirname(process.execPath), process.env["PATH"]].join(delimiter) },
});
process.exitCode = status ?? 1;
