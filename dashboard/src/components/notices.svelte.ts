export type NoticeKind = 'info' | 'good' | 'danger';

interface Link {
  text: string;
  href: string;
}

interface Notice {
  id: number;
  text: string;
  kind: NoticeKind;
  links: readonly Link[];
}

const SHOWN_MS = 6_000;
const MAX_SHOWN = 4;

export const notices: { list: Notice[] } = $state({ list: [] });
let last = 0;

/** Shows a short text, with links to what it is about. A failure stays until it is closed, and so do links. */
export function notify(text: string, kind: NoticeKind = 'info', links: readonly Link[] = []): void {
  last += 1;
  const id = last;
  notices.list = [...notices.list, { id, text, kind, links }].slice(-MAX_SHOWN);
  if (kind !== 'danger' && links.length === 0) setTimeout(() => dismiss(id), SHOWN_MS);
}

export function dismiss(id: number): void {
  notices.list = notices.list.filter((notice) => notice.id !== id);
}
