/** Milliseconds since the epoch of a timestamp of the API; 0 for none. */
export const parseRfc3339Ms = (text: string | null | undefined): number => (text ? Date.parse(text) || 0 : 0);
