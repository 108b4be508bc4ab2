/** Tables of routes. */

/** What a table says of each of its routes at least. */
export interface RoutePattern {
  methods: readonly string[];
  /** `/v1/machines/:id`: a segment that begins with `:` matches any text but none, and names it. */
  pattern: string;
}

export interface RouteMatch<R> {
  route: R;
  /** As they stand in the path, still encoded. */
  params: Record<string, string>;
}

/** The first route for the path; several may share a path with different methods. */
export function matchRoute<R extends RoutePattern>(
  routes: readonly R[],
  method: string,
  path: string,
): RouteMatch<R> | "method not allowed" | undefined {
  const segments = path.split("/");
  let pathKnown = false;
  for (const route of routes) {
    const params = matchPattern(route.pattern.split("/"), segments);
    if (params === undefined) continue;
    if (route.methods.includes(method)) return { route, params };
    pathKnown = true;
  }
  return pathKnown ? "method not allowed" : undefined;
}

function matchPattern(pattern: readonly string[], segments: readonly string[]): Record<string, string> | undefined {
  if (pattern.length !== segments.length) return undefined;
  const params: Record<string, string> = Object.create(null) as Record<string, string>;
  for (const [index, expected] of pattern.entries()) {
    const segment = segments[index]!;
    if (expected.startsWith(":")) {
      if (segment === "") return undefined;
      params[expected.slice(1)] = segment;
    } else if (expected !== segment) return undefined;
  }
  return params;
}
