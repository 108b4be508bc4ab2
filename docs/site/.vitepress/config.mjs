// At run time, so that Node itself reads the types away: the bundler of this file would need a second set of options.
const { config } = await import(new URL("../config.ts", import.meta.url).href);

export default config;
