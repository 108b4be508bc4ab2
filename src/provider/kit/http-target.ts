import type { SchemaName } from "../contract/document.ts";

/** What a reply's body may be. */
export type ReplySchema = Extract<
  SchemaName,
  | "Machine"
  | "MachinePage"
  | "EventList"
  | "StatsList"
  | "ProviderCapacity"
  | "PersistentVolumePage"
  | "PodRanges"
  | "PrewarmedImageList"
  | "VolumeCapacity"
>;

/** One HTTP exchange with the backend, authenticated as it should be unless told otherwise. */
export interface HttpTarget {
  request(
    method: string,
    path: string,
    options?: {
      headers?: Record<string, string> | undefined;
      body?: string | undefined;
      signal?: AbortSignal | undefined;
      anonymous?: boolean | undefined;
    },
  ): Promise<{ status: number; headers: Record<string, string | undefined>; body: string }>;
  /**
   * What is wrong with the body of a reply, which should be one of these of the document; undefined when nothing is.
   */
  faultOf?(schema: ReplySchema, body: string): string | undefined;
  /** True when `anonymous` leaves a credential out. */
  readonly hasCredentials: boolean;
}
