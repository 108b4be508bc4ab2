import { expect, test } from "vitest";
import { dockerStage, runConfigOf, treeOf } from "../../../helm/dockerfile.ts";

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
