import type { Route } from '../../app/routes';

export const routes: Route[] = [
  { path: '/ui/swarm', title: 'VMs', scope: 'swarm:read', load: () => import('./SwarmPage.svelte') },
  { path: '/ui/swarm/:pid', title: 'VM', scope: 'swarm:read', load: () => import('./VmPage.svelte') },
  { path: '/ui/templates', title: 'Templates', scope: 'swarm:read', load: () => import('./TemplatesPage.svelte') },
];
