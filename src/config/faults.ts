/**
 * What is wrong with a value of a configuration file, in the words that all faults have: what it must be, and what it
 * is. What may be a secret is never repeated: only numbers, and words where the schema lists all that there are.
 */
import { z } from "zod";
import { didYouMean } from "../util/nearest.ts";

type Issue = z.core.$ZodRawIssue;

/** For `schema.safeParse(value, { error: faultOf })`. */
export function faultOf(issue: Issue): string | undefined {
  if (issue.input === undefined) return undefined;
  switch (issue.code) {
    // One line for each key.
    case "unrecognized_keys":
      return issue.keys.map((key) => `unknown key${didYouMean(key, keysOf(issue))}`).join("\n");
    case "invalid_value":
      return oneOf(issue.values, issue.input);
    case "invalid_type":
      return `must be ${TYPES[issue.expected] ?? issue.expected}, not ${kindOf(issue.input)}`;
    case "too_small":
      if (issue.origin === "string" && issue.minimum === 1) return "must not be empty";
      return `must ${measure(issue.origin)} ${issue.inclusive === false ? "more than" : "at least"} ${issue.minimum}${unit(issue.origin)}${found(issue.input)}`;
    case "too_big":
      return `must ${measure(issue.origin)} ${issue.inclusive === false ? "less than" : "at most"} ${issue.maximum}${unit(issue.origin)}${found(issue.input)}`;
    case "invalid_key":
      return issue.issues.map(({ message }) => message).join("; ");
    // The schema has its own words for these.
    case "custom":
    case "invalid_element":
    case "invalid_format":
    case "invalid_union":
    case "not_multiple_of":
      return undefined;
  }
}

/** The keys that a mapping may have in which an unknown one was found. */
function keysOf(issue: Issue): readonly string[] {
  return issue.inst instanceof z.ZodObject ? Object.keys(issue.inst.shape) : [];
}

/** What a value must be one of, what it is, and which is meant. */
export function oneOf(values: readonly unknown[], input: unknown): string {
  const known = values.map(String);
  const wanted = known.length === 1 ? `must be ${known[0]}` : `must be one of ${known.join(", ")}`;
  if (typeof input !== "string") return `${wanted}, not ${kindOf(input)}`;
  return `${wanted}, not ${input.slice(0, 64)}${known.length === 1 ? "" : didYouMean(input, known)}`;
}

const TYPES: Record<string, string> = {
  string: "a text",
  number: "a number",
  int: "a whole number",
  boolean: "true or false",
  array: "a list",
  object: "a mapping",
  record: "a mapping",
};

function kindOf(input: unknown): string {
  if (input === null) return "empty";
  if (typeof input === "number") return String(input);
  if (typeof input === "boolean") return String(input);
  if (Array.isArray(input)) return "a list";
  return typeof input === "string" ? "a text" : "a mapping";
}

const measure = (origin: string): string => (unit(origin) === "" ? "be" : "have");
const unit = (origin: string): string =>
  origin === "string" ? " characters" : origin === "array" || origin === "set" ? " entries" : "";
const found = (input: unknown): string => (typeof input === "number" ? `, not ${input}` : "");
