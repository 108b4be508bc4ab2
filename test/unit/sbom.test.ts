/** The bill of materials tells the truth: what it lists is what is installed, under the licences that the packages themselves state. */
import { existsSync, readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { licenceOf, makeSbom } from "../../helm/sbom.ts";

interface Locked {
  dev?: boolean;
  devOptional?: boolean;
  version?: string;
  integrity?: string;
}

const root = join(import.meta.dirname, "../..");
const json = (path: string) => JSON.parse(readFileSync(join(root, path), "utf8")) as Record<string, unknown>;
const { packages } = json("package-lock.json") as { packages: Record<string, Locked> };
const nameOf = (place: string) => place.slice(place.lastIndexOf("node_modules/") + "node_modules/".length);
const shipped = Object.entries(packages).filter(
  ([place, { dev, devOptional }]) => place !== "" && !dev && !devOptional,
);
/** Those of other platforms are not. */
const installed = shipped.filter(([place]) => existsSync(join(root, place, "package.json")));

const sbom = makeSbom();
const byRef = new Map(sbom.components.map((component) => [component["bom-ref"], component]));

test("it is CycloneDX of this package and its version", () => {
  const { name, version } = json("package.json");
  expect(sbom).toMatchObject({ bomFormat: "CycloneDX", metadata: { component: { name, version } } });
  expect(sbom.metadata.component.purl).toBe(`pkg:npm/${String(name)}@${String(version)}`);
});

test("it lists every package that is shipped, and no other", () => {
  const expected = new Set(shipped.map(([place, { version }]) => `${nameOf(place)}@${version}`));
  expect([...byRef.keys()].toSorted()).toEqual([...expected].toSorted());
});

test("the content of each is told by the hash that npm checks", () => {
  for (const [place, { version, integrity = "" }] of shipped) {
    const content = Buffer.from(integrity.replace("sha512-", ""), "base64").toString("hex");
    expect(byRef.get(`${nameOf(place)}@${version}`)?.hashes, place).toContainEqual({ alg: "SHA-512", content });
  }
});

test("what is installed is of the version and under the licence that is told", () => {
  expect(installed.length).toBeGreaterThan(50);
  for (const [place] of installed) {
    const { name, version, license } = json(`${place}/package.json`);
    const component = byRef.get(`${String(name)}@${String(version)}`);
    expect(component && licenceOf(component), place).toBe(license);
  }
});

test("what one needs is in it too", () => {
  const refs = new Set([...byRef.keys(), sbom.metadata.component["bom-ref"]]);
  const wanted = sbom.dependencies.flatMap(({ ref, dependsOn }) => [ref, ...dependsOn]);
  expect(wanted.filter((ref) => !refs.has(ref))).toEqual([]);
});

test("it is the same twice", () => {
  expect(makeSbom()).toEqual(sbom);
});

/** They name their licence in package.json alone. */
const WITHOUT_TEXT = [
  "node_modules/@bufbuild/protobuf",
  "node_modules/@connectrpc/connect",
  "node_modules/@connectrpc/connect-node",
  "node_modules/@lydell/node-pty-linux-",
];

test("the text of its licence comes with every other package that is installed", () => {
  const hasText = (place: string) =>
    readdirSync(join(root, place)).some((file) => /^(licen[cs]e|copying|unlicense)/i.test(file)) ||
    /licen[cs]e/i.test(readFileSync(join(root, place, "README.md"), "utf8"));
  const isKnown = (place: string) => WITHOUT_TEXT.some((known) => place.startsWith(known));
  expect(installed.map(([place]) => place).filter((place) => !isKnown(place) && !hasText(place))).toEqual([]);
});
