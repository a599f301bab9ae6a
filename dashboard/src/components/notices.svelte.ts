export type NoticeKind = 'info' | 'good' | 'danger';

interface Notice {
  id: number;
  text: string;
  kind: NoticeKind;
}

const SHOWN_MS = 6_000;
const MAX_SHOWN = 4;

export const notices: { list: Notice[] } = $state({ list: [] });
let last = 0;

/** Shows a short text. A failure stays until it is closed. */
export function notify(text: string, kind: NoticeKind = 'info'): void {
  last += 1;
  const id = last;
  notices.list = [...notices.list, { id, text, kind }].slice(-MAX_SHOWN);
  if (kind !== 'danger') setTimeout(() => dismiss(id), SHOWN_MS);
}

export function dismiss(id: number): void {
  notices.list = notices.list.filter((notice) => notice.id !== id);
}
