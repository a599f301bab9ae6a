import type { Schema } from '../api/client';

export type EgressPolicy = Schema<'EgressReport'>['policy'];

/** What a form has chosen. `account`: the default of the account. */
export interface EgressChoice {
  kind: 'account' | 'none' | 'all' | 'list';
  /** Hosts and networks of a list, one a line. */
  hosts: string;
}

/** The choice that a form begins with. */
export function choiceOf(policy: EgressPolicy): EgressChoice {
  return typeof policy === 'string' ? { kind: policy, hosts: '' } : { kind: 'list', hosts: policy.allow.join('\n') };
}

/** The policy of a choice; undefined where the account decides. The ports of `before` stay. */
export function policyOf({ kind, hosts }: EgressChoice, before?: EgressPolicy): EgressPolicy | undefined {
  if (kind === 'account') return undefined;
  if (kind !== 'list') return kind;
  const ports = typeof before === 'object' && before.ports ? { ports: before.ports } : {};
  return { allow: hosts.split(/[\s,]+/).filter(Boolean), ...ports };
}

/** A policy as one line. */
export function policyText(policy: EgressPolicy): string {
  return typeof policy === 'string' ? policy : JSON.stringify(policy);
}
