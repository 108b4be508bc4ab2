/**
 * What a node's backend says of itself. It is asked when the agent starts and now and then afterwards, so what is known
 * may change; before its first answer nothing is.
 */
import type { NodeConfig } from "../config/schema.ts";
import { nodePlatform } from "../node/platform.ts";
import type { BackendReport } from "../node/settings.ts";
import type { Backend } from "../podspec/types.ts";
import type { Capability } from "../provider/capabilities.ts";
import { ProviderError } from "../provider/errors.ts";
import type { ProviderInfo } from "../provider/provider.ts";
import { untilAborted } from "../util/abort.ts";

export class BackendInfo {
  readonly #config: Pick<NodeConfig, "provider" | "os" | "architecture" | "agentProbes">;
  readonly #hostArchitecture: string;
  readonly #told = Promise.withResolvers<void>();
  #info: ProviderInfo | undefined;
  #forPods: Backend | undefined;
  #capabilities: ReadonlySet<Capability> = new Set();

  /** @param hostArchitecture of this process, as Node.js has it in process.arch */
  constructor(config: Pick<NodeConfig, "provider" | "os" | "architecture" | "agentProbes">, hostArchitecture: string) {
    this.#config = config;
    this.#hostArchitecture = hostArchitecture;
  }

  /** The backend has answered. */
  tell(info: ProviderInfo): void {
    this.#info = info;
    this.#capabilities = new Set(info.capabilities);
    const { name, runtimeHandlers, reserved } = info;
    this.#forPods = {
      name,
      capabilities: this.#capabilities,
      agentProbes: this.leavesProbes,
      runtimeHandlers,
      reserved,
    };
    this.#told.resolve();
  }

  /** Resolves at the first answer, or when the signal aborts. */
  async known(signal: AbortSignal): Promise<void> {
    await untilAborted(signal, this.#told.promise);
  }

  /** Undefined while it has not answered. */
  can(capability: Capability): boolean | undefined {
    return this.#info && this.#capabilities.has(capability);
  }

  /** Whether the agent runs the pods' probes: only where it may and the backend does not. */
  get leavesProbes(): boolean {
    return this.#config.agentProbes && !this.#capabilities.has("probes");
  }

  /**
   * For rendering pods; the same object until it answers again.
   * @throws ProviderError unavailable while it has not answered
   */
  forPods(): Backend {
    if (this.#forPods === undefined) throw new ProviderError("unavailable", "the backend has not answered yet");
    return this.#forPods;
  }

  /** For the Node. */
  forNode(): BackendReport {
    const reported = this.#info;
    return {
      runtime: { name: reported?.name ?? this.#config.provider.type, version: reported?.version },
      capabilities: reported?.capabilities,
      runtimeHandlers: reported?.runtimeHandlers,
      runningInUserNamespace: reported?.runningInUserNamespace,
      ...(reported &&
        this.#capabilities.has("volumes.persistent") && {
          volumes: { zone: reported.zone, count: reported.maxAttachedVolumes },
        }),
      platform: nodePlatform({ reported, configured: this.#config, hostArchitecture: this.#hostArchitecture }),
    };
  }
}
