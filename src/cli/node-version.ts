const NEEDED = { major: 22, minor: 20 };

/**
 * Ends the process on a Node.js that is too old, with words in place of the syntax errors that would follow. Whatever
 * is imported before the call must load on any version.
 */
export function refuseOldNode(): void {
  const [major = 0, minor = 0] = process.versions.node.split(".").map(Number);
  if (major > NEEDED.major || (major === NEEDED.major && minor >= NEEDED.minor)) return;
  console.error(
    `vmlet needs Node.js ${NEEDED.major}.${NEEDED.minor} or newer, this is ${process.version}: install a newer one (https://nodejs.org)`,
  );
  process.exit(2);
}
