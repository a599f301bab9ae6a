//! Execution of commands over a WebSocket, with input, output and signals while they run.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::{
    SinkExt, StreamExt,
    stream::{SplitSink, SplitStream},
};
use http::{
    HeaderValue, Method, StatusCode,
    header::{
        CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION,
        UPGRADE,
    },
};
use reqwest::{Response, Upgraded};
use skep_api::{
    ErrorCode,
    exec::{ExecExit, ExecRequest, StreamRefusal},
    exec_stream::{
        EXEC_PROTOCOL, ExecControl, ExecNotice, MAX_MESSAGE_BYTES, MAX_WRITE_BYTES, STDIN_WINDOW_BYTES,
        SignalName, StreamId,
    },
};
use tokio::sync::{Mutex, watch};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Message,
        handshake::{client::generate_key, derive_accept_key},
        protocol::{Role, WebSocketConfig},
    },
};

use crate::{
    Client, Error, Result,
    client::{encode_segment, error_in_stream},
};

type Socket = WebSocketStream<Upgraded>;

/// An event of a running command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DuplexEvent {
    /// The command started, with this id.
    Started(String),
    /// A piece of standard output.
    Stdout(Bytes),
    /// A piece of standard error.
    Stderr(Bytes),
    /// The command ended. The last event.
    Exit(ExecExit),
}

/// The progress of standard input, as the server reports it.
#[derive(Debug, Clone, Copy)]
struct InputProgress {
    bytes: u64,
    open: bool,
}

/// The output of a command. It must be read continuously, because it also carries the acknowledgements of input. When
/// it and all clones of [`DuplexInput`] are dropped, the command ends.
pub struct DuplexOutput {
    client: Client,
    socket: SplitStream<Socket>,
    taken: watch::Sender<InputProgress>,
}

/// The input of a command, and its signals. Clones refer to the same command.
#[derive(Clone)]
pub struct DuplexInput {
    client: Client,
    socket: Arc<Mutex<SplitSink<Socket, Message>>>,
    sent: Arc<AtomicU64>,
    taken: watch::Receiver<InputProgress>,
}

impl Client {
    /// `GET /api/exec` or `GET /api/swarm/vm/{pid}/exec` as a WebSocket: runs a command with binary input and output.
    ///
    /// # Errors
    /// [`Error::NotUpgraded`], and those of [`Client::exec`], from this call or from [`DuplexOutput::next`].
    pub async fn exec_duplex(&self, request: &ExecRequest) -> Result<(DuplexInput, DuplexOutput)> {
        let path = match &request.vm {
            Some(vm) => format!("api/swarm/vm/{}/exec", encode_segment(&vm.as_text())),
            None => "api/exec".to_owned(),
        };
        let mut socket = self.web_socket(&path).await?;
        let request = ExecRequest { vm: None, stdin: None, stream: None, encoding: None, ..request.clone() };
        socket.send(self.json(&request)?).await.map_err(|error| self.connection_lost(error.to_string()))?;
        let (sink, stream) = socket.split();
        let (sender, taken) = watch::channel(InputProgress { bytes: 0, open: true });
        let output = DuplexOutput { client: self.clone(), socket: stream, taken: sender };
        let socket = Arc::new(Mutex::new(sink));
        Ok((DuplexInput { client: self.clone(), socket, sent: Arc::default(), taken }, output))
    }

    async fn web_socket(&self, path: &str) -> Result<Socket> {
        let key = generate_key();
        let request = self
            .request(Method::GET, path)?
            .header(CONNECTION, HeaderValue::from_static("upgrade"))
            .header(UPGRADE, HeaderValue::from_static("websocket"))
            .header(SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"))
            .header(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(EXEC_PROTOCOL))
            .header(SEC_WEBSOCKET_KEY, &key);
        let response = request.send().await.map_err(|error| self.request_failed(error))?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(self.not_upgraded(response).await);
        }
        let accepted = response.headers().get(SEC_WEBSOCKET_ACCEPT).map(HeaderValue::as_bytes);
        if accepted != Some(derive_accept_key(key.as_bytes()).as_bytes()) {
            return Err(
                self.unexpected_answer("the WebSocket answer has a wrong `Sec-WebSocket-Accept`".to_owned())
            );
        }
        let upgraded = response.upgrade().await.map_err(|error| self.request_failed(error))?;
        let limits = WebSocketConfig::default()
            .max_message_size(Some(MAX_MESSAGE_BYTES))
            .max_frame_size(Some(MAX_MESSAGE_BYTES));
        Ok(WebSocketStream::from_raw_socket(upgraded, Role::Client, Some(limits)).await)
    }

