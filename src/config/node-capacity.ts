/** Which resources a Node can offer that a pod can ask for (Kubernetes: validateContainerResourceName). */
import { isQualifiedName } from "../resources/names.ts";
import { Quantity } from "../resources/quantity.ts";
import { didYouMean } from "../util/nearest.ts";

const STANDARD = ["cpu", "memory", "ephemeral-storage", "pods"];
const NANO = 1_000_000_000n;

/**
 * @param amount a quantity
 * @returns what is wrong with this entry of a node's capacity, with the cure
 */
export function capacityFault(name: string, amount: string): string | undefined {
  const isExtended = name.includes("/");
  if (!isQualifiedName(name))
    return "is not the name of a resource: at most 63 letters, digits, '-', '_' and '.', after a DNS prefix and '/'";
  if (!isExtended && !STANDARD.includes(name) && !/^(hugepages|attachable-volumes)-/.test(name))
    return `no pod could ask for it: must be ${STANDARD.join(", ")}, or have a prefix as in example.com/gpu${didYouMean(name, STANDARD)}`;
  if ((isExtended || name === "pods") && (Quantity.tryParse(amount)?.nano ?? 0n) % NANO !== 0n)
    return `must be a whole number, not ${amount}`;
  return undefined;
}
