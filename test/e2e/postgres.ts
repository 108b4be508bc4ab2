/** PostgreSQL of this host's Debian packages as an image, and a load that remembers what the database said is committed. */
import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { readdir, readFile, realpath } from "node:fs/promises";
import { dirname, join } from "node:path";
import { createInterface } from "node:readline";
import { hostPrograms } from "../conformance/kubernetes/images.ts";
import { busyboxImage, type TarEntry, type TestImage } from "../support/registry.ts";
import { runCommand } from "./harness/exec.ts";
import type { Json } from "./harness/client.ts";
import { must, passTime, waitFor } from "./harness/wait.ts";

const PACKAGES = "/usr/lib/postgresql";
const PROGRAMS = ["postgres", "initdb", "psql"];
/** Loaded by `initdb`, or by every server. */
const MODULES = ["plpgsql.so", "dict_snowball.so"];
const ZONES = ["/usr/share/zoneinfo/UTC", "/usr/share/zoneinfo/Etc/UTC", "/usr/share/zoneinfo/GMT"];
/** Of the image's user `app`, and of the volume's group. */
const USER = 1000;

/** The newest version that is installed; undefined when there is none. */
export async function postgresVersion(): Promise<string | undefined> {
  const versions = existsSync(PACKAGES) ? await readdir(PACKAGES) : [];
  return versions.toSorted((a, b) => Number(b) - Number(a))[0];
}

export async function postgresImage(version: string): Promise<TestImage> {
  const bin = join(PACKAGES, version, "bin");
  const lib = join(PACKAGES, version, "lib");
  const share = `/usr/share/postgresql/${version}`;
  const programs = PROGRAMS.map((name) => join(bin, name));
  const libraries = await Promise.all(
    programs.map(async (program) => {
      const { stdout } = await runCommand("ldd", [await realpath(program)]);
      return [...stdout.matchAll(/\/\S+(?= \()/g)].map(([path]) => path);
    }),
  );
  const shared = (await readdir(share, { recursive: true, withFileTypes: true }))
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name));
  const files = new Set([
    ...programs,
    ...MODULES.map((name) => join(lib, name)),
    ...libraries.flat(),
    ...shared,
    ...ZONES.filter((path) => existsSync(path)),
  ]);
  const entries = await Promise.all(
    [...files].map(async (path): Promise<TarEntry> => ({
      path: path.slice(1),
      content: await readFile(path),
      mode: 0o755,
    })),
  );
  const parents = new Set<string>();
  for (const { path } of entries) for (let each = dirname(path); each !== "."; each = dirname(each)) parents.add(each);
  const folders = [...parents].toSorted().map((path): TarEntry => ({ path, type: "directory", mode: 0o755 }));
  return busyboxImage([...folders, ...entries, ...(await hostPrograms(["bash"]))], {
    Env: [`PATH=${bin}:/bin:/usr/bin`, "TZ=UTC", "LC_ALL=C"],
    User: String(USER),
  });
}

/** A server with its data on a volume of its own, as every database's documentation has it. */
export function postgresStatefulSet(image: string, podSpec: (spec: Json) => Json): Json {
  const script = `
set -e
if [ ! -s /data/pg/PG_VERSION ]; then
  rm -rf /data/new
  initdb --pgdata=/data/new --username=app --auth=trust --encoding=UTF8 --locale=C --no-instructions
  echo "host all all all trust" >> /data/new/pg_hba.conf
  sync
  mv /data/new /data/pg
fi
exec postgres -D /data/pg -c listen_addresses='*' -c unix_socket_directories=/tmp -c shared_buffers=16MB -c jit=off \\
  -c max_connections=20 -c checkpoint_timeout=30s -c max_wal_size=64MB -c min_wal_size=32MB -c wal_recycle=off
`;
  return {
    metadata: { name: "pg" },
    spec: {
      replicas: 1,
      serviceName: "pg",
      selector: { matchLabels: { app: "pg" } },
      template: {
        metadata: { labels: { app: "pg" } },
        spec: podSpec({
          terminationGracePeriodSeconds: 20,
          securityContext: { runAsUser: USER, runAsGroup: USER, fsGroup: USER, fsGroupChangePolicy: "OnRootMismatch" },
          containers: [
            {
              name: "postgres",
              image,
              command: ["sh", "-c", script],
              volumeMounts: [{ name: "data", mountPath: "/data" }],
              readinessProbe: {
                exec: { command: ["psql", "-h", "/tmp", "-U", "app", "-d", "postgres", "-qAtc", "select 1"] },
                periodSeconds: 1,
                timeoutSeconds: 5,
              },
            },
          ],
        }),
      },
      volumeClaimTemplates: [
        {
          metadata: { name: "data" },
          spec: { accessModes: ["ReadWriteOnce"], resources: { requests: { storage: "320Mi" } } },
        },
      ],
    },
  };
}

/** A server that is gone without a word is given up soon. */
const psqlArgs = (address: string) => [
  "-XAt",
  "-v",
  "ON_ERROR_STOP=1",
  `host=${address} user=app dbname=postgres connect_timeout=3 tcp_user_timeout=3000 keepalives_idle=2 keepalives_interval=1 keepalives_count=2`,
];

/** @throws Error when the server does not answer */
export async function query(address: string, sql: string): Promise<string> {
  const { stdout } = await runCommand("psql", [...psqlArgs(address), "-c", sql]);
  return stdout.trim();
}

/** Clients that write one row after another, each in a transaction of its own, and begin again when they lose the server. */
export class Load {
  /** What the server has said is committed. */
  readonly committed = new Set<number>();
  readonly #address: () => Promise<string>;
  readonly #stop = new AbortController();
  readonly #clients: Promise<void>[];
  #next = 0;

  constructor(address: () => Promise<string>, clients = 3) {
    this.#address = address;
    this.#clients = Array.from({ length: clients }, () => this.#client());
  }

  async stop(): Promise<void> {
    this.#stop.abort();
    await Promise.all(this.#clients);
  }

  /** Waits until so many rows more are committed: the server works again. */
  async goesOn(rows: number, timeoutMs: number): Promise<void> {
    const wanted = this.committed.size + rows;
    await waitFor({ what: `${rows} more rows`, timeoutMs }, () =>
      must(this.committed.size >= wanted, this.committed.size),
    );
  }

  async #client(): Promise<void> {
    while (!this.#stop.signal.aborted) {
      const address = await this.#address().catch(() => undefined);
      if (address !== undefined) await this.#write(address);
      await passTime(50, "a server that is away is not asked all the time");
    }
  }

  /** Until the connection ends. A row whose fate nobody told may be there or not. */
  async #write(address: string): Promise<void> {
    const child = spawn("psql", psqlArgs(address), { stdio: ["pipe", "pipe", "ignore"] });
    const end = () => child.kill("SIGKILL");
    this.#stop.signal.addEventListener("abort", end);
    child.stdin.on("error", () => undefined);
    let current: number | undefined;
    const insert = () => {
      current = this.#next++;
      child.stdin.write(`insert into rows values (${current});\n`);
    };
    insert();
    for await (const line of createInterface({ input: child.stdout })) {
      if (line !== "INSERT 0 1" || current === undefined) continue;
      this.committed.add(current);
      insert();
    }
    this.#stop.signal.removeEventListener("abort", end);
    child.kill("SIGKILL");
  }
}
