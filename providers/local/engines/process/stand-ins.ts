/**
 * What runs for an image where there are no images: engine `process` under `standIns`, for those who try vmlet with the
 * images that everybody types first.
 */
import { fileURLToPath } from "node:url";
import type { ContainerSpec } from "../../../../src/provider/kit/index.ts";

interface StandIn {
  argv: string[];
  /** For the pod's author: what runs instead of the image. */
  message: string;
}

interface StandInPlace {
  /** The machine's. */
  address: string;
  /**
   * Where a web server writes the port that it serves on when it cannot have the image's.
   * @param port the image's
   */
  portFile(port: number): string;
}

const EXTENSION = import.meta.url.endsWith(".ts") ? "ts" : "js";
const WEB_SERVER = fileURLToPath(new URL(`./stand-in-web.${EXTENSION}`, import.meta.url));

/** Repository -> the port that the image serves on. */
const WEB_PORTS: ReadonlyMap<string, number> = new Map([
  ["nginx", 80],
  ["httpd", 80],
  ["caddy", 80],
]);

const SH = ["sh"];
const BASH_OR_SH = ["sh", "-c", "command -v bash >/dev/null && exec bash; exec sh"];

/** Repository -> the shell that the image runs. */
const SHELLS: ReadonlyMap<string, string[]> = new Map([
  ["busybox", SH],
  ["alpine", SH],
  ["ubuntu", BASH_OR_SH],
  ["debian", BASH_OR_SH],
]);

/**
 * For a container without a command. Arguments that are a command win, as they do with images whose entrypoint runs its
 * arguments; options are for a program that is not there.
 */
export function standInFor(container: Pick<ContainerSpec, "image" | "args">, place: StandInPlace): StandIn {
  const { image, args = [] } = container;
  const said = (what: string) => `Engine process has no images: ${what} stands in for image "${image}"`;
  if (args[0] !== undefined && args[0] !== "" && !args[0].startsWith("-"))
    return { argv: [...args], message: said("a program of this host, named by the container's args,") };
  const repository = repositoryOf(image);
  const port = WEB_PORTS.get(repository);
  if (port !== undefined)
    return {
      argv: [process.execPath, WEB_SERVER, image, place.address, String(port), place.portFile(port)],
      message: said(`a small web server on port ${port}`),
    };
  const shell = SHELLS.get(repository);
  if (shell !== undefined) return { argv: shell, message: said("a shell of this host") };
  return { argv: ["sleep", "infinity"], message: `${said("a sleep without end")}; a command would run on this host` };
}

/** The last part of the name, without host, tag and digest: `nginx` of `docker.io/library/nginx:1.27`. */
function repositoryOf(image: string): string {
  const [name = ""] = image.split("@", 1);
  const [repository = ""] = name.slice(name.lastIndexOf("/") + 1).split(":", 1);
  return repository;
}
