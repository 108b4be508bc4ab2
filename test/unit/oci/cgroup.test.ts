import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { Cgroup } from "../../../providers/local/bundle/cgroup.ts";
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
