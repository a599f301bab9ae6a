const TICK_MS = 10_000;

/** The time now, for ages that are shown. */
export const clock: { now: number } = $state({ now: Date.now() });

setInterval(() => (clock.now = Date.now()), TICK_MS);
