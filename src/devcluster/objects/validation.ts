/** Names and metadata, in the rules and the words of `apimachinery/pkg/util/validation` and `pkg/api/validation`. */
import { isRecord, type Json } from "./object.ts";
import { invalidValue, required, type FieldCause } from "./errors.ts";

const LABEL = /^[a-z0-9]([-a-z0-9]*[a-z0-9])?$/;
const SUBDOMAIN = /^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$/;
const QUALIFIED = /^([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$/;

export const LABEL_RULE =
  "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
export const SUBDOMAIN_RULE =
  "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL_VALUE_RULE =
  "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const QUALIFIED_RULE =
  "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";

/** Annotations may take 256 KiB together. */
const ANNOTATION_LIMIT = 256 * 1024;

export const isDnsLabel = (name: string): boolean => name.length <= 63 && LABEL.test(name);
export const isDnsSubdomain = (name: string): boolean => name.length <= 253 && SUBDOMAIN.test(name);

export type NameRule = "label" | "subdomain" | "path";

function nameCauses(rule: NameRule, name: string, field: string): FieldCause[] {
  const tooLong = (limit: number) =>
    name.length > limit ? [invalidValue(field, name, `must be no more than ${limit} bytes`)] : [];
  switch (rule) {
    case "label":
      return [...tooLong(63), ...(LABEL.test(name) ? [] : [invalidValue(field, name, LABEL_RULE)])];
    case "subdomain":
      return [...tooLong(253), ...(SUBDOMAIN.test(name) ? [] : [invalidValue(field, name, SUBDOMAIN_RULE)])];
    case "path":
      return /[/%]/.test(name) || name === "." || name === ".."
        ? [invalidValue(field, name, "may not contain '/' or '%', and may not be '.' or '..'")]
        : [];
  }
}

/** `metadata` of a new object. */
export function validateMeta(meta: Json, rule: NameRule): FieldCause[] {
  const causes: FieldCause[] = [];
  if (!meta.name && !meta.generateName) causes.push(required("metadata.name", "name or generateName is required"));
  else if (meta.name) causes.push(...nameCauses(rule, meta.name, "metadata.name"));
  causes.push(...validateLabelsAndAnnotations(meta));
  (meta.finalizers ?? []).forEach((finalizer: string, i: number) => {
    if (!finalizer.includes("/") && !["orphan", "foregroundDeletion", "kubernetes"].includes(finalizer)) {
      causes.push(
        invalidValue(
          `metadata.finalizers[${i}]`,
          finalizer,
          "name is neither a standard finalizer name nor is it fully qualified",
        ),
      );
    }
  });
  return causes;
}

export function validateLabelsAndAnnotations(meta: Json): FieldCause[] {
  const causes: FieldCause[] = [];
  for (const [key, value] of Object.entries((isRecord(meta.labels) ? meta.labels : {}) as Record<string, string>)) {
    causes.push(...qualifiedName(key, "metadata.labels"));
    if (value.length > 63) causes.push(invalidValue("metadata.labels", value, "must be no more than 63 bytes"));
    else if (value !== "" && !QUALIFIED.test(value))
      causes.push(invalidValue("metadata.labels", value, LABEL_VALUE_RULE));
  }
  let total = 0;
  for (const [key, value] of Object.entries(
    (isRecord(meta.annotations) ? meta.annotations : {}) as Record<string, string>,
  )) {
    causes.push(...qualifiedName(key.toLowerCase(), "metadata.annotations"));
    total += Buffer.byteLength(key) + Buffer.byteLength(value);
  }
  if (total > ANNOTATION_LIMIT) {
    causes.push({
      reason: "FieldValueTooLong",
      field: "metadata.annotations",
      message: `Too long: may not be more than ${ANNOTATION_LIMIT} bytes`,
    });
  }
  return causes;
}

function qualifiedName(key: string, field: string): FieldCause[] {
  const parts = key.split("/");
  const name = parts.at(-1)!;
  if (parts.length > 2)
    return [
      invalidValue(
        field,
        key,
        `a valid label key ${QUALIFIED_RULE.slice("name part ".length)} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')`,
      ),
    ];
  if (parts.length === 2 && !isDnsSubdomain(parts[0]!))
    return [invalidValue(field, key, `prefix part ${SUBDOMAIN_RULE}`)];
  if (name.length > 63) return [invalidValue(field, key, "name part must be no more than 63 bytes")];
  return QUALIFIED.test(name) ? [] : [invalidValue(field, key, QUALIFIED_RULE)];
}
