/**
 * Writes the bill of materials of a release: `npm run sbom -- FILE`. CycloneDX, as npm makes it of what
 * package-lock.json has for production, on every platform. Reproducible: what npm adds of the folder, the time and
 * chance is taken out, or comes from the package and $SOURCE_DATE_EPOCH (default 0).
 */
import { execFileSync } from "node:child_process";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";

const repository = join(import.meta.dirname, "..");
const MODULES = "node_modules/";

export interface Component {
  "bom-ref": string;
  name: string;
  version: string;
  purl: string;
  hashes?: { alg: string; content: string }[];
  licenses?: { license?: { id?: string; name?: string }; expression?: string }[];
}

export interface Sbom {
  bomFormat: string;
  specVersion: string;
  serialNumber?: string;
  metadata: { timestamp: string; component: Component };
  components: Component[];
  dependencies: { ref: string; dependsOn: string[] }[];
}

interface Locked {
  version?: string;
  dev?: boolean;
  devOptional?: boolean;
}

export function makeSbom(): Sbom {
  // From the lock file alone npm knows what is for another platform than this one. Not `--omit dev`: npm 11 leaves
  // out with it what runs and is also an optional peer of what is for development (yaml, for one).
  const args = ["sbom", "--package-lock-only", "--sbom-format", "cyclonedx"];
  const sbom = JSON.parse(
    execFileSync("npm", args, { cwd: repository, encoding: "utf8", stdio: ["ignore", "pipe", "inherit"] }),
  ) as Sbom;
  const { name, packages } = JSON.parse(readFileSync(join(repository, "package-lock.json"), "utf8")) as {
    name: string;
    packages: Record<string, Locked>;
  };
  const shipped = new Set(
    Object.entries(packages)
      .filter(([place, { dev, devOptional }]) => place !== "" && !dev && !devOptional)
      .map(([place, { version }]) => `${place.slice(place.lastIndexOf(MODULES) + MODULES.length)}@${version}`),
  );
  const isShipped = (ref: string) => shipped.has(ref) || ref === sbom.metadata.component["bom-ref"];
  sbom.components = sbom.components.filter((component) => isShipped(component["bom-ref"]));
  sbom.dependencies = sbom.dependencies
    .filter(({ ref }) => isShipped(ref))
    .map(({ ref, dependsOn }) => ({ ref, dependsOn: dependsOn.filter(isShipped) }));
  sbom.metadata.timestamp = new Date(Number(process.env["SOURCE_DATE_EPOCH"] ?? 0) * 1000).toISOString();
  // npm takes the folder's name.
  sbom.metadata.component.name = name;
  // Optional, and another one each time.
  delete sbom.serialNumber;
  return sbom;
}

/** As SPDX writes it; an empty text where none is stated. */
export function licenceOf({ licenses = [] }: Component): string {
  return licenses.map(({ license, expression }) => expression ?? license?.id ?? license?.name ?? "").join(" AND ");
}

if (process.argv[1] === import.meta.filename) {
  const [, , file] = process.argv;
  if (file === undefined) throw new Error("usage: npm run sbom -- FILE");
  const sbom = makeSbom();
  mkdirSync(dirname(file), { recursive: true });
  writeFileSync(file, `${JSON.stringify(sbom, undefined, 2)}\n`);
  console.log(`${file}: ${sbom.components.length} packages`);
}
