import type { Schema } from '../../api/client';

/** Whether VMs of a template can only be booted without its memory: it is a snapshot whose memory cannot be used. */
export function givesFilesAlone({ source, state }: Schema<'Template'>): boolean {
  return source === 'vm' && (state === 'outdated' || state === 'damaged');
}
