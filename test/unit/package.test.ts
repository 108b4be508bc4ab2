import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";

const root = join(import.meta.dirname, "../..");
const read = (path: string) => readFileSync(join(root, path), "utf8");
const { dependencies, scripts } = JSON.parse(read("package.json")) as Record<string, Record<string, string>>;

test("every run-time dependency is imported by the program", () => {
  const sources = ["src", "providers"]
    .flatMap((folder) =>
      readdirSync(join(root, folder), { recursive: true, encoding: "utf8" }).map((f) => `${folder}/${f}`),
    )
    .filter((file) => file.endsWith(".ts"))
    .map(read);
  const isImported = (name: string) => {
    // Or it is handed to browsers as it is (src/ui/assets.ts).
    const statement = new RegExp(`(from|import)[ (]"${name}["/]|": "${name}/`);
    return sources.some((text) => statement.test(text));
  };
  expect(Object.keys(dependencies!).filter((name) => !isImported(name))).toEqual([]);
});

test.each(["README.md", "providers/README.md", "examples/README.md", "test/README.md", "helm/vmlet/README.md"])(
  "every command of npm in %s is one that a fresh clone has",
  (file) => {
    const text = read(file);
    const wanted = [...text.matchAll(/npm run (?:-s )?([\w:]+)/g)].map(([, script]) => script!);
    expect(wanted.filter((script) => !(script in scripts!))).toEqual([]);
    // The package's own command is linked only where the package is installed: it may be named, not shown to be typed.
    expect(text).not.toContain("npx vmlet ");
  },
);

test("what the README tells users to read is in the package", () => {
  const { files } = JSON.parse(read("package.json")) as { files: string[] };
  const packed = (path: string) => files.some((entry) => path === entry || path.startsWith(`${entry}/`));
  const links = [...read("README.md").matchAll(/\]\((?!https?:|#)([^)#]+)/g)].map(([, path]) => path!);
  const ofTheRepository = [
    "test/README.md",
    "Dockerfile",
    "src/provider/provider.ts",
    "CONTRIBUTING.md",
    "docs/versions.md",
  ];
  expect(links).toEqual(expect.arrayContaining(["CONFIGURATION.md", ...ofTheRepository]));
  expect(links.filter((path) => !packed(path) && !ofTheRepository.includes(path))).toEqual([]);
});
