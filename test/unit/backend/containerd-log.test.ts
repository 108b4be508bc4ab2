import { expect, test } from "vitest";
import { lastWords, loggedExits } from "../../../providers/local/engines/cri/containerd-log.ts";

const id = "a1".repeat(32);
const line = (msg: string, more: object = {}) => `${JSON.stringify({ level: "info", msg, ...more })}\n`;
const ended = (rest: string) => `received container exit event container_id:"${id}"  id:"${id}"  pid:70  ${rest}`;

test("the log tells how a container has ended, and when", () => {
  const log = line("StartContainer") + line(ended("exit_status:7  exited_at:{seconds:1795000000 nanos:250000000}"));
  expect(loggedExits(log)).toEqual(new Map([[id, { exitCode: 7, finishedAt: 1_795_000_000_250 }]]));
});

test("an exit code that is left out is zero", () => {
  expect(loggedExits(line(ended("exited_at:{seconds:5}")))).toEqual(new Map([[id, { exitCode: 0, finishedAt: 5000 }]]));
});

test("what containerd says of an end that it has not seen is not taken for an exit code", () => {
  expect(loggedExits(line(ended("exit_status:255 exited_at:{seconds:5}")))).toEqual(new Map());
});

test("a name that looks like a line of the log is none, nor is half a line", () => {
  const name = `x\n${line(ended("exit_status:7"))}`;
  expect(loggedExits(line(`PullImage "${name}"`) + line(ended("exit_status:7")).slice(0, -3))).toEqual(new Map());
});

test("people are told its last messages with their errors, and what is no line of its own", () => {
  const log = `${line("starting")}${line("cannot load a plugin", { error: "no space" })}panic: nil\n`;
  expect(lastWords(log, 1000)).toBe("starting\ncannot load a plugin: no space\npanic: nil");
  expect(lastWords(log, 10)).toBe("panic: nil");
});
