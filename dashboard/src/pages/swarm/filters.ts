const METADATA = 'metadata.';
const NAMES = ['state', 'paused_to', 'name', 'template'];

/** The parameters of `GET /api/vms` that the query of a page has. */
export function filterOf(query: URLSearchParams): Record<string, string> {
  return Object.fromEntries([...query].filter(([name, value]) => (NAMES.includes(name) && value !== '') || name.startsWith(METADATA)));
}

/** The metadata of a filter as `KEY=VALUE`, one a line. */
export function metadataOf(filter: Readonly<Record<string, string>>): string {
  const entries = Object.entries(filter).filter(([name]) => name.startsWith(METADATA));
  return entries.map(([name, value]) => `${name.slice(METADATA.length)}=${value}`).join('\n');
}

/** The parameters of `KEY=VALUE` lines, or what is wrong with one of them. */
export function parseMetadata(text: string): Record<string, string> | string {
  const parameters: Record<string, string> = {};
  for (const line of text.split('\n').map((one) => one.trim()).filter(Boolean)) {
    const equals = line.indexOf('=');
    if (equals < 1) return `"${line}" is not a key and its value. Write it as KEY=VALUE.`;
    parameters[METADATA + line.slice(0, equals)] = line.slice(equals + 1);
  }
  return parameters;
}
