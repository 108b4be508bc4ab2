/** `npm run docs:site`: the site, as files for any web server, in docs/site/dist or the folder that is named. */
import { spawnSync } from "node:child_process";
import { join, resolve } from "node:path";
import { fill, ROOT } from "./fill.ts";

const outDir = resolve(process.argv[2] ?? join(import.meta.dirname, "dist"));
fill(join(import.meta.dirname, ".pages"));
const vitepress = join(ROOT, "node_modules/vitepress/bin/vitepress.js");
// Its bundler calls itself without end where its standard error is a file, so that is a pipe.
const { status, stderr } = spawnSync(process.execPath, [vitepress, "build", import.meta.dirname, "--outDir", outDir], {
  stdio: ["inherit", "inherit", "pipe"],
});
process.stderr.write(stderr);
process.exitCode = status ?? 1;
