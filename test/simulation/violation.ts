/** An invariant that does not hold. `rule` is its name in test/README.md, such as "S4". */
export class Violation extends Error {
  readonly rule: string;

  constructor(rule: string, what: string) {
    super(`${rule} ${what}`);
    this.rule = rule;
  }
}
