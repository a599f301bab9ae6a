import type { Route } from '../../app/routes';

export const routes: Route[] = [{ path: '/ui/', title: 'Overview', load: () => import('./OverviewPage.svelte') }];
