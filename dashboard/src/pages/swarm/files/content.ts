import { refusalOf } from '../../../api/client';
import { at, MAX_SHOWN_BYTES, type Entry, type Place } from './place';

/** What is shown of a file. The address of an image must be revoked. */
export type Content =
  | { kind: 'text'; text: string }
  | { kind: 'image'; url: string }
  | { kind: 'large' }
  | { kind: 'binary' };

const IMAGES: Readonly<Record<string, string>> = {
  avif: 'image/avif',
  gif: 'image/gif',
  jpeg: 'image/jpeg',
  jpg: 'image/jpeg',
  png: 'image/png',
  // In an image element, whose scripts no browser runs.
  svg: 'image/svg+xml',
  webp: 'image/webp',
};

/** The bytes of a file of a VM. */
export async function readBytes(vm: string, place: Place, signal?: AbortSignal): Promise<Blob> {
  const response = await fetch(`/api/files/read?${new URLSearchParams(at(vm, place))}`, {
    headers: { accept: 'application/octet-stream' },
    ...(signal && { signal }),
  });
  if (!response.ok) throw await refusalOf(response);
  return response.blob();
}

/** Reads a file for its view, unless it is too large. */
export async function readContent(vm: string, place: Place, entry: Entry, signal: AbortSignal): Promise<Content> {
  if (entry.size_bytes > MAX_SHOWN_BYTES) return { kind: 'large' };
  const blob = await readBytes(vm, place, signal);
  // The file may have grown meanwhile.
  if (blob.size > MAX_SHOWN_BYTES) return { kind: 'large' };
  const type = IMAGES[entry.name.split('.').pop()?.toLowerCase() ?? ''];
  if (type) return { kind: 'image', url: URL.createObjectURL(new Blob([blob], { type })) };
  try {
    const text = new TextDecoder('utf-8', { fatal: true }).decode(await blob.arrayBuffer());
    return text.includes('\0') ? { kind: 'binary' } : { kind: 'text', text };
  } catch {
    return { kind: 'binary' };
  }
}

/** Hands bytes to the browser as a file. */
export function save(blob: Blob, name: string): void {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}
