/** Variables in files of volumes: the syntax that a kubelet takes, and what a container gets. */
import { describe, expect, test } from "vitest";
import {
  ENV_FILE_BYTES,
  envFilesOf,
  parseEnvFile,
  PROCESS_BYTES,
  withEnvFiles,
  WORD_BYTES,
} from "../../../src/provider/env-files.ts";
import type { ContainerSpec, EnvVar } from "../../../src/provider/machine.ts";
import { failure, type Result, success } from "../../../src/util/result.ts";

const FILE = { volume: "config", path: "app.env" };

const inFile = (name: string, key: string, rest: { optional?: boolean; path?: string } = {}): EnvVar => ({
  name,
  value: "",
  from_file: { ...FILE, key, ...rest },
});

const TOKENS = { open: "{{file ", close: "=}}" };
const token = (name: string) => `${TOKENS.open}${name}${TOKENS.close}`;

function filled(container: Partial<ContainerSpec>, text: string | Result<string>) {
  const spec = { name: "app", image: "i", env_tokens: TOKENS, ...container };
  const reading = typeof text === "string" ? success(text) : text;
  return withEnvFiles(
    spec,
    envFilesOf(spec).map((file) => ({ file, text: reading })),
  );
}

const variablesOf = (result: ReturnType<typeof filled>) =>
  result.ok ? Object.fromEntries((result.value.env ?? []).map(({ name, value }) => [name, value])) : result.message;

describe("parseEnvFile", () => {
  // pkg/kubelet/util/env/env_util_test.go
  test.each([
    ["blanks before a key", "   KEY1='val1'\n\t\tKEY2='val2'\n", { KEY1: "val1", KEY2: "val2" }],
    ["empty lines and comments", "# c\n\nKEY1='foo'\n   # c\n", { KEY1: "foo" }],
    ["a # in quotes", "KEY1='foo#no'", { KEY1: "foo#no" }],
    ["blanks in quotes", "KEY1='   foo bar   '", { KEY1: "   foo bar   " }],
    ["nothing in quotes", "KEY1=''", { KEY1: "" }],
    ["equals signs", "KEY1='foo=bar=baz'", { KEY1: "foo=bar=baz" }],
    ["a comment after it", "KEY2='bar' # comment", { KEY2: "bar" }],
    ["what a shell would expand", "KEY1='foo$BAR-${HOME}_$'", { KEY1: "foo$BAR-${HOME}_$" }],
    ["backslashes", String.raw`KEY1='a\n\\b'`, { KEY1: String.raw`a\n\\b` }],
    ["double quotes in it", `KEY1='say "hi"'`, { KEY1: 'say "hi"' }],
    ["other scripts", "KEY1='中文 🌍'", { KEY1: "中文 🌍" }],
    ["several lines", "KEY1='one\n\n  two  \n'\nKEY2='x'", { KEY1: "one\n\n  two  \n", KEY2: "x" }],
    ["a blank after the equals sign", "KEY1= 'val1'\nKEY2='x'", { KEY1: "", KEY2: "x" }],
    ["the first of two", "A='1'\nA='2'", { A: "1" }],
    ["no line's carriage return", "A='1'\r\nB='x\r\ny'\r\n", { A: "1", B: "x\ny" }],
  ])("takes %s", (_what, text, values) => {
    const file = parseEnvFile(text);
    expect(file.fault).toBeUndefined();
    expect(Object.fromEntries(file.values)).toEqual(values);
  });

  test.each([
    ["KEY1 = 'val1'", "invalid environment variable format at line 1: whitespace before '=' is not allowed"],
    ["='foo'", "invalid environment variable format at line 1: empty variable name"],
    ["A='1'\nINVALID\n", "invalid environment variable format at line 2: missing '='"],
    ["KEY2=bar", "invalid environment variable format at line 1: value must be enclosed in single quotes"],
    ['KEY2="bar"', "invalid environment variable format at line 1: value must be enclosed in single quotes"],
    ["KEY1='foo''bar'", "invalid environment variable format at line 1: unexpected content after closing quote"],
    ["A='\nB='c'", "invalid environment variable format at line 2: unexpected content after closing quote"],
    ["A='1'\nB='\n\n", "invalid environment variable format starting at line 2: unclosed single quote"],
    [`A='${"x".repeat(65_536)}'`, "line 1 has 65536 bytes or more"],
  ])("refuses %j", (text, fault) => {
    expect(parseEnvFile(text).fault).toBe(fault);
  });

  test("keeps what comes before a fault, as a kubelet that has found its key reads no further", () => {
    const { values, fault } = parseEnvFile("A='1'\nnot at all\nB='2'");
    expect([[...values], fault]).toEqual([[["A", "1"]], "invalid environment variable format at line 2: missing '='"]);
  });

  test("takes time in proportion to the file", () => {
    for (const line of ["A=''\n", " \n", "\t", "A='\n", "'"]) {
      parseEnvFile(line.repeat(ENV_FILE_BYTES / line.length));
    }
  });
});

