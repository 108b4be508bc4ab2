/** Which pages the site has, where each comes from, and under which heading it stands. */

export interface Page {
  /** What the sidebar calls it. */
  title: string;
  /** A document of the repository, by its path there; or `made`, by `made.ts`. */
  from: string;
  /** Its path on the site, without `.md`. */
  to: string;
}

export interface Group {
  title: string;
  pages: readonly Page[];
}

/** The runbooks come by their names, see `fill.ts`. */
export const RUNBOOKS = "helm/vmlet/runbooks";

export const GROUPS: readonly Group[] = [
  {
    title: "Begin",
    pages: [
      { title: "What it is for", from: "docs/index.md", to: "index" },
      { title: "README", from: "README.md", to: "readme" },
      { title: "Quickstarts", from: "docs/quickstarts.md", to: "quickstarts" },
      { title: "Examples", from: "examples/README.md", to: "examples" },
      { title: "Compared with others", from: "docs/comparison.md", to: "comparison" },
      { title: "Performance", from: "docs/performance.md", to: "performance" },
    ],
  },
  {
    title: "Operate",
    pages: [
      { title: "Operator's guide", from: "docs/operate.md", to: "operate" },
      { title: "The chart", from: "helm/vmlet/README.md", to: "chart" },
      { title: "Alerts", from: "made:alerts", to: "alerts" },
      { title: "Security model", from: "SECURITY.md", to: "security" },
      { title: "Versions", from: "docs/versions.md", to: "versions" },
      { title: "Changelog", from: "CHANGELOG.md", to: "changelog" },
    ],
  },
  {
    title: "Write a backend",
    pages: [
      { title: "Backend author's guide", from: "docs/write-a-backend.md", to: "write-a-backend" },
      { title: "Small backends", from: "examples/backends/README.md", to: "small-backends" },
      { title: "Providers", from: "providers/README.md", to: "providers" },
      { title: "Virtual machines", from: "providers/local/engines/vm/README.md", to: "virtual-machines" },
    ],
  },
  {
    title: "Reference",
    pages: [
      { title: "Configuration", from: "CONFIGURATION.md", to: "configuration" },
      { title: "Machine API", from: "made:machine-api", to: "machine-api" },
      { title: "The Machine API's rules", from: "docs/machine-api-rules.md", to: "machine-api-rules" },
      { title: "Metrics", from: "made:metrics", to: "metrics" },
      { title: "Events", from: "made:events", to: "events" },
      { title: "Annotations and labels", from: "docs/annotations.md", to: "annotations" },
      { title: "Errors", from: "ERRORS.md", to: "errors" },
    ],
  },
  {
    title: "The project",
    pages: [
      { title: "Architecture", from: "ARCHITECTURE.md", to: "architecture" },
      { title: "Contributing", from: "CONTRIBUTING.md", to: "contributing" },
      { title: "Tests", from: "test/README.md", to: "tests" },
      { title: "The bench", from: "test/bench/README.md", to: "bench" },
    ],
  },
];
