/** Whether images can be had here at all. */
import { toError } from "../../../src/provider/kit/index.ts";
import { Destinations } from "./destinations.ts";
import { parseReference } from "./reference.ts";
import { hostSecureContext, RegistryClient } from "./registry-client.ts";

/**
 * Asks the registry of an image, on the way that a pull would take.
 * @returns why it does not answer; undefined when it does
 */
export async function registryFault(image: string, signal: AbortSignal): Promise<string | undefined> {
  const client = new RegistryClient({
    destinations: new Destinations({ named: [], plain: [], refused: [] }),
    secureContext: hostSecureContext(),
    reference: parseReference(image),
    credential: undefined,
  });
  try {
    await client.ping(signal);
    return undefined;
  } catch (thrown) {
    return signal.aborted ? "no answer in time" : toError(thrown).message;
  } finally {
    await client.close();
  }
}
