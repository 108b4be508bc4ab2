/** Kinds of field that several parts of the configuration have. */
import { z } from "zod";
import { parseDuration } from "../resources/duration.ts";
import { isLabelValue, isQualifiedName } from "../resources/names.ts";
import { Quantity } from "../resources/quantity.ts";

/** What a JSON schema can say of durations and quantities; the checks below are the rule. */
export const DURATION_PATTERN = "^([0-9]+(\\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$|^0$";
const QUANTITY_PATTERN = "^[0-9.]+([KMGTPE]i|[numkMGTPE]|[eE][0-9]+)?$";

export const duration = (fallback: string) =>
  z
    .string()
    .refine(isDuration, "must be a duration such as 500ms, 10s, 5m or 1h")
    .meta({ pattern: DURATION_PATTERN })
    .default(fallback)
    .describe(`Duration. Default ${fallback}.`);

const QUANTITY_FAULT = "must be a Kubernetes quantity such as 500m, 4, 512Mi or 64Gi";

export const quantity = z
  .union([z.string().meta({ pattern: QUANTITY_PATTERN }), z.number()], QUANTITY_FAULT)
  .transform(String)
  .refine(isQuantity, QUANTITY_FAULT);

export function isDuration(text: string): boolean {
  try {
    return parseDuration(text) >= 0;
  } catch {
    return false;
  }
}

function isQuantity(text: string): boolean {
  const amount = Quantity.tryParse(text);
  return amount !== undefined && amount.nano >= 0n;
}

/** A certificate without its key, or the other way round, would be noticed when it is used first. */
export function pairUp(
  files: { certFile?: string | undefined; keyFile?: string | undefined },
  context: z.RefinementCtx,
): void {
  const [has, lacks] = files.certFile === undefined ? ["keyFile", "certFile"] : ["certFile", "keyFile"];
  if ((files.certFile === undefined) === (files.keyFile === undefined)) return;
  context.addIssue({ code: "custom", path: [has], message: `goes with ${lacks}, which is missing` });
}

export const LABEL_KEY_FAULT =
  "is not a label key: at most 63 letters, digits, '-', '_' and '.', after a DNS prefix and '/' if need be";
export const LABEL_VALUE_FAULT = "is not a label value: at most 63 letters, digits, '-', '_' and '.'";

export const labels = z
  .record(z.string(), z.string())
  .superRefine((entries, context) => {
    for (const [key, value] of Object.entries(entries)) {
      const refuse = (message: string) => context.addIssue({ code: "custom", path: [key], message });
      if (!isQualifiedName(key)) refuse(LABEL_KEY_FAULT);
      else if (!isLabelValue(value)) refuse(LABEL_VALUE_FAULT);
    }
  })
  .default({});

export const port = z.int().min(0).max(65535);
