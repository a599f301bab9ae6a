import type { Schema } from '../../api/client';

type Scope = Schema<'Scope'>;
type Role = Schema<'Role'>;

/** What each scope permits, in the order in which they are offered. */
export const SCOPES: readonly [Scope, string][] = [
  ['files:read', 'Read files'],
  ['files:write', 'Write, move and delete files'],
  ['git:read', 'Read repositories'],
  ['git:write', 'Change repositories'],
  ['swarm:read', 'Read the state of VMs'],
  ['swarm:write', 'Boot, change and end VMs'],
  ['swarm:exec', 'Run commands inside VMs'],
  ['tickets:read', 'Read tickets'],
  ['tickets:write', 'Create, claim and finish tickets'],
  ['metrics:read', 'Read metrics'],
  ['admin', 'Administer the account: keys, webhooks, audit'],
  ['server:admin', 'Administer the server: commands on it, restart, accounts'],
];

/** The roles that a person creates keys for; that of one VM is made with the VM. */
export const ROLES: readonly [Role, string][] = [
  ['agent', 'For agents: files, git, tickets, commands in VMs, and the state of VMs'],
  ['operator', 'What an agent may, and management of VMs, and metrics'],
  ['admin', 'Everything that the account may'],
];
