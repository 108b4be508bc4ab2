/** What is wrong with a container of a pod, as `ValidateContainers` says it (pkg/apis/core/validation). */
import { Quantity } from "../../resources/quantity.ts";
import type { Json } from "../objects/object.ts";
import { duplicate, invalidValue, notSupported, required, type FieldCause } from "../objects/errors.ts";
import { isDnsLabel, LABEL_RULE } from "../objects/validation.ts";

const pullPolicies = ["Always", "IfNotPresent", "Never"];

export function validateContainer(c: Json, at: string, names: Set<string>, volumes: ReadonlySet<string>): FieldCause[] {
  const causes: FieldCause[] = [];
  if (!c.name) causes.push(required(`${at}.name`));
  else if (!isDnsLabel(c.name)) causes.push(invalidValue(`${at}.name`, c.name, LABEL_RULE));
  else if (names.has(c.name)) causes.push(duplicate(`${at}.name`, c.name));
  names.add(c.name);
  if (!c.image) causes.push(required(`${at}.image`));
  if (!pullPolicies.includes(c.imagePullPolicy))
    causes.push(notSupported(`${at}.imagePullPolicy`, c.imagePullPolicy, pullPolicies));
  return [
    ...causes,
    ...validatePorts(c, at),
    ...validateEnv(c, at),
    ...validateMounts(c, at, volumes),
    ...validateResources(c, at),
  ];
}

function validatePorts(c: Json, at: string): FieldCause[] {
  const causes: FieldCause[] = [];
  (c.ports ?? []).forEach((port: Json, i: number) => {
    const field = `${at}.ports[${i}].containerPort`;
    if (!port.containerPort) causes.push(required(field));
    else if (port.containerPort < 1 || port.containerPort > 65535)
      causes.push(invalidValue(field, port.containerPort, "must be between 1 and 65535, inclusive"));
    if (!["TCP", "UDP", "SCTP"].includes(port.protocol))
      causes.push(notSupported(`${at}.ports[${i}].protocol`, port.protocol, ["SCTP", "TCP", "UDP"]));
  });
  return causes;
}

function validateEnv(c: Json, at: string): FieldCause[] {
  const causes: FieldCause[] = [];
  (c.env ?? []).forEach((env: Json, i: number) => {
    const field = `${at}.env[${i}]`;
    if (!env.name) causes.push(required(`${field}.name`));
    if (env.valueFrom && env.value)
      causes.push(invalidValue(`${field}.valueFrom`, "", "may not be specified when `value` is not empty"));
  });
  return causes;
}

function validateMounts(c: Json, at: string, volumes: ReadonlySet<string>): FieldCause[] {
  const causes: FieldCause[] = [];
  const paths = new Set<string>();
  (c.volumeMounts ?? []).forEach((mount: Json, i: number) => {
    const field = `${at}.volumeMounts[${i}]`;
    if (!mount.name) causes.push(required(`${field}.name`));
    else if (!volumes.has(mount.name))
      causes.push({
        reason: "FieldValueInvalid",
        field: `${field}.name`,
        message: `Not found: ${JSON.stringify(mount.name)}`,
      });
    if (!mount.mountPath) causes.push(required(`${field}.mountPath`));
    else if (paths.has(mount.mountPath))
      causes.push(invalidValue(`${field}.mountPath`, mount.mountPath, "must be unique"));
    paths.add(mount.mountPath);
  });
  return causes;
}

function validateResources(c: Json, at: string): FieldCause[] {
  const causes: FieldCause[] = [];
  for (const list of ["limits", "requests"]) {
    for (const [name, amount] of Object.entries(c.resources?.[list] ?? {})) {
      const quantity = Quantity.tryParse(amount as string);
      if (quantity && quantity.compare(Quantity.zero) < 0)
        causes.push(invalidValue(`${at}.resources.${list}[${name}]`, amount, "must be greater than or equal to 0"));
    }
  }
  for (const [name, amount] of Object.entries(c.resources?.requests ?? {})) {
    const limit = Quantity.tryParse(c.resources?.limits?.[name] ?? "");
    const request = Quantity.tryParse(amount as string);
    if (limit && request && request.compare(limit) > 0) {
      causes.push(
        invalidValue(
          `${at}.resources.requests`,
          amount,
          `must be less than or equal to ${name} limit of ${c.resources.limits[name]}`,
        ),
      );
    }
  }
  return causes;
}
