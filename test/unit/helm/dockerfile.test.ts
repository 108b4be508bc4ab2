import { expect, test } from "vitest";
import { buildOf, dockerStage, runConfigOf, treeOf } from "../../../helm/dockerfile.ts";

test("the agent's stage is the assembled tree, run as nobody", async () => {
  const stage = await dockerStage("agent");
  expect(treeOf(stage)).toEqual({ packages: [], copies: [{ stage: "build", source: "/image/app", target: "/app" }] });
  expect(runConfigOf(stage)).toEqual({
    User: "65532:65532",
    Env: ["MALLOC_ARENA_MAX=1"],
    ExposedPorts: { "10250/tcp": {}, "10248/tcp": {} },
    Entrypoint: expect.arrayContaining(["/app/bin/node", "/app/dist/src/cli/main.js"]),
    Cmd: ["--help"],
  });
});

test("the backend's stage is Debian's packages, programs, and the same tree", async () => {
  const { packages, copies } = treeOf(await dockerStage("backend"));
  expect(packages).toContain("util-linux");
  expect(packages).toContain("ca-certificates");
  expect(packages.filter((each) => /^(?:rm|rf|yes|var)$/.test(each))).toEqual([]);
  expect(copies).toEqual([
    { stage: "runtime", source: "/runtime/bin", target: "/usr/local/bin" },
    { stage: "build", source: "/image/app", target: "/app" },
  ]);
});

test("the stage of programs takes a compiler, headers and a fixed Go, and writes nothing of where it builds", async () => {
  const { packages, commands, env } = buildOf(await dockerStage("runtime"));
  expect(packages).toEqual(["gcc", "libc6-dev", "libseccomp-dev", "pkg-config"]);
  expect(env).toEqual({ GOTOOLCHAIN: expect.stringMatching(/^go1\.\d+\.\d+$/) });
  expect(commands).toHaveLength(2);
  for (const command of commands) {
    expect(command).toMatch(/^cd \/runtime\/\w+ [^]* -o \/runtime\/bin\/ /);
    expect(command).toContain(" -trimpath ");
    expect(command).toContain(" -buildid= ");
  }
});

test.each([
  ["RUN", "make"],
  ["COPY", "tool /bin/tool"],
  ["ENV", "A=1 B=2"],
  ["WORKDIR", "/src"],
])("%s %s of a stage of programs is an error: they would be others", (name, value) => {
  expect(() => buildOf([{ name, value }])).toThrow(`${name} ${value}: not known here`);
});

test("a stage that there is none of is named", async () => {
  await expect(dockerStage("nobody")).rejects.toThrow("the Dockerfile has no stage nobody");
});

test.each([
  ["RUN", "curl https://example.com/tool > /bin/tool"],
  ["COPY", "tool /bin/tool"],
])("%s of an unknown form is an error: the image would lack what it makes", (name, value) => {
  expect(() => treeOf([{ name, value }])).toThrow(`${name} ${value}: not known here`);
});

test("an instruction of an unknown kind is an error", () => {
  expect(() => runConfigOf([{ name: "STOPSIGNAL", value: "SIGINT" }])).toThrow("STOPSIGNAL SIGINT: not known here");
});
