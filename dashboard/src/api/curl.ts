import { serverUrl } from './server-url';

/** Quotes a word for a POSIX shell. */
export function shellQuote(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}

/** A command that sends the request with the key in `SKEP_API_KEY`. */
export function asCurl(method: string, path: string, body?: unknown): string {
  const words = ['curl', '-H', '"Authorization: Bearer $SKEP_API_KEY"'];
  if (method !== 'GET') words.push('-X', method);
  if (body !== undefined) {
    words.push('-H', shellQuote('Content-Type: application/json'), '-d', shellQuote(JSON.stringify(body)));
  }
  // curl takes these signs for a list of addresses.
  if (/[[\]{}]/.test(path)) words.push('--globoff');
  words.push(shellQuote(`${serverUrl()}${path}`));
  return words.join(' ');
}
