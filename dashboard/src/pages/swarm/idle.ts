import type { Schema } from '../../api/client';
import { duration } from '../../components/times';

export type OnIdle = Schema<'OnIdle'>;

/** What is entered for a VM that nobody uses. */
export interface IdleChoice {
  /** The field is empty where nothing is to happen. */
  seconds: string | number | null;
  action: OnIdle;
}

/** The `idle_timeout_ms` that was entered; null for none. */
export function timeoutOf({ seconds }: IdleChoice): number | null {
  return seconds === null || seconds === '' ? null : Math.round(Number(seconds) * 1_000);
}

const DONE: Record<OnIdle, string> = { pause: 'paused', pause_to_disk: 'paused to disk', end: 'ended' };

/** Such as "paused to disk after 10 min 0 s". */
export function idleText({ idle_timeout_ms, on_idle }: Pick<Schema<'Vm'>, 'idle_timeout_ms' | 'on_idle'>): string {
  return idle_timeout_ms ? `${DONE[on_idle ?? 'pause']} after ${duration(idle_timeout_ms)}` : 'runs on';
}
