/** All of it to its end, also when some of it fails: what is made late could not be cleared away. */
export async function together<T extends readonly [Promise<unknown>, ...Promise<unknown>[]]>(
  works: T,
): Promise<{ -readonly [I in keyof T]: Awaited<T[I]> }> {
  await Promise.allSettled(works);
  return await Promise.all(works);
}
