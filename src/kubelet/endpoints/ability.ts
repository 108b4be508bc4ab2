/** What a request needs of the backend, told before it is asked: its own refusal would speak of its own API. */
import type { Capability } from "../../provider/capabilities.ts";
import type { Provider } from "../../provider/provider.ts";
import { HttpError } from "../../http/http-error.ts";

const NEEDS = {
  exec: { capability: "exec", what: "run commands in a container" },
  attach: { capability: "attach", what: "attach to a container" },
  portForward: { capability: "port_forward", what: "forward ports" },
} as const satisfies Record<string, { capability: Capability; what: string }>;

export interface Abilities {
  provider: Provider;
  /** Whether the backend declares it; undefined while it has not answered. */
  can: (capability: Capability) => boolean | undefined;
}

/** The provider's method. @throws HttpError 501 when there is none, or the backend declares that it lacks it */
export function ability<M extends keyof typeof NEEDS>({ provider, can }: Abilities, name: M): NonNullable<Provider[M]> {
  const { capability, what } = NEEDS[name];
  const method = provider[name];
  if (method === undefined || can(capability) === false)
    throw new HttpError(501, `the backend ${provider.name} cannot ${what}: it lacks capability ${capability}`);
  return method.bind(provider) as NonNullable<Provider[M]>;
}
