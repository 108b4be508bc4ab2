/** With VMLET_TEST_SLICE=N each N-th test of a file is run, for suites whose tests stand alone. CI does so; by hand all are run. */
import { beforeEach } from "vitest";

const STEP = Number(process.env["VMLET_TEST_SLICE"] ?? 1);
/** By the test's id: one that is tried again is the same. */
const places = new Map<string, number>();

beforeEach(({ task, skip }) => {
  const place = places.get(task.id) ?? places.size;
  places.set(task.id, place);
  skip(place % STEP !== 0, `each ${STEP}. test is run (VMLET_TEST_SLICE)`);
});
