/// <reference lib="webworker" />
import { StreamHub } from './hub';
import { holdLock, whenGone } from './presence';
import type { FromWorker, StreamMessage, ToWorker } from './protocol';

declare const self: SharedWorkerGlobalScope;

const hub = new StreamHub();
/** Never sends where the browser has no locks. */
const ownLock = new Promise<string>((resolve) => holdLock(resolve, new AbortController().signal));

// A browser opens at most six connections to a server that speaks HTTP/1.1, so all tabs share these streams.
self.onconnect = ({ ports: [port] }) => {
  if (!port) return;
  const left = new AbortController();
  const send = (message: FromWorker): void => port.postMessage(message);
  const listener = (message: StreamMessage): void => send(message);
  const leave = (): void => {
    left.abort();
    hub.leaveAll(listener);
    port.close();
  };
  port.onmessage = ({ data }: MessageEvent<ToWorker>) => {
    switch (data.kind) {
      case 'holds':
        return whenGone(data.lock, leave, left.signal);
      case 'follow':
        return hub.follow(data.path, listener);
      case 'leave':
        return hub.leave(data.path, listener);
      case 'reopen':
        return hub.reopen();
      case 'close':
        return leave();
    }
  };
  void ownLock.then((lock) => send({ kind: 'holds', lock }));
};
