/** The whole list, and which of the project's ids are held to by tests elsewhere. */
import { admissionCases } from "./admission.ts";
import type { ChecklistCase } from "./case.ts";
import { environmentCases } from "./environment.ts";
import { lifecycleCases } from "./lifecycle.ts";
import { startStopCases } from "./start-stop.ts";
import { volumeCases } from "./volumes.ts";

export const checklist: readonly ChecklistCase[] = [
  ...lifecycleCases,
  ...environmentCases,
  ...volumeCases,
  ...startStopCases,
  ...admissionCases,
];

/** Ids that need a world of their own, and the file whose tests are about them. */
export const elsewhere: Readonly<Record<string, string>> = {
  P11: "test/integration/pods.test.ts",
  P12: "test/simulation/protocol-1.test.ts",
  B05: "test/unit/provider/probe-actions.test.ts",
  I05: "test/unit/podspec/credential-provider.test.ts",
};

const range = (letter: string, last: number) =>
  Array.from({ length: last }, (_, index) => `${letter}${String(index + 1).padStart(2, "0")}`);

/** Every id that this project answers for here. */
export const ids: readonly string[] = [
  ...range("P", 31),
  ...range("E", 5),
  ...range("V", 10),
  ...range("B", 7),
  ...range("S", 3),
  "D01",
  ...range("C", 2),
  ...range("I", 5),
  ...range("R", 6),
  ...range("Z", 2),
  "K01",
];
