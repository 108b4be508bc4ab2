// eslint-disable-next-line no-control-regex
const UNPRINTABLE = /\u001b\[[0-9;?]*[A-Za-z]|[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g;

/** Text that may go to a terminal: without control characters, escape sequences and turns of direction. */
export function printable(text: string): string {
  return text.replace(UNPRINTABLE, "");
}

/** Backend texts end on terminals: no control characters, no escape sequences, no novels (CVE-2021-25743). */
export function plainText(text: string): string {
  return printable(text).slice(0, 1024);
}
