import type { Component } from 'svelte';

import { routes as access } from '../pages/access/routes';
import { routes as overview } from '../pages/overview/routes';
import { routes as swarm } from '../pages/swarm/routes';
import { routes as tickets } from '../pages/tickets/routes';
import type { Scope } from '../session/session.svelte';

/** What each page gets. */
export interface PageProps {
  /** The values of the `:name` parts of the path. */
  params: Record<string, string>;
  query: URLSearchParams;
}

export interface Route {
  /** Such as `/ui/swarm/:pid`. Routes are tried in their order. */
  path: string;
  title: string;
  /** A page is a chunk of its own. */
  load: () => Promise<{ default: Component<PageProps> | Component<Record<string, never>> }>;
  /** The scope without which the page has nothing to show. */
  scope?: Scope;
}

export const routes: readonly Route[] = [...overview, ...swarm, ...tickets, ...access];

/** The route of a path, and the values of its parameters. */
export function match(path: string): { route: Route; params: Record<string, string> } | null {
  const parts = segments(path);
  for (const route of routes) {
    const wanted = segments(route.path);
    if (wanted.length !== parts.length) continue;
    const params: Record<string, string> = {};
    const matches = wanted.every((want, index) => {
      const part = parts[index] ?? '';
      if (!want.startsWith(':')) return want === part;
      params[want.slice(1)] = part;
      return true;
    });
    if (matches) return { route, params };
  }
  return null;
}

function segments(path: string): string[] {
  return path.split('/').filter(Boolean).map(decoded);
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
