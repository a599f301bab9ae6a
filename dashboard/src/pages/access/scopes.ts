import type { Schema } from '../../api/client';

export type Scope = Schema<'Scope'>;
export type Role = Schema<'Role'>;
export type Environment = Schema<'Environment'>;

/** What each scope permits, in one sentence. */
export const SCOPES: Record<Scope, string> = {
  'files:read': 'Lists, reads and searches files.',
  'files:write': 'Writes, moves and deletes files.',
  'git:read': 'Reads status, log and diff of repositories.',
  'git:write': 'Commits, pushes, pulls and otherwise changes repositories.',
  'swarm:read': 'Sees VMs, templates and their figures.',
  'swarm:write': 'Boots, changes and ends VMs, and builds templates.',
  'swarm:exec': 'Runs commands in VMs; needed too for files and repositories in a VM.',
  'tickets:read': 'Reads tickets.',
  'tickets:write': 'Creates, claims and finishes tickets.',
  'metrics:read': 'Reads metrics for monitoring.',
  admin: 'Administers its account: keys, webhooks, audit.',
  'server:admin': 'Administers the server: commands on it, restart, accounts, waitlist. Only in the account default.',
};

export const ALL_SCOPES = Object.keys(SCOPES) as Scope[];

const AGENT: Scope[] = [
  'files:read',
  'files:write',
  'git:read',
  'git:write',
  'swarm:read',
  'swarm:exec',
  'tickets:read',
  'tickets:write',
];

interface RoleText {
  text: string;
  /** The scopes that the role gives in an account other than `default`. Null for keys of a VM. */
  scopes: Scope[] | null;
}

export const ROLES: Record<Role, RoleText> = {
  agent: { text: 'For agents: files, git, tickets, and commands in VMs that exist.', scopes: AGENT },
  operator: { text: 'All of an agent, and booting and ending VMs, templates, metrics.', scopes: [...AGENT, 'swarm:write', 'metrics:read'] },
  admin: {
    text: 'All that its account may do. In the account default that includes the server.',
    scopes: ALL_SCOPES.filter((scope) => scope !== 'server:admin'),
  },
  vm: { text: 'Bound to one VM: its files, repositories, commands and ticket. Ends with the VM.', scopes: null },
};

export const ALL_ROLES = Object.keys(ROLES) as Role[];
export const ENVIRONMENTS: Environment[] = ['prod', 'staging', 'dev', 'test'];
