import { expect, test } from "vitest";
import { MAX_SESSIONS, Sessions } from "../../../providers/local/machine/sessions.ts";

const refused = { code: "unavailable", message: expect.stringContaining("try again when one has ended") };

test("a machine has only so many sessions at a time, and one more when one has ended", async () => {
  const sessions = new Sessions();
  const ends: (() => void)[] = [];
  const open = () =>
    sessions.begin(
      "m",
      () => Promise.resolve("session"),
      () => new Promise<void>((resolve) => ends.push(resolve)),
    );
  for (let count = 0; count < MAX_SESSIONS; count++) await open();
  await expect(open()).rejects.toMatchObject(refused);
  ends[0]!();
  await expect.poll(open).toBe("session");
  await expect(open()).rejects.toMatchObject(refused);
});

test("one that cannot be begun, or breaks off, counts no more", async () => {
  const sessions = new Sessions();
  const fail = () => Promise.reject(new Error("no such command"));
  for (let count = 0; count < 2 * MAX_SESSIONS; count++)
    await expect(sessions.begin("m", fail, () => Promise.resolve())).rejects.toThrow("no such command");
  for (let count = 0; count < 2 * MAX_SESSIONS; count++)
    await sessions.begin(
      "m",
      () => Promise.resolve(),
      () => Promise.reject(new Error("broken off")),
    );
});

test("those that are being begun count", async () => {
  const sessions = new Sessions();
  const never = () => new Promise<never>(() => undefined);
  for (let count = 0; count < MAX_SESSIONS; count++) void sessions.begin("m", never, never);
  await expect(sessions.begin("m", never, never)).rejects.toMatchObject(refused);
});
