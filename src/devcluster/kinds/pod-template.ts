/** What controllers' specifications have in common: a selector of pods and a template to make them from. */
import { isSubset, matchesRequirements } from "../../resources/labels.ts";
import { invalidValue, notSupported, required, type FieldCause } from "../objects/errors.ts";
import { jsonEqual, type Json } from "../objects/object.ts";
import { validateLabelsAndAnnotations } from "../objects/validation.ts";
import { defaultPodSpec, validatePodSpec } from "./pod-rules.ts";

type Labels = Readonly<Record<string, string>>;

/** A `metav1.LabelSelector`: an empty one selects everything, an absent one nothing. */
export function selects(selector: Json, labels: Labels | undefined): boolean {
  if (!selector) return false;
  return (
    isSubset(selector.matchLabels ?? {}, labels ?? {}) &&
    matchesRequirements(labels ?? {}, selector.matchExpressions ?? [])
  );
}

/** The selector as text, `a=b,c in (d,e)`, as `status.selector` of a Scale has it. */
export function selectorText(selector: Json): string {
  const equal = Object.entries((selector?.matchLabels ?? {}) as Labels).map(([key, value]) => ({
    key,
    text: `${key}=${value}`,
  }));
  const others = ((selector?.matchExpressions ?? []) as Json[]).map(({ key, operator, values = [] }) => {
    const list = `(${[...(values as string[])].toSorted().join(",")})`;
    switch (operator) {
      case "In":
        return { key, text: `${key} in ${list}` };
      case "NotIn":
        return { key, text: `${key} notin ${list}` };
      case "Exists":
        return { key, text: key };
      default:
        return { key, text: `!${key}` };
    }
  });
  return [...equal, ...others]
    .toSorted((a, b) => (a.key < b.key ? -1 : a.key > b.key ? 1 : 0))
    .map(({ text }) => text)
    .join(",");
}

const isEmptySelector = (selector: Json): boolean =>
  Object.keys(selector?.matchLabels ?? {}).length === 0 && (selector?.matchExpressions ?? []).length === 0;

/** Fills the defaults into `spec.template`. */
export function defaultTemplate(spec: Json): void {
  spec.template ??= {};
  spec.template.metadata ??= { creationTimestamp: null };
  defaultPodSpec((spec.template.spec ??= {}));
}

/** Faults of a pod template at `path`, such as `spec.template`. */
export function validateTemplate(template: Json, path: string): FieldCause[] {
  const metadata = validateLabelsAndAnnotations(template.metadata ?? {}).map((cause) => ({
    ...cause,
    field: cause.field.replace(/^metadata\./, `${path}.`),
  }));
  const spec = validatePodSpec(template.spec).map((cause) => ({ ...cause, field: `${path}.${cause.field}` }));
  return [...metadata, ...spec];
}

/** Selector and template of a controller whose pods always run. @param what as messages call it: "deployment" */
export function validateSelectorAndTemplate(spec: Json, what: string): FieldCause[] {
  const causes: FieldCause[] = [];
  const { selector, template } = spec;
  if (!selector) causes.push(required("spec.selector"));
  else if (isEmptySelector(selector))
    causes.push(invalidValue("spec.selector", selector, `empty selector is invalid for ${what}`));
  else if (!selects(selector, template.metadata?.labels)) causes.push(unselected("spec.template", template));
  causes.push(...validateTemplate(template, "spec.template"));
  if (template.spec.restartPolicy !== "Always")
    causes.push(notSupported("spec.template.spec.restartPolicy", template.spec.restartPolicy, ["Always"]));
  return causes;
}

export const unselected = (path: string, template: Json): FieldCause =>
  invalidValue(
    `${path}.metadata.labels`,
    template.metadata?.labels ?? null,
    "`selector` does not match template `labels`",
  );

export const nonNegative = (field: string, value: Json): FieldCause[] =>
  typeof value === "number" && value < 0 ? [invalidValue(field, value, "must be greater than or equal to 0")] : [];

export const immutable = (field: string, next: Json, old: Json): FieldCause[] =>
  jsonEqual(next, old) ? [] : [invalidValue(field, next ?? null, "field is immutable")];

/** How many of `total` a number or a percentage is; percentages are rounded up or down. */
export function resolveIntOrPercent(value: Json, total: number, round: "up" | "down"): number {
  if (typeof value === "number") return value;
  const percent = Number(/^(\d+)%$/.exec(String(value ?? "0"))?.[1] ?? 0);
  return round === "up" ? Math.ceil((percent * total) / 100) : Math.floor((percent * total) / 100);
}

/** A field that takes whole numbers and percentages. */
export function validateIntOrPercent(field: string, value: Json): FieldCause[] {
  if (typeof value === "number") return nonNegative(field, value);
  if (typeof value === "string" && /^\d+%$/.test(value)) return [];
  return [
    invalidValue(
      field,
      value,
      "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')",
    ),
  ];
}

export const notMoreThan100Percent = (field: string, value: Json): FieldCause[] =>
  typeof value === "string" && /^\d+%$/.test(value) && Number.parseInt(value) > 100
    ? [invalidValue(field, value, "must not be greater than 100%")]
    : [];
