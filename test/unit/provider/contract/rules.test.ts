/** Every rule that the Machine API's document states in words is looked at by the kit, or it is said why it cannot be. */
import { expect, test } from "vitest";
import { checksOf, contractRules, holderOf, idleHolders } from "../../../support/contract-rules.ts";

const rules = contractRules();

test("the document's rules are found", () => {
  expect(rules.length).toBeGreaterThan(40);
  expect(rules).toContainEqual(
    expect.objectContaining({ where: "ContainerState restart_count", sentence: "Never falls." }),
  );
});

test("every rule has a check, or a reason why it cannot have one", () => {
  expect(rules.filter((rule) => holderOf(rule) === undefined)).toEqual([]);
});

test("every check that is named for a rule is one of the kit's", () => {
  const holders = rules.map(holderOf).filter((holder) => holder?.checks !== undefined);
  for (const holder of holders)
    for (const beginning of holder!.checks!)
      expect(checksOf({ begins: "", checks: [beginning] }), beginning).not.toEqual([]);
});

test("nothing is kept for a rule that the document does not state any more", () => {
  expect(idleHolders(rules)).toEqual([]);
});
