import type { Route } from '../../app/routes';

export const routes: Route[] = [];
