/** `npm run docs:site`: the site, as files for any web server, in docs/site/dist or the folder that is named. */
import { join, resolve } from "node:path";
import { build } from "vitepress";
import { fill } from "./fill.ts";

fill(join(import.meta.dirname, ".pages"));
await build(import.meta.dirname, { outDir: resolve(process.argv[2] ?? join(import.meta.dirname, "dist")) });
