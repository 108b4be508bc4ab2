/** One HTTP exchange with the backend, authenticated as it should be unless told otherwise. */
export interface HttpTarget {
  request(
    method: string,
    path: string,
    options?: { headers?: Record<string, string>; body?: string; signal?: AbortSignal; anonymous?: boolean },
  ): Promise<{ status: number; headers: Record<string, string | undefined>; body: string }>;
  /** True when `anonymous` leaves a credential out. */
  readonly hasCredentials: boolean;
}
