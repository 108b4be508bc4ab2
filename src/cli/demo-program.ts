/** `vmlet` as a child of the demo, which it does not outlive, however the demo ends. */
process.once("disconnect", () => process.exit(1));
// The demo's death is to be heard, not waited for.
process.channel?.unref();
await import("./main.ts");
