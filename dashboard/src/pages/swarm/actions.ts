import { api, unwrap, type Schema } from '../../api/client';
import { messageOf } from '../../api/error';
import { confirm } from '../../components/confirm.svelte';
import { notify } from '../../components/notices.svelte';
import { can } from '../../session/session.svelte';

type Vm = Schema<'Vm'>;

// The process id may be that of another VM by now, and a VM on disk has none.
const path = ({ id }: Vm): { pid: string } => ({ pid: id });

/** What a reader calls a VM. */
export function nameOf({ name, pid, id }: Vm): string {
  return name ? `${name} (${pid ?? 'on disk'})` : String(pid ?? id);
}

/** Whether only a request resumes the VM; a call that needs it resumes one that was paused because it was idle. */
export function staysPaused({ state, paused_by }: Vm): boolean {
  return state === 'paused' && (paused_by ?? 'request') === 'request';
}

/** Why a VM cannot be resumed with its memory now; empty where it can. */
export function reasonAgainstResume({ snapshot_state }: Vm): string {
  if (!can('swarm:write')) return 'The key lacks the scope swarm:write';
  return snapshot_state ? `The memory of the VM is ${snapshot_state}. Resume the VM without memory` : '';
}

/** Why a VM cannot be forked or stored as a template now; empty where it can. */
export function reasonAgainstCopy(vm: Vm): string {
  const { state } = vm;
  const reason = reasonAgainstResume(vm);
  if (reason) return reason;
  if (staysPaused(vm)) return 'The VM is paused. Resume it first';
  return state === 'ended' ? 'The VM has ended' : '';
}

async function report(action: Promise<unknown>, done: string): Promise<void> {
  try {
    await action;
    notify(done, 'good');
  } catch (error) {
    notify(messageOf(error), 'danger');
  }
}

export async function pause(vm: Vm): Promise<void> {
  await report(unwrap(api.POST('/api/swarm/vm/{pid}/pause', { params: { path: path(vm) } })), `The VM ${nameOf(vm)} is paused.`);
}

export async function pauseToDisk(vm: Vm): Promise<void> {
  const pausing = unwrap(api.POST('/api/swarm/vm/{pid}/pause', { params: { path: path(vm) }, body: { to: 'disk' } }));
  await report(pausing, `The VM ${nameOf(vm)} is on disk.`);
}

export async function resume(vm: Vm): Promise<void> {
  await report(unwrap(api.POST('/api/swarm/vm/{pid}/resume', { params: { path: path(vm) } })), `The VM ${nameOf(vm)} runs again.`);
}

/** Starts a VM that is on disk again from its disk alone, after a question. */
export async function resumeWithoutMemory(vm: Vm): Promise<void> {
  const text =
    'Its files are kept. Its programs, what they have in memory, and the environment variables of its boot are gone. This cannot be undone. It boots, which takes some seconds, and works also if an update or damaged files prevent a resume with its memory.';
  const question = { text, action: 'Resume without memory', danger: true };
  if (!(await confirm(`Resume the VM ${nameOf(vm)} without its memory?`, question))) return;
  notify(`The VM ${nameOf(vm)} boots from its disk.`);
  const resuming = unwrap(api.POST('/api/swarm/vm/{pid}/resume', { params: { path: path(vm) }, body: { memory: false } }));
  await report(resuming, `The VM ${nameOf(vm)} runs again, from its disk alone.`);
}

/** Ends VMs, after a question. Returns whether they were to be ended. */
export async function end(vms: readonly Vm[]): Promise<boolean> {
  const which = vms.length === 1 && vms[0] ? `the VM ${nameOf(vms[0])}` : `${vms.length} VMs`;
  const text = 'Their processes, memory and disks are gone. This cannot be undone.';
  if (!(await confirm(`End ${which}?`, { text, action: 'End', danger: true }))) return false;
  const ends = vms.map((vm) => unwrap(api.DELETE('/api/swarm/vm/{pid}', { params: { path: path(vm) } })));
  await report(Promise.all(ends), `Ended ${which}.`);
  return true;
}

/** Ends all VMs of the account, after a question. */
export async function cleanUp(count: number): Promise<void> {
  const text = `All VMs of this account end (${count} now), with their processes, memory and disks. This cannot be undone.`;
  if (!(await confirm('Clean up the swarm?', { text, action: 'End all VMs', danger: true }))) return;
  await report(unwrap(api.POST('/api/swarm/cleanup', {})), 'All VMs have ended.');
}
