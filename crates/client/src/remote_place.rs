//! Operations on the server's workspace or on a VM.

use std::pin::Pin;

use bytes::Bytes;
use futures_util::{Stream, StreamExt, TryStream};
use http::{
    Method,
    header::{ACCEPT, CONTENT_LENGTH},
};
use reqwest::Body;
use serde_json::Value;
use skep_api::{
    WorkspaceEndpoint,
    files::FileWritten,
    path::{AbsolutePath, encode_path},
};

use crate::{Answered, Client, Error, Result, client::with_query};

const RAW: &str = "application/octet-stream";

/// A place that is reached over the API: the server's workspace, or a VM. Clones refer to the same place.
#[derive(Debug, Clone)]
pub struct RemotePlace {
    client: Client,
    vm: Option<String>,
}

/// The content of a file as a stream.
pub struct FileStream {
    /// The size of the file in bytes, if the server sent it.
    pub size_bytes: Option<u64>,
    pieces: Pin<Box<dyn Stream<Item = Result<Bytes>> + Send>>,
}

impl FileStream {
    /// The content in order. If the connection ends before `size_bytes`, the last item is an error.
    pub fn into_pieces(self) -> impl Stream<Item = Result<Bytes>> + Send + 'static {
        self.pieces
    }
}

impl Client {
    /// A VM, given by process id, id or name, or the server's workspace if `None`.
    pub fn at(&self, vm: Option<&str>) -> RemotePlace {
        RemotePlace { client: self.clone(), vm: vm.map(str::to_owned) }
    }
}

impl RemotePlace {
    /// The VM as it was given; `None` for the server's workspace.
    pub fn vm(&self) -> Option<&str> {
        self.vm.as_deref()
    }

    /// `GET /api/files/read`: reads the exact bytes of a file.
    ///
    /// # Errors
    /// `unknown_path`, `not_a_file`, `path_outside_roots`, and those of every request, from this call or as an item
    /// of the stream.
    pub async fn read(&self, path: &AbsolutePath) -> Result<FileStream> {
        let path = self.query("api/files/read", path, &[]);
        let request = self.client.request(Method::GET, &path)?.header(ACCEPT, RAW);
        let response = self.client.send(request).await?;
        let length = response.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok());
        let size_bytes = length.and_then(|length| length.parse().ok());
        let client = self.client.clone();
        let pieces =
            response.bytes_stream().map(move |piece| piece.map_err(|error| client.request_failed(error)));
        Ok(FileStream { size_bytes, pieces: Box::pin(pieces) })
    }

    /// `PUT /api/files/raw`: replaces the content of a file. If a piece is an error, the file stays unchanged.
    ///
    /// # Errors
    /// `path_outside_roots`, `not_a_file`, `permission_denied`, and those of every request.
    pub async fn write<S>(
        &self,
        path: &AbsolutePath,
        mode: Option<u32>,
        pieces: S,
    ) -> Result<Answered<FileWritten>>
    where
        S: TryStream + Send + 'static,
        S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
        Bytes: From<S::Ok>,
    {
        let mode = mode.map(|mode| format!("{mode:04o}"));
        let path = self.query("api/files/raw", path, &[("mode", mode)]);
        let request = self.client.request(Method::PUT, &path)?.body(Body::wrap_stream(pieces));
        self.client.read(request).await
    }

    /// Runs an operation: `GET /api/git/status` for `GitStatus`, and so on.
    ///
    /// # Errors
    /// Those of the operation's route, `unknown_vm`, and those of every request.
    pub async fn run<O: WorkspaceEndpoint>(&self, operation: &O) -> Result<Answered<O::Answer>> {
        let mut fields = self.client.fields_of(operation)?;
        fields.extend(self.vm.iter().map(|vm| ("vm".to_owned(), Value::from(vm.as_str()))));
        self.client.read(self.client.operation_request::<O>((), fields)?).await
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn query(&self, route: &str, path: &AbsolutePath, more: &[(&str, Option<String>)]) -> String {
        let (text, encoding) = encode_path(path.as_path().as_os_str());
        let mut given = vec![
            ("path", Some(text)),
            ("path_encoding", encoding.map(|_| "percent".to_owned())),
            ("vm", self.vm.clone()),
        ];
        given.extend_from_slice(more);
        with_query(route, &given)
    }
}

impl Error {
    /// Whether this is an error of the server with this code.
    pub fn has_code(&self, wanted: skep_api::ErrorCode) -> bool {
        matches!(self, Self::Refused { code: Some(code), .. } if *code == wanted)
    }
}
