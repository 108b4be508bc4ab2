/**
 * PostgreSQL on a volume of a host that loses its power: what it has said is committed is there, each row once.
 * By hand, with Debian's postgresql: `POWERCUT_DATABASE`: how often (default 0: not at all), `POWERCUT_SEED` and
 * `POWERCUT_ENGINE` as in powercut.test.ts.
 */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { inspect } from "node:util";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { MachineSpec } from "../../src/provider/machine.ts";
import { must } from "../e2e/harness/wait.ts";
import { postgresImage, postgresVersion } from "../e2e/postgres.ts";
import { seeded } from "../simulation/seeded.ts";
import { containerdPrograms } from "../support/containerd.ts";
import { startRegistry, type TestRegistry } from "../support/registry.ts";
import { EmulatedHost, insideName, makeImages, missingForHost, type Patience } from "./host/host.ts";
import { Roll } from "./workload.ts";

const CUTS = Number(process.env["POWERCUT_DATABASE"] ?? 0);
const SEED = Number(process.env["POWERCUT_SEED"] ?? 1);
const ENGINE = process.env["POWERCUT_ENGINE"] === "cri" ? "cri" : "oci";
/** In how many writes and flushes of the disk, at most, the cut comes. */
const OPERATIONS = 400;
/** Emulated, a database is made in some minutes of a processor, and recovers in one. */
const FIRST: Patience = { processorMs: 600_000, ms: 1_800_000 };
const AGAIN: Patience = { processorMs: 300_000, ms: 900_000 };
const CUT_MS = 3_600_000;
const ROWS = 5;
const DATABASE = "db";

const version = CUTS > 0 ? await postgresVersion() : undefined;
const programs = ENGINE === "cri" && version !== undefined ? await containerdPrograms() : undefined;

/** A server, and a client beside it that tells outside of each row which is committed. */
function database(image: string, rollPort: number): MachineSpec {
  const say = (word: string) => `echo "${word}" | timeout 20 nc -w 5 10.0.2.2 ${rollPort}`;
  const script = `
if [ ! -s /data/pg/PG_VERSION ]; then
  rm -rf /data/new
  initdb --pgdata=/data/new --username=app --auth=trust --encoding=UTF8 --locale=C --no-instructions --wal-segsize=1
  sync
  mv /data/new /data/pg
fi
# What a server has left that lost its power with it.
rm -f /data/pg/postmaster.pid
postgres -D /data/pg -c listen_addresses= -c unix_socket_directories=/tmp -c shared_buffers=16MB -c jit=off \\
  -c max_connections=10 -c checkpoint_timeout=30s -c max_wal_size=16MB -c min_wal_size=4MB -c wal_recycle=off &
sql() { psql -XqAt -v ON_ERROR_STOP=1 -h /tmp -U app -d postgres -c "$1"; }
until sql "create table if not exists rows (id int primary key)"; do sleep 1; done
n=$(sql "select case when count(*) = coalesce(max(id), 0) then count(*) else -1 end from rows")
${say(`found ${DATABASE} $n`)}
while :; do
  sql "insert into rows values ($((n + 1)))" || exit 1
  n=$((n + 1))
  ${say(`wrote ${DATABASE} $n`)}
done`;
  return {
    labels: {},
    restart_policy: "always",
    termination_grace_s: 1,
    volumes: [{ type: "persistent", name: "data", volume: DATABASE }],
    containers: [
      { name: "postgres", image, command: ["sh", "-c", script], mounts: [{ volume: "data", path: "/data" }] },
    ],
  };
}

describe.skipIf(version === undefined || missingForHost().length > 0)(
  "PostgreSQL on a host that loses its power",
  () => {
    const random = seeded(SEED);
    /** What the database had whenever it came up: as many rows as the last one's number, or -1. */
    const found: number[] = [];
    const inventions: string[] = [];
    const roll: Roll = new Roll((word) => {
      if (!("found" in word)) return;
      found.push(word.number);
      const most = (roll.written.get(DATABASE) ?? 0) + 1;
      if (word.number > most) inventions.push(`${word.number} rows are there, of which ${most} were asked for`);
    });
    let dir: string;
    let registry: TestRegistry;
    let host: EmulatedHost;
    const written = () => roll.written.get(DATABASE) ?? 0;
    const inTime = () => ({ signal: AbortSignal.timeout(60_000) });

    const goesOn = async (patience: Patience): Promise<void> => {
      const wanted = written() + ROWS;
      await host.waitFor(`row ${wanted}`, patience, () => {
        must(written() >= wanted, written());
        return Promise.resolve();
      });
    };

    beforeAll(async () => {
      dir = await mkdtemp(join(tmpdir(), "vmlet-powercut-database-"));
      registry = await startRegistry();
      await registry.push("t/postgres:1", await postgresImage(version!));
      const port = await roll.listen();
      host = await EmulatedHost.make(await makeImages(dir, programs), registry.host, { engine: ENGINE });
      await host.boot();
      const provider = host.provider();
      const volume = { labels: {}, size_bytes: 256 * 2 ** 20, mode: "filesystem" } as const;
      await host.waitFor("the volume", AGAIN, async () => {
        await provider.volumes.create(DATABASE, volume, inTime());
      });
      const machine = database(`${insideName(registry.host)}/t/postgres:1`, port);
      await host.waitFor("the machine", AGAIN, async () => {
        await provider.createPod("pg", machine, inTime());
      });
      await goesOn(FIRST).catch(async (thrown: unknown) => {
        throw new Error(inspect(await provider.getPod("pg", inTime()), { depth: 6 }), { cause: thrown });
      });
    }, CUT_MS);

    afterAll(async () => {
      await host?.close();
      roll.close();
      await registry?.stop();
      await rm(dir, { recursive: true, force: true });
    });

    test.each(Array.from({ length: CUTS }, (_, index) => index + 1))(
      "has every committed row after cut %i, and works on",
      { timeout: CUT_MS },
      async (number) => {
        const cut = Promise.withResolvers<void>();
        host.disk.cutAfter(1 + Math.floor(random() * OPERATIONS), cut.resolve);
        await cut.promise;
        await host.cut(random);
        const [before, ups] = [written(), found.length];
        await host.boot();
        await goesOn(AGAIN);
        console.log(
          JSON.stringify({ engine: ENGINE, cut: number, before, found: found.slice(ups), disk: host.disk.count }),
        );
        expect([...roll.faults, ...inventions]).toEqual([]);
        expect(found.length).toBeGreaterThan(ups);
      },
    );
  },
);
