/** Label and field selectors of list, watch and deletecollection requests. */
import { matchesRequirements, parseSelector, type Requirement } from "../../resources/labels.ts";
import { toError } from "../../util/errors.ts";
import { badRequest } from "./errors.ts";

type LabelPredicate = (labels: Readonly<Record<string, string>> | undefined) => boolean;

/** `a=b,c!=d,e in (f,g),!h`. @throws ApiStatusError 400 when it cannot be read */
export function labelPredicate(text: string): LabelPredicate {
  let requirements: Requirement[];
  try {
    requirements = parseSelector(text);
  } catch (thrown) {
    throw badRequest(`unable to parse requirement: ${toError(thrown).message}`);
  }
  return (labels) => matchesRequirements(labels ?? {}, requirements);
}

interface FieldRequirement {
  field: string;
  equal: boolean;
  value: string;
}

/** `a=b,c!=d`; a backslash escapes `,`, `=` and itself. @throws ApiStatusError 400 when it cannot be read */
export function parseFieldSelector(text: string): FieldRequirement[] {
  return text
    .split(/(?<!\\),/)
    .filter((term) => term !== "")
    .map((term) => {
      const match = /^((?:[^=!\\]|\\.)+?)(==|!=|=)(.*)$/.exec(term);
      if (!match) throw badRequest(`invalid selector: '${text}'; can't understand '${term}'`);
      return { field: match[1]!.trim(), equal: match[2] !== "!=", value: match[3]!.replaceAll(/\\(.)/g, "$1") };
    });
}
