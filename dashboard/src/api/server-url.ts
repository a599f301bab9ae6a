/** Whether an address has the host at which the sessions of one key exist, on the machine of the browser. */
export function isSessionHost({ hostname }: { hostname: string }): boolean {
  return /^skep-[a-z2-7]{8}\.localhost$/.test(hostname);
}

/** Whether an address names the machine of the browser. */
export function isLocalhost({ hostname }: { hostname: string }): boolean {
  return /^(localhost|.*\.localhost|127\.0\.0\.1|\[::1\]|0\.0\.0\.0|\[::\])$/.test(hostname);
}

/**
 * The address of the server for programs. A session host is for browsers alone: other programs may not resolve names below
 * `localhost`, and they should not learn it.
 */
export function serverUrl(): string {
  const url = new URL(location.origin);
  if (isSessionHost(url)) url.hostname = 'localhost';
  return url.origin;
}
