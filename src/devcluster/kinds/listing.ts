/** Lists: what selectors choose, in pages that all show one revision, as `apiserver/pkg/registry/generic` does it. */
import { labelPredicate, parseFieldSelector } from "../objects/selectors.ts";
import { badRequest, expired, forbiddenField, invalid, notSupported, type FieldCause } from "../objects/errors.ts";
import type { Filter, StoredObject } from "../objects/object.ts";
import type { Storage } from "../objects/storage.ts";
import { objectKey, storageName, type Kind } from "./kind.ts";

export interface ListOptions {
  labelSelector?: string | undefined;
  fieldSelector?: string | undefined;
  limit?: number | undefined;
  continue?: string | undefined;
  resourceVersion?: string | undefined;
  resourceVersionMatch?: string | undefined;
}

export interface ListResult {
  items: StoredObject[];
  resourceVersion: string;
  continue?: string;
  remainingItemCount?: number;
}

/** Which objects a list or a watch selects. @throws ApiStatusError 400 for a selector that cannot be read or served */
export function filterOf(
  kind: Kind,
  namespace: string | undefined,
  options: Pick<ListOptions, "labelSelector" | "fieldSelector">,
): Filter {
  const matchesLabels = options.labelSelector ? labelPredicate(options.labelSelector) : undefined;
  const requirements = parseFieldSelector(options.fieldSelector ?? "").map((r) => {
    const read = fieldReader(kind, r.field);
    // kubectl says itself what it was looking for.
    if (!read) throw badRequest(`field label not supported: ${r.field}`);
    return { ...r, read };
  });
  return (object) =>
    (namespace === undefined || object.metadata.namespace === namespace) &&
    (!matchesLabels || matchesLabels(object.metadata.labels)) &&
    requirements.every((r) => (r.read(object) === r.value) === r.equal);
}

/** One page. @throws ApiStatusError 400, 410 for a page that has expired, 504 for a version of the future */
export function listObjects(
  storage: Storage,
  kind: Kind,
  namespace: string | undefined,
  options: ListOptions,
): ListResult {
  assertMatchRule(options);
  const filter = filterOf(kind, namespace, options);
  const limit = options.limit ?? 0;
  let revision = storage.revision;
  let after: string | undefined;
  let exact = false;
  if (options.continue) {
    if (options.resourceVersion && options.resourceVersion !== "0")
      throw badRequest("specifying resource version is not allowed when using continue");
    const token = readContinue(options.continue);
    after = token.start;
    // A token with revision -1 is the one that came with a 410: it goes on with whatever there is now.
    if (token.rv > 0) {
      revision = token.rv;
      exact = true;
    }
  } else if (options.resourceVersion && options.resourceVersion !== "0") {
    const asked = Number(options.resourceVersion);
    if (!Number.isInteger(asked) || asked < 0) throw badRequest(invalidVersion(options.resourceVersion));
    // Without a match rule, a paged list means "exactly this" and an unpaged one "at least this".
    if (options.resourceVersionMatch === "Exact" || (!options.resourceVersionMatch && limit > 0)) {
      revision = asked;
      exact = true;
    } else if (asked > storage.revision) {
      storage.assertReadable(asked);
    }
  }
  const selected = (exact ? listAt(storage, kind, revision, after) : storage.list(storageName(kind))).filter(filter);
  const rest = after === undefined ? selected : selected.filter((object) => keyOf(object) > after);
  const page = limit > 0 ? rest.slice(0, limit) : rest;
  const remaining = rest.length - page.length;
  const result: ListResult = { items: page, resourceVersion: String(revision) };
  if (remaining > 0) {
    result.continue = writeContinue(revision, keyOf(page.at(-1)!));
    if (!options.labelSelector && !options.fieldSelector) result.remainingItemCount = remaining;
  }
  return result;
}

function listAt(storage: Storage, kind: Kind, revision: number, after: string | undefined): StoredObject[] {
  try {
    return storage.listAt(storageName(kind), revision);
  } catch (thrown) {
    if (
      after === undefined ||
      !(thrown instanceof Error && "body" in thrown && (thrown.body as { code: number }).code === 410)
    )
      throw thrown;
    const gone = expired(
      "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.",
    );
    gone.body.metadata = { continue: writeContinue(-1, after) };
    throw gone;
  }
}

const invalidVersion = (text: string) =>
  `invalid resource version: resourceVersion: Invalid value: ${JSON.stringify(text)}: strconv.ParseUint: parsing ${JSON.stringify(text)}: invalid syntax`;

/** The rules of ListOptions that go beyond one field. */
function assertMatchRule(options: ListOptions): void {
  const rule = options.resourceVersionMatch;
  if (rule === undefined) return;
  const refuse = (cause: FieldCause) => invalid({ group: "meta.k8s.io", kind: "ListOptions" }, "", [cause]);
  const field = "resourceVersionMatch";
  if (!options.resourceVersion)
    throw refuse(forbiddenField(field, "resourceVersionMatch is forbidden unless resourceVersion is provided"));
  if (options.continue)
    throw refuse(forbiddenField(field, "resourceVersionMatch is forbidden when continue is provided"));
  if (rule !== "Exact" && rule !== "NotOlderThan")
    throw refuse(notSupported(field, rule, ["Exact", "NotOlderThan", ""]));
  if (rule === "Exact" && options.resourceVersion === "0") {
    throw refuse(forbiddenField(field, 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'));
  }
}

const keyOf = (object: StoredObject): string => objectKey(object.metadata.namespace, object.metadata.name);

function fieldReader(kind: Kind, field: string): ((object: StoredObject) => string) | undefined {
  if (field === "metadata.name") return (o) => o.metadata.name;
  if (field === "metadata.namespace") return kind.namespaced ? (o) => o.metadata.namespace ?? "" : undefined;
  return kind.fields[field];
}

const writeContinue = (rv: number, start: string): string =>
  Buffer.from(JSON.stringify({ v: "meta.k8s.io/v1", rv, start })).toString("base64url");

function readContinue(text: string): { rv: number; start: string } {
  try {
    const token = JSON.parse(Buffer.from(text, "base64url").toString()) as { v?: string; rv?: number; start?: string };
    if (token.v === "meta.k8s.io/v1" && typeof token.rv === "number" && typeof token.start === "string")
      return { rv: token.rv, start: token.start };
  } catch (thrown) {
    throw badRequest(`invalid continue token: continue key is not valid: ${(thrown as Error).message}`);
  }
  throw badRequest("invalid continue token: continue key is not valid: incorrect version or missing start");
}
