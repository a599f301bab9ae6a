import type { Schema } from '../../../api/client';

export type Entry = Schema<'FolderEntry'>;

/** Where a file or folder of a VM is. The encoding is that of a path that is no UTF-8. */
export interface Place {
  path: string;
  encoding?: Schema<'PathEncoding'> | undefined;
}

/** The largest file that is shown, in bytes. */
export const MAX_SHOWN_BYTES = 1024 * 1024;

export function placeOf(entry: Entry): Place {
  return { path: entry.path, encoding: entry.name_encoding ?? undefined };
}

/** The parameters of a request for a place of a VM. */
export function at(vm: string, { path, encoding }: Place) {
  return { vm, path, ...(encoding && { path_encoding: encoding }) };
}

/** The name of an entry for reading. */
export function nameOf({ name, name_encoding }: Entry): string {
  return name_encoding ? `${decoded(name)} (not UTF-8)` : name;
}

export function parentOf(path: string): string {
  return path.slice(0, path.lastIndexOf('/')) || '/';
}

export function within(folder: string, name: string): string {
  return folder === '/' ? `/${name}` : `${folder}/${name}`;
}

/** A percent-encoded name for reading. Each of its `%` stands before a byte that is not UTF-8, or is encoded itself. */
function decoded(encoded: string): string {
  const parts = encoded.split(/%([0-9A-Fa-f]{2})/);
  const text = new TextEncoder();
  const bytes = parts.flatMap((part, index) => (index % 2 === 0 ? [...text.encode(part)] : [parseInt(part, 16)]));
  return new TextDecoder().decode(Uint8Array.from(bytes));
}
