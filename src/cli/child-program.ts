/** `vmlet` as a child of another, which it does not outlive, however that ends. */
process.once("disconnect", () => process.exit(1));
// The parent's death is to be heard, not waited for.
process.channel?.unref();
await import("./main.ts");
