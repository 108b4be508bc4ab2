/**
 * Selecting by labels, as the API server, the scheduler and the kubelet do it: label selectors (as objects and as
 * text), node selector terms, and taints with tolerations.
 */
import { VmletError } from "../util/errors.ts";

export type Labels = Readonly<Record<string, string>>;

type Operator = "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt";

export interface Requirement {
  readonly key: string;
  readonly operator: Operator;
  readonly values: readonly string[];
}

/** Operators are strings, as on the wire. */
interface WireRequirement {
  readonly key: string;
  readonly operator: string;
  readonly values?: readonly string[] | undefined;
}

interface NodeSelectorTerm {
  readonly matchExpressions?: readonly WireRequirement[] | undefined;
  readonly matchFields?: readonly WireRequirement[] | undefined;
}

export interface Taint {
  readonly key: string;
  readonly value?: string | undefined;
  readonly effect: string;
}

export interface Toleration {
  readonly key?: string | undefined;
  readonly operator?: string | undefined;
  readonly value?: string | undefined;
  readonly effect?: string | undefined;
}

/** @internal */
export class SelectorError extends VmletError {
  readonly code = "INVALID_SELECTOR";
}

/** True when every requirement holds. No requirement selects everything. */
export function matchesRequirements(labels: Labels, requirements: readonly WireRequirement[]): boolean {
  return requirements.every((requirement) => matchesRequirement(labels, requirement));
}

/** True when `labels` has every pair of `wanted`. */
export function isSubset(wanted: Labels, labels: Labels): boolean {
  return Object.entries(wanted).every(([key, value]) => lookUp(labels, key) === value);
}

function matchesRequirement(labels: Labels, requirement: WireRequirement): boolean {
  const value = lookUp(labels, requirement.key);
  const values = requirement.values ?? [];
  switch (requirement.operator) {
    case "In":
      return value !== undefined && values.includes(value);
    case "NotIn":
      return value === undefined || !values.includes(value);
    case "Exists":
      return value !== undefined;
    case "DoesNotExist":
      return value === undefined;
    case "Gt":
    case "Lt": {
      const left = parseInteger(value);
      const right = parseInteger(values.length === 1 ? values[0] : undefined);
      if (left === undefined || right === undefined) return false;
      return requirement.operator === "Gt" ? left > right : left < right;
    }
    default:
      return false;
  }
}

/**
 * Parses the text form: `a=b,c!=d,e in (x,y),f notin (z),g,!h,i>1`.
 * @throws SelectorError that names the part at fault
 */
export function parseSelector(text: string): Requirement[] {
  return splitOutsideParentheses(text)
    .map((part) => part.trim())
    .filter((part) => part !== "")
    .map(parseRequirement);
}

function parseRequirement(part: string): Requirement {
  const set = /^([^\s!=<>(),]+)\s+(in|notin)\s*\(([^()]*)\)$/.exec(part);
  if (set) {
    const [, key = "", operator, list = ""] = set;
    return { key, operator: operator === "in" ? "In" : "NotIn", values: list.split(",").map((value) => value.trim()) };
  }
  const compared = /^([^\s!=<>(),]+)\s*(==|=|!=|>|<)\s*([^\s!=<>(),]*)$/.exec(part);
  if (compared) {
    const [, key = "", sign = "", value = ""] = compared;
    const operator = sign === "!=" ? "NotIn" : sign === ">" ? "Gt" : sign === "<" ? "Lt" : "In";
    return { key, operator, values: [value] };
  }
  const bare = /^(!?)\s*([^\s!=<>(),]+)$/.exec(part);
  if (bare) return { key: bare[2] ?? "", operator: bare[1] === "!" ? "DoesNotExist" : "Exists", values: [] };
  throw new SelectorError(`unable to parse requirement "${part.slice(0, 128)}" of a label selector`);
}

function splitOutsideParentheses(text: string): string[] {
  const parts: string[] = [];
  let depth = 0;
  let start = 0;
  for (let i = 0; i < text.length; i++) {
    const character = text[i];
    if (character === "(") depth++;
    else if (character === ")") depth--;
    else if (character === "," && depth === 0) {
      parts.push(text.slice(start, i));
      start = i + 1;
    }
  }
  parts.push(text.slice(start));
  return parts;
}

/**
 * True when the node satisfies one of the terms (component-helpers `nodeaffinity`): terms are ORed, the requirements in
 * one are ANDed, an empty term matches nothing. The only field is `metadata.name`.
 */
export function matchesNodeSelectorTerms(
  node: { readonly name: string; readonly labels: Labels },
  terms: readonly NodeSelectorTerm[],
): boolean {
  return terms.some((term) => {
    const expressions = term.matchExpressions ?? [];
    const fields = term.matchFields ?? [];
    if (expressions.length === 0 && fields.length === 0) return false;
    if (!matchesRequirements(node.labels, expressions)) return false;
    return fields.every(
      (field) =>
        (field.operator === "In" || field.operator === "NotIn") &&
        field.values?.length === 1 &&
        matchesRequirement({ "metadata.name": node.name }, field),
    );
  });
}

/** True when the toleration covers the taint (api/core/v1 `ToleratesTaint`). */
export function toleratesTaint(toleration: Toleration, taint: Taint): boolean {
  if (toleration.effect !== undefined && toleration.effect !== "" && toleration.effect !== taint.effect) return false;
  if (toleration.key !== undefined && toleration.key !== "" && toleration.key !== taint.key) return false;
  switch (toleration.operator ?? "") {
    case "":
    case "Equal":
      return (toleration.value ?? "") === (taint.value ?? "");
    case "Exists":
      return true;
    case "Lt":
    case "Gt": {
      const tolerated = parseInteger(toleration.value);
      const actual = parseInteger(taint.value);
      if (tolerated === undefined || actual === undefined) return false;
      return toleration.operator === "Lt" ? actual < tolerated : actual > tolerated;
    }
    default:
      return false;
  }
}

/** The first taint with one of `effects` that no toleration covers. */
export function findUntoleratedTaint(
  taints: readonly Taint[],
  tolerations: readonly Toleration[],
  effects: readonly string[],
): Taint | undefined {
  return taints.find(
    (taint) => effects.includes(taint.effect) && !tolerations.some((toleration) => toleratesTaint(toleration, taint)),
  );
}

/** Labels are data: a key such as `constructor` must not find what every object inherits. */
function lookUp(labels: Labels, key: string): string | undefined {
  return Object.hasOwn(labels, key) ? labels[key] : undefined;
}

/** Int64 as Go's `strconv.ParseInt` takes it, else undefined. */
function parseInteger(text: string | undefined): bigint | undefined {
  if (text === undefined || !/^[+-]?\d{1,19}$/.test(text)) return undefined;
  const value = BigInt(text.startsWith("+") ? text.slice(1) : text);
  return value >= -(2n ** 63n) && value < 2n ** 63n ? value : undefined;
}
