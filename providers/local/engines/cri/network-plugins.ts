/** What the cluster's network plugins can do, by what containerd has read of their configuration. */

interface CniConfig {
  Networks?: { Config?: { Plugins?: { Network?: { capabilities?: Record<string, boolean> } }[] } }[];
}

/**
 * Whether one of them limits a machine's traffic when it is told to.
 * @param told `cniconfig` of a runtime's verbose status; undefined of one that has none
 */
export function pluginsLimitBandwidth(told: string | undefined): boolean {
  if (told === undefined) return false;
  const config = JSON.parse(told) as CniConfig | null;
  const plugins = (config?.Networks ?? []).flatMap(({ Config }) => Config?.Plugins ?? []);
  return plugins.some(({ Network }) => Network?.capabilities?.["bandwidth"] === true);
}