    /// The error for a response other than 101: the server's own error, or a proxy that removed the request for an
    /// upgrade.
    async fn not_upgraded(&self, response: Response) -> Error {
        let status = response.status().as_u16();
        match self.check_status(response).await {
            Err(refused @ Error::Refused { code: Some(code), .. }) if code != ErrorCode::UpgradeRequired => {
                refused
            }
            _ => Error::NotUpgraded { url: self.base().to_owned(), status },
        }
    }

    fn json(&self, value: &impl serde::Serialize) -> Result<Message> {
        let text = serde_json::to_string(value).map_err(|error| self.unexpected_answer(error.to_string()))?;
        Ok(Message::Text(text.into()))
    }
}

impl DuplexInput {
    /// Sends input, waiting while the command does not read. Returns `false` if the command accepts no more input
    /// because it closed its input or ended.
    ///
    /// # Errors
    /// [`Error::Unreachable`] if the connection is lost.
    pub async fn write(&mut self, mut bytes: Bytes) -> Result<bool> {
        while !bytes.is_empty() {
            let piece = bytes.split_to(bytes.len().min(MAX_WRITE_BYTES));
            let end = self.sent.fetch_add(piece.len() as u64, Ordering::Relaxed) + piece.len() as u64;
            let has_room =
                |taken: &InputProgress| !taken.open || end - taken.bytes <= STDIN_WINDOW_BYTES as u64;
            match self.taken.wait_for(has_room).await {
                Ok(taken) if taken.open => {}
                // The output was dropped, or the command accepts no more input.
                _ => return Ok(false),
            }
            let mut message = BytesMut::with_capacity(1 + piece.len());
            message.put_u8(StreamId::Stdin.byte());
            message.put_slice(&piece);
            self.send(Message::Binary(message.freeze())).await?;
        }
        Ok(true)
    }

    /// Ends the input after the data sent so far.
    ///
    /// # Errors
    /// [`Error::Unreachable`] if the connection is lost.
    pub async fn end(&self) -> Result<()> {
        self.send(self.client.json(&ExecControl::EndOfStdin {})?).await
    }

    /// Sends a signal to the command's process group.
    ///
    /// # Errors
    /// [`Error::Unreachable`] if the connection is lost.
    pub async fn signal(&self, name: SignalName) -> Result<()> {
        self.send(self.client.json(&ExecControl::Signal { name })?).await
    }

    async fn send(&self, message: Message) -> Result<()> {
        let sent = self.socket.lock().await.send(message).await;
        sent.map_err(|error| self.client.connection_lost(error.to_string()))
    }
}

impl DuplexOutput {
    /// Returns the next event.
    ///
    /// # Errors
    /// An error of the server, or [`Error::Unreachable`] if the connection is lost. The outcome of the command is
    /// then unknown.
    pub async fn next(&mut self) -> Result<DuplexEvent> {
        loop {
            let message = match self.socket.next().await {
                Some(Ok(message)) => message,
                Some(Err(error)) => return Err(self.client.connection_lost(error.to_string())),
                None => return Err(self.closed()),
            };
            match message {
                Message::Binary(bytes) => return self.output(bytes),
                Message::Text(text) => {
                    if let Some(event) = self.notice(&text)? {
                        return Ok(event);
                    }
                }
                Message::Close(_) => return Err(self.closed()),
                Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
            }
        }
    }

    fn output(&self, mut bytes: Bytes) -> Result<DuplexEvent> {
        let first = (!bytes.is_empty()).then(|| bytes.split_to(1)[0]);
        match first.and_then(StreamId::from_byte) {
            Some(StreamId::Stdout) => Ok(DuplexEvent::Stdout(bytes)),
            Some(StreamId::Stderr) => Ok(DuplexEvent::Stderr(bytes)),
            _ => Err(self.client.unexpected_answer(format!("a binary message of the stream {first:?}"))),
        }
    }

    fn notice(&self, text: &str) -> Result<Option<DuplexEvent>> {
        let notice =
            serde_json::from_str(text).map_err(|error| self.client.unexpected_answer(error.to_string()))?;
        match notice {
            ExecNotice::Started { id } => Ok(Some(DuplexEvent::Started(id))),
            ExecNotice::Stdin { taken, open } => {
                self.taken.send_replace(InputProgress { bytes: taken, open });
                Ok(None)
            }
            ExecNotice::Exit(exit) => {
                self.taken.send_modify(|taken| taken.open = false);
                Ok(Some(DuplexEvent::Exit(exit)))
            }
            ExecNotice::Error(StreamRefusal { error, message, code }) => {
                Err(error_in_stream(code, error, message))
            }
        }
    }

    fn closed(&self) -> Error {
        self.client.connection_lost("the connection was closed before the command's end was known".to_owned())
    }
}
