import { expect, test } from "vitest";
import type { Vm } from "../../../providers/cloud/cloud.ts";
import { Guests } from "../../../providers/cloud/guests.ts";
import { MemoryProvider } from "../../../providers/memory/index.ts";

const booting: Vm = { name: "a", labels: { birth: "1" }, state: "running", isSeen: true, addresses: [] };

function opening() {
  const opened: (() => Vm)[] = [];
  const guests = new Guests((_vm, now) => {
    opened.push(now);
    return new MemoryProvider({});
  });
  return { guests, opened };
}

test("a VM that gets its address while its guest is spoken to keeps the connection, and is dialled there from then on", () => {
  const { guests, opened } = opening();
  const guest = guests.of(booting);
  const addressed = { ...booting, addresses: ["10.0.0.2"] };
  expect(guests.of(addressed)).toBe(guest);
  expect(opened.map((now) => now())).toEqual([addressed]);
});

test("the guest of another VM by the same name is another", () => {
  const { guests, opened } = opening();
  const guest = guests.of(booting);
  const successor = { ...booting, labels: { birth: "2" } };
  expect(guests.of(successor)).not.toBe(guest);
  expect(opened.map((now) => now())).toEqual([booting, successor]);
});
