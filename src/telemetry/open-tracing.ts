/** From a configuration to traces: the one place that loads what makes them. */
import type { SdkTracingOptions } from "./sdk-tracing.ts";
import type { Tracing } from "./tracing.ts";

/**
 * @param config absent: nothing is traced
 * @throws Error that names the field whose file cannot be used
 */
export async function openTracing(
  config: Omit<SdkTracingOptions, "resource" | "version" | "clock" | "logger"> | undefined,
  collaborators: Pick<SdkTracingOptions, "resource" | "version" | "clock" | "logger">,
): Promise<Tracing | undefined> {
  if (config === undefined) return undefined;
  const { SdkTracing } = await import("./sdk-tracing.ts");
  return await SdkTracing.open({ ...config, ...collaborators });
}
