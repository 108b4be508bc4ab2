/** Randomness, as a collaborator: uniform in [0, 1). A simulation passes a seeded one. */
export type Random = () => number;

export const systemRandom: Random = Math.random;
