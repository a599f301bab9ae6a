import { messageOf } from '../../api/error';
import { notify } from '../../components/notices.svelte';

/** Runs an action of a button. Shows `done` after it, or the API's message. Returns whether it succeeded. */
export async function attempt(action: () => Promise<unknown>, done: string): Promise<boolean> {
  try {
    await action();
  } catch (error) {
    notify(messageOf(error), 'danger');
    return false;
  }
  notify(done, 'good');
  return true;
}

/** The time in UTC of a `datetime-local` field, which holds a time in the viewer's zone. Undefined where it is empty. */
export function fromLocalField(value: string): string | undefined {
  if (!value) return undefined;
  const at = new Date(value);
  return Number.isNaN(at.getTime()) ? undefined : at.toISOString();
}

/** The value of a `datetime-local` field for a time of the API. */
export function toLocalField(at: string | null | undefined): string {
  if (!at) return '';
  const date = new Date(at);
  if (Number.isNaN(date.getTime())) return '';
  return new Date(date.getTime() - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}

/** The entries of a text area, one a line or separated by commas. */
export function entriesOf(text: string): string[] {
  return text
    .split(/[\n,]/)
    .map((entry) => entry.trim())
    .filter(Boolean);
}

/** Those of the values of a form that differ from the ones that it began with. */
export function changesOf<T extends object>(first: T, values: T): Partial<T> {
  const changed = Object.entries(values).filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(first[name as keyof T]));
  return Object.fromEntries(changed) as Partial<T>;
}

/** The limit of a number field; null where it is empty. */
export function limitOf(value: string | number | null | undefined): number | null {
  return value === null || value === undefined || value === '' ? null : Number(value);
}
