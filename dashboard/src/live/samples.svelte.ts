import { api, unwrap, type Schema } from '../api/client';
import { followShared } from './shared';

type Sample = Schema<'SwarmSample'>;

const FOLLOW = '/api/swarm/metrics?follow=true';
/** The time between two samples. */
const SAMPLE_MS = 2_000;
/** Fifteen minutes, as many as the server keeps. */
const MAX_SAMPLES = 450;

/** The samples of the account's VMs: those that the server keeps, and each new one. Must be made while a component is. */
export class Samples {
  list = $state.raw<Sample[]>([]);
  /** Seconds since 1970, for charts. */
  readonly times = $derived(this.list.map(({ at }) => Date.parse(at) / 1000));
  readonly latest = $derived(new Map(this.list.at(-1)?.vms.map((vm) => [vm.id, vm])));

  /** `count`: the newest samples that are kept; less than all of them are read by the time. */
  constructor(readonly count = MAX_SAMPLES) {
    $effect(() => {
      const abort = new AbortController();
      const query = count < MAX_SAMPLES ? { since: new Date(Date.now() - (count + 1) * SAMPLE_MS).toISOString() } : {};
      (unwrap(api.GET('/api/swarm/metrics', { params: { query }, signal: abort.signal })) as Promise<Schema<'SwarmSamples'>>)
        .then(({ samples }) => this.#add(samples))
        // A server without VMs has no samples; the page says so elsewhere.
        .catch(() => {});
      const end = followShared(FOLLOW, (message) => {
        if (message.kind === 'event' && message.type === 'sample') this.#add([JSON.parse(message.data) as Sample]);
      });
      return () => {
        abort.abort();
        end();
      };
    });
  }

  #add(samples: Sample[]): void {
    const byTime = new Map([...this.list, ...samples].map((sample) => [sample.at, sample]));
    this.list = [...byTime.values()].sort((a, b) => a.at.localeCompare(b.at)).slice(-this.count);
  }
}
