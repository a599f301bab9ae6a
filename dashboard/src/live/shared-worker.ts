/// <reference lib="webworker" />
import { StreamHub } from './hub';
import type { FromWorker, ToWorker } from './protocol';

declare const self: SharedWorkerGlobalScope;

const hub = new StreamHub();

// A browser opens at most six connections to a server that speaks HTTP/1.1, so all tabs share these streams.
self.onconnect = ({ ports: [port] }) => {
  if (!port) return;
  const listener = (message: FromWorker): void => port.postMessage(message);
  port.onmessage = ({ data }: MessageEvent<ToWorker>) => {
    switch (data.kind) {
      case 'follow':
        return hub.follow(data.path, listener);
      case 'leave':
        return hub.leave(data.path, listener);
      case 'reopen':
        return hub.reopen();
      case 'close':
        return hub.leaveAll(listener);
    }
  };
};
