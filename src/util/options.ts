/** Options with their defaults: none is missing, none is undefined. */
export type WithDefaults<T> = { [K in keyof T]-?: Exclude<T[K], undefined> };
