/** `text` without any of `characters` at its end. In linear time, which `/[...]+$/` does not take. */
export function trimEnd(text: string, characters: string): string {
  let end = text.length;
  while (end > 0 && characters.includes(text[end - 1]!)) end--;
  return text.slice(0, end);
}

/** The first `bytes` bytes of the text in UTF-8, without the character that is cut in two. */
export function cutBytes(text: string, bytes: number): string {
  // No character takes more than three bytes for each unit of a string's length.
  if (text.length * 3 <= bytes) return text;
  const buffer = Buffer.from(text);
  if (buffer.length <= bytes) return text;
  let end = bytes;
  // 10xxxxxx is the inside of a character.
  while (end > 0 && (buffer[end]! & 0xc0) === 0x80) end--;
  return buffer.subarray(0, end).toString();
}
