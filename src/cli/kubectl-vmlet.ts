#!/usr/bin/env node
/** `kubectl vmlet`: the same program under the name by which kubectl finds plugins. main.ts looks at that name. */
await import("./main.ts");
