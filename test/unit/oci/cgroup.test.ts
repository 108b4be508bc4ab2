import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { Cgroup, stallOf } from "../../../providers/local/bundle/cgroup.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

/** Above any process id that Linux gives. */
const NOBODY = 2 ** 22 + 1;

/** Time that goes by at once. */
const clock = new VirtualClock();

beforeEach(() => void vi.spyOn(clock, "sleep").mockResolvedValue());
afterEach(() => vi.restoreAllMocks());

test("the caller is told when something in a group does not end after SIGKILL", async () => {
  vi.spyOn(Cgroup.prototype, "processes").mockResolvedValue([NOBODY]);
  await expect(new Cgroup("/vmlet-test-none").kill(clock)).rejects.toMatchObject({
    code: "unavailable",
    message: expect.stringContaining(`${NOBODY}`),
  });
});

test("what ends by and by is waited for", async () => {
  const left = [[NOBODY, NOBODY + 1], [NOBODY], []];
  vi.spyOn(Cgroup.prototype, "processes").mockImplementation(() => Promise.resolve(left.shift() ?? []));
  await new Cgroup("/vmlet-test-none").kill(clock);
  expect(left).toEqual([]);
});

test("pressure is told as the kernel tells it, and as none where it does not", () => {
  const some = "some avg10=1.50 avg60=0.25 avg300=0.00 total=123456\n";
  const full = "full avg10=0.10 avg60=0.00 avg300=0.00 total=99\n";
  const none = { total_us: 0, avg10: 0, avg60: 0, avg300: 0 };
  expect(stallOf(some + full)).toEqual({
    some: { total_us: 123456, avg10: 1.5, avg60: 0.25, avg300: 0 },
    full: { total_us: 99, avg10: 0.1, avg60: 0, avg300: 0 },
  });
  // Linux before 5.13 has no `full` of processors.
  expect(stallOf(some)).toMatchObject({ some: { total_us: 123456 }, full: none });
  expect(stallOf("")).toBeUndefined();
  expect(stallOf("some avg10=x avg60=-1 avg300=1e9 total=1e99")).toEqual({
    some: { total_us: Number.MAX_SAFE_INTEGER, avg10: 0, avg60: 0, avg300: 100 },
    full: none,
  });
});