describe("withEnvFiles", () => {
  test("leaves a container without such variables as it is", () => {
    const spec = { name: "app", image: "i", env: [{ name: "A", value: token("A") }] };
    expect(withEnvFiles(spec, [])).toEqual(success(spec));
  });

  test("puts values into variables, and into what refers to them", () => {
    const result = filled(
      {
        env: [{ name: "EARLY", value: token("A") }, inFile("A", "KEY"), { name: "B", value: `<${token("A")}>` }],
        command: ["run", token("A")],
        args: [`${token("A")}${token("B")}`, token("NONE")],
      },
      "KEY='v'",
    );
    expect(result).toEqual(
      success({
        name: "app",
        image: "i",
        env: [
          { name: "EARLY", value: "$(A)" },
          { name: "A", value: "v" },
          { name: "B", value: "<v>" },
        ],
        command: ["run", "v"],
        args: ["v<v>", "$(NONE)"],
      }),
    );
  });

  test("does not look at what a file has for tokens", () => {
    const text = `KEY='${token("SECRET")}'`;
    const env = [{ name: "SECRET", value: "s" }, inFile("A", "KEY"), { name: "B", value: token("A") }];
    expect(variablesOf(filled({ env }, text))).toEqual({ SECRET: "s", A: token("SECRET"), B: token("SECRET") });
  });

  test.each([
    ["is not there", "OTHER='x'"],
    ["is empty", "KEY=''"],
  ])("waits for a key that %s", (_how, text) => {
    expect(filled({ env: [inFile("A", "KEY")] }, text)).toEqual(
      failure('environment variable key "KEY" not found in file "app.env" of volume "config"'),
    );
  });

  test("leaves an optional variable as it was before", () => {
    const env = [
      { name: "A", value: "earlier" },
      inFile("A", "KEY", { optional: true }),
      inFile("B", "KEY", { optional: true }),
      { name: "C", value: `${token("A")} ${token("B")}` },
    ];
    expect(variablesOf(filled({ env }, ""))).toEqual({ A: "earlier", C: "earlier $(B)" });
  });

  test("waits for a file that cannot be read, though its key be optional", () => {
    expect(filled({ env: [inFile("A", "KEY", { optional: true })] }, failure("it does not exist"))).toEqual(
      failure(`couldn't parse env file: file "app.env" of volume "config": it does not exist`),
    );
  });

  test("waits for a file with a fault before the key, and says nothing of what it has", () => {
    const result = filled({ env: [inFile("A", "KEY")] }, "SECRET=hunter2\nKEY='v'");
    expect(result).toEqual(
      failure(
        `couldn't parse env file: file "app.env" of volume "config": invalid environment variable format at line 1: value must be enclosed in single quotes`,
      ),
    );
  });

  test("gives no process what no process can be given", () => {
    const lines = (n: number) => Array.from({ length: n }, () => "x".repeat(60_000)).join("\n");
    expect(variablesOf(filled({ env: [inFile("A", "KEY")] }, "KEY='a\0b'"))).toBe(
      'environment variable "A" holds a NUL byte',
    );
    expect(variablesOf(filled({ env: [inFile("A", "KEY")] }, `KEY='${lines(3)}'`))).toContain("argument list too long");
    const many = Array.from({ length: 100 }, () => token("A"));
    const text = `KEY='${"x".repeat(60_000)}'`;
    expect(variablesOf(filled({ env: [inFile("A", "KEY")], args: [many.join("")] }, text))).toContain(
      `more than ${WORD_BYTES} bytes`,
    );
    expect(variablesOf(filled({ env: [inFile("A", "KEY")], args: many }, text))).toContain(
      `more than ${PROCESS_BYTES} bytes`,
    );
  });

  test("reads each file once", () => {
    const env = [inFile("A", "K"), inFile("B", "L"), inFile("C", "K", { path: "other.env" })];
    expect(envFilesOf({ env })).toEqual([FILE, { ...FILE, path: "other.env" }]);
  });
});
