import type { Schema } from '../api/client';

export type EgressPolicy = Schema<'EgressReport'>['policy'];

type Presets = NonNullable<Exclude<EgressPolicy, string>['presets']>;

/** Each preset. The build fails where the API's document lists others. */
const NAMES: Record<Presets[number], true> = {
  anthropic: true,
  debian: true,
  docker: true,
  github: true,
  gitlab: true,
  go: true,
  'google-ai': true,
  java: true,
  node: true,
  openai: true,
  python: true,
  ruby: true,
  rust: true,
  ubuntu: true,
};

/** The names of the presets. */
export const PRESETS = Object.keys(NAMES) as Presets;

/** What a form has chosen. `account`: the default of the account. */
export interface EgressChoice {
  kind: 'account' | 'none' | 'all' | 'list';
  /** Hosts and networks of a list, one a line. */
  hosts: string;
  /** Presets of a list. */
  presets: string[];
}

/** The choice that a form begins with. */
export function choiceOf(policy: EgressPolicy): EgressChoice {
  return typeof policy === 'string' ? { kind: policy, hosts: '', presets: [] } : { kind: 'list', hosts: (policy.allow ?? []).join('\n'), presets: policy.presets ?? [] };
}

/** The policy of a choice; undefined where the account decides. The ports of `before` stay. */
export function policyOf({ kind, hosts, presets }: EgressChoice, before?: EgressPolicy): EgressPolicy | undefined {
  if (kind === 'account') return undefined;
  if (kind !== 'list') return kind;
  const ports = typeof before === 'object' && before.ports ? { ports: before.ports } : {};
  const allow = hosts.split(/[\s,]+/).filter(Boolean);
  return { ...(allow.length > 0 && { allow }), ...(presets.length > 0 && { presets: presets as Presets }), ...ports };
}

/** A policy as one line. */
export function policyText(policy: EgressPolicy): string {
  return typeof policy === 'string' ? policy : JSON.stringify(policy);
}
