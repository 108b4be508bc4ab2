/** Folders of NFS servers, which guests mount themselves. */
import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import type { Volume } from "../../../src/provider/machine.ts";
import { leaveOut } from "../../support/left-out.ts";
import { missingForNfs, type NfsServer, startNfsServer } from "../../support/nfs-server.ts";
import type { Bench } from "../backend/suite.ts";

const mounts = [{ volume: "v", path: "/v" }];

/** Maps a page of /v/mapped, writes to it, says so, and waits; nothing asks the kernel to write that back. */
const MAPPING_SOURCE = `
static long call(long number, long a, long b, long c, long d, long e) {
  register long r10 asm("r10") = d, r8 asm("r8") = e, r9 asm("r9") = 0;
  long result;
  asm volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
  return result;
}
enum { WRITE = 1, OPEN = 2, MMAP = 9, PAUSE = 34, FTRUNCATE = 77, PAGE = 4096 };
void _start(void) {
  long file = call(OPEN, (long)"/v/mapped", 0102, 0644, 0, 0);
  call(FTRUNCATE, file, PAGE, 0, 0, 0);
  volatile char *page = (char *)call(MMAP, 0, PAGE, 3, 1, file);
  const char *text = "by memory";
  for (int i = 0; text[i]; i++) page[i] = text[i];
  call(WRITE, 1, (long)"mapped\\n", 7, 0, 0);
  for (;;) call(PAUSE, 0, 0, 0, 0, 0);
}`;

function mappingProgram(): Buffer {
  const dir = mkdtempSync(join(tmpdir(), "vmlet-mapping-"));
  try {
    const flags = ["-nostdlib", "-static", "-Os", "-fno-stack-protector", "-x", "c", "-", "-o", join(dir, "map")];
    execFileSync("gcc", flags, { input: MAPPING_SOURCE, stdio: ["pipe", "ignore", "inherit"] });
    return readFileSync(join(dir, "map"));
  } finally {
    rmSync(dir, { recursive: true });
  }
}

export function nfsTests(bench: () => Bench): void {
  const missing = missingForNfs();
  if (missing !== undefined) return leaveOut("folders of NFS servers on engine vm", [missing]);
  let server: NfsServer;
  beforeAll(async () => void (server = await startNfsServer()));
  afterAll(() => server.stop());

  const share = (more: Partial<Extract<Volume, { type: "nfs" }>> = {}): Volume[] => [
    { ...{ name: "v", type: "nfs", server: server.address, path: "/share" }, ...more },
  ];
  const says = async (script: string, volumes = share(), more: object = {}) => {
    const id = await bench().create({ volumes, containers: [bench().shell("a", script, { mounts, ...more })] });
    await bench().terminated(id, "a");
    return await bench().log(id, "a");
  };

  test("a folder of a server is one for all machines that have it, and what is written is on the server", async () => {
    expect(await says("grep ' /v ' /proc/mounts | cut -d ' ' -f 3; echo from a machine > /v/said")).toEqual(["nfs4"]);
    expect(readFileSync(join(server.folder, "said"), "utf8")).toBe("from a machine\n");
    expect(await says("cat /v/said; echo more 2>&1 > /v/said || echo refused", share({ read_only: true }))).toEqual([
      "from a machine",
      expect.stringContaining("Read-only file system"),
      "refused",
    ]);
  });

  test("a folder in it may be a container's, by the options and the version that are asked for", async () => {
    mkdirSync(join(server.folder, "part"), { recursive: true });
    writeFileSync(join(server.folder, "part", "said"), "in a part\n");
    const mount_options = ["nfsvers=4.1", "hard", "noatime", "bg"];
    const script = "cat /v/said; grep -o 'vers=4..' /proc/mounts; grep -o noatime /proc/mounts";
    const part = { mounts: [{ ...mounts[0]!, sub_path: "part" }] };
    expect(await says(script, share({ mount_options }), part)).toEqual(["in a part", "vers=4.1", "noatime"]);
    expect(await says("cat /v/said", share({ path: "/share/part" }))).toEqual(["in a part"]);
  });

  test("what a server does not have is told, and waited for", async () => {
    const id = await bench().create({
      volumes: share({ path: "/share/later" }),
      containers: [bench().shell("a", "cat /v/said", { mounts })],
    });
    const source = `${server.address}:/share/later`;
    await bench().until(async () =>
      expect(JSON.stringify(await bench().get(id))).toMatch(`volume v: ${source} cannot be mounted: `),
    );
    mkdirSync(join(server.folder, "later"));
    writeFileSync(join(server.folder, "later", "said"), "at last\n");
    await bench().terminated(id, "a");
    expect(await bench().log(id, "a")).toEqual(["at last"]);
  });

  test("an option that guests do not have is refused by its name", async () => {
    const asked = bench().create({
      volumes: share({ mount_options: ["vers=3"] }),
      containers: [bench().shell("a", "true", { mounts })],
    });
    await expect(asked).rejects.toMatchObject({ code: "invalid", field: "volumes.0.mount_options" });
  });

  test("what a program has written to memory that is mapped from a file there is on the server when its machine has ended", async () => {
    const program = mappingProgram().toString("base64");
    const id = await bench().create({
      volumes: [
        ...share(),
        { name: "f", type: "files", version: "1", files: [{ path: "map", mode: 0o755, content_b64: program }] },
      ],
      containers: [bench().shell("a", "exec /f/map", { mounts: [...mounts, { volume: "f", path: "/f" }] })],
    });
    await bench().until(async () => expect(await bench().log(id, "a")).toEqual(["mapped"]));
    await bench().provider.deletePod(id, { force: true, signal: bench().signal });
    await bench().reaches(id, "deleted");
    expect(readFileSync(join(server.folder, "mapped"), "latin1").replaceAll("\0", "")).toBe("by memory");
  });

  test("a server that falls silent keeps no machine from its end", async () => {
    const other = await startNfsServer();
    try {
      const id = await bench().create({
        volumes: share({ server: other.address }),
        containers: [bench().shell("a", "while echo x > /v/x; do sleep 0.1; done", { mounts })],
      });
      await bench().reaches(id, "running");
      other.silence();
      await bench().provider.deletePod(id, { force: true, signal: bench().signal });
      await bench().reaches(id, "deleted");
    } finally {
      await other.stop();
    }
  });
}
