import type { Schema } from '../api/client';

type Pause = Pick<Schema<'Vm'>, 'paused_to' | 'paused_by' | 'snapshot_state'>;

const PLACES: Record<Schema<'PausedTo'>, string> = { memory: 'in memory', disk: 'on disk' };
const CAUSES: Record<Schema<'PausedBy'>, string> = {
  request: 'by a request',
  idle: 'because it was idle',
  memory: 'because memory was short',
};
const RESUMERS: Record<Schema<'ResumedBy'>, string> = { request: 'by a request', activity: 'by a call that needed it' };

/**
 * Where a VM is paused, and what paused it, such as "on disk, by a request"; empty for a VM that is not paused. For a VM on disk that
 * cannot continue also why, such as "on disk, by a request; its memory is outdated".
 */
export function pauseText({ paused_to, paused_by, snapshot_state }: Pause): string {
  const pause = [paused_to && PLACES[paused_to], paused_by && CAUSES[paused_by]].filter(Boolean).join(', ');
  return snapshot_state ? `${pause}; its memory is ${snapshot_state}` : pause;
}

/** What resumed a VM, such as "by a request". */
export function resumeText(by: Schema<'ResumedBy'>): string {
  return RESUMERS[by];
}
