/** Loads a provider that does not ship with vmlet. */
import { registerHooks } from "node:module";
import { extname, isAbsolute } from "node:path";
import { pathToFileURL } from "node:url";
import { ConfigError } from "../config/load.ts";
import type { Provider } from "../provider/provider.ts";
import { toError } from "../util/errors.ts";

/** What a provider module exports: see providers/README.md. */
interface ProviderModule {
  createProvider?: (options: Record<string, unknown>) => Provider | Promise<Provider>;
}

/** What package.json exports, and where it lies from here, in the sources as in what is built of them. */
const OWN_EXPORTS: Record<string, string> = {
  vmlet: "../index",
  "vmlet/provider-kit": "../provider/kit/index",
  "vmlet/http-vm": "../../providers/http-vm/index",
  "vmlet/cloud": "../../providers/cloud/index",
};

let answering = false;

/**
 * From now on, an import of vmlet by name gives the running one: a module may lie anywhere, and the image has no
 * package of that name above it.
 */
function answerToOwnName(): void {
  if (answering) return;
  answering = true;
  registerHooks({
    resolve(specifier, context, nextResolve) {
      const own = OWN_EXPORTS[specifier];
      if (own === undefined) return nextResolve(specifier, context);
      return nextResolve(new URL(own + extname(import.meta.filename), import.meta.url).href, context);
    },
  });
}

/**
 * @param name path or package of the module; a relative path is one from the working directory
 * @throws ConfigError when it cannot be loaded or is not a provider module
 */
export async function createModuleProvider(name: string, options: Record<string, unknown>): Promise<Provider> {
  answerToOwnName();
  const specifier = name.startsWith(".") || isAbsolute(name) ? pathToFileURL(name).href : name;
  let module: ProviderModule;
  try {
    module = (await import(specifier)) as ProviderModule;
  } catch (thrown) {
    throw new ConfigError(`provider.module: cannot load ${name}: ${toError(thrown).message}`, { cause: thrown });
  }
  if (typeof module.createProvider !== "function") {
    throw new ConfigError(`provider.module: ${name} does not export a function createProvider`);
  }
  return module.createProvider(options);
}
