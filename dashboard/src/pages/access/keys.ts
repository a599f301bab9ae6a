import { api, unwrap, type Schema } from '../../api/client';
import { readPages, type Listing } from '../../api/lists';
import { serverUrl } from '../../api/server-url';

export type Key = Schema<'Key'>;

/** Keys are filtered in the browser, so many of them are read at once. */
const KEYS_ON_A_PAGE = 500;

export function readKeys(pages: number, signal?: AbortSignal): Promise<Listing<Key>> {
  return readPages(pages, async (cursor) => {
    const query = { limit: KEYS_ON_A_PAGE, ...(cursor && { cursor }) };
    const page = await unwrap(api.GET('/api/keys', { params: { query }, signal: signal ?? null }));
    return { rows: page.keys, next: page.next_cursor };
  });
}

export type KeyState = 'active' | 'rotated' | 'expired' | 'revoked';

/** A rotated key is valid until it expires or is revoked. */
export function stateOf(key: Key, now: number): KeyState {
  if (key.revoked_at) return 'revoked';
  if (key.expires_at && Date.parse(key.expires_at) <= now) return 'expired';
  return key.rotated_at ? 'rotated' : 'active';
}

/** The commands that a new key is shown with. */
export function commandsOf(key: string): { label: string; text: string }[] {
  return [
    { label: 'For a shell', text: `export SKEP_URL=${serverUrl()}\nexport SKEP_API_KEY=${key}` },
    { label: 'A first request', text: `curl -H "Authorization: Bearer $SKEP_API_KEY" ${serverUrl()}/api/whoami` },
  ];
}
