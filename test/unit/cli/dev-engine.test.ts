import { describe, expect, test } from "vitest";
import { chooseEngine, fallBack } from "../../../src/cli/dev-engine.ts";

type Answers = Parameters<typeof chooseEngine>[0];

/** A host that lacks nothing and reaches its registry, but for what is said. */
const host = (
  lacking: Partial<Record<"cri" | "oci" | "process", string[]>> = {},
  imageFault?: string,
): Answers & { asked: string[] } => {
  const asked: string[] = [];
  return {
    asked,
    lacks: (engine) => Promise.resolve(lacking[engine] ?? []),
    imageFault: () => {
      asked.push("registry");
      return Promise.resolve(imageFault);
    },
  };
};

describe("which engine vmlet dev takes", () => {
  test("cri, where the host can run it and images can be pulled", async () => {
    expect(await chooseEngine(host())).toEqual({ engine: "cri", said: expect.stringContaining("--engine process") });
  });

  test("oci, where only containerd is missing", async () => {
    const chosen = await chooseEngine(host({ cri: ["containerd is not on the PATH"] }));
    expect(chosen.engine).toBe("oci");
  });

  test("process with the registry's fault, where containers would wait for their images", async () => {
    const { engine, said } = await chooseEngine(host({}, "getaddrinfo ENOTFOUND registry-1.docker.io"));
    expect(engine).toBe("process");
    expect(said).toContain("no image could be pulled (getaddrinfo ENOTFOUND registry-1.docker.io)");
    expect(said).toContain("--engine cri takes containers all the same");
  });

  test("process with what both lack, where containers cannot run, and no registry is asked", async () => {
    const answers = host({ cri: ["containerd is not on the PATH", "containers need root"], oci: ["no skopeo"] });
    const { engine, said } = await chooseEngine(answers);
    expect(engine).toBe("process");
    expect(said).toContain("(cri: containerd is not on the PATH and 1 more; oci: no skopeo)");
    expect(answers.asked).toEqual([]);
  });

  test("memory, where there are no plain processes either", async () => {
    const { engine, said } = await chooseEngine(host({ cri: ["x"], oci: ["x"], process: ["this is darwin"] }));
    expect(engine).toBe("memory");
    expect(said).toContain("this is darwin");
  });

  test("process, where the questions themselves fail", async () => {
    const { engine, said } = await chooseEngine({
      ...host(),
      lacks: (asked) => (asked === "process" ? Promise.resolve([]) : Promise.reject(new Error("nft: EPERM"))),
    });
    expect(engine).toBe("process");
    expect(said).toContain("nft: EPERM");
  });

  test("is told in one line, however much an error says", () => {
    const { engine, said } = fallBack("cri", new Error(`containerd does not start: ${"x".repeat(500)}\nmore`));
    expect(engine).toBe("process");
    expect(said).not.toContain("\n");
    expect(said.length).toBeLessThan(400);
  });
});
