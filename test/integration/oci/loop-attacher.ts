/** A backend, as far as volumes know one: attaches volume `d` of the folder that it is told, says so, and lives on. */
import { LoopVolumes } from "../../../providers/local/volumes/loop-files.ts";
import { SharedPlaces } from "../../../src/queue/shared-places.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";

const dir = process.argv[2]!;
const volumes = new LoopVolumes({ dir, clock: systemClock, logger: silentLogger, walks: new SharedPlaces(1) });
const created_at = new Date(0).toISOString();
await volumes.attach(
  {
    fingerprint: "",
    volume: {
      id: "d",
      version: 1,
      labels: {},
      state: "available",
      size_bytes: 0,
      mode: "filesystem",
      created_at,
      reservations: [],
    },
  },
  { readOnly: false, mountOptions: [] },
);
process.stdout.write("attached");
setInterval(() => {}, 1_000_000);
