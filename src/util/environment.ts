/** This process's environment as other programs define it. vmlet's own variables are read by config/ alone. */
export function foreignEnvironment(): Readonly<Record<string, string | undefined>> {
  return process.env;
}
