//! Operations on the files of the server's workspace or of a VM.

use std::pin::Pin;

use bytes::Bytes;
use futures_util::{Stream, StreamExt, TryStream};
use http::{
    Method,
    header::{ACCEPT, CONTENT_LENGTH},
};
use reqwest::Body;
use serde_json::{Map, Value, json};
use skep_api::{
    files::{
        FileRemoved, FileWritten, FilesFound, FolderMade, FolderPage, GrepFiles, LinesFound, LinkMade,
        PatternSyntax, Relocated, SearchFiles,
    },
    path::{AbsolutePath, LinkTarget, encode_path, percent_encoded},
};

use crate::{Answered, Client, Error, Result, client::with_query};

const RAW: &str = "application/octet-stream";

/// The files of one workspace. Clones refer to the same workspace.
#[derive(Debug, Clone)]
pub struct Files {
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
    /// The files of a VM, given by process id, id or name, or of the server's workspace if `None`.
    pub fn files(&self, vm: Option<&str>) -> Files {
        Files { client: self.clone(), vm: vm.map(str::to_owned) }
    }
}

impl Files {
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

    /// `POST /api/files/write` with `append`: appends a text to a file.
    ///
    /// # Errors
    /// As [`Files::write`].
    pub async fn append(&self, path: &AbsolutePath, text: &str) -> Result<Answered<FileWritten>> {
        let body = [("content", json!(text)), ("append", json!(true))];
        self.client.post("api/files/write", &self.body(&[("path", path)], body)).await
    }

    /// `GET /api/ls`: a page of a folder, sorted by name. `cursor` is the `next_cursor` of the previous page.
    ///
    /// # Errors
    /// `unknown_path`, `not_a_directory`, `path_outside_roots`, and those of every request.
    pub async fn list(&self, path: &AbsolutePath, cursor: Option<&str>) -> Result<Answered<FolderPage>> {
        self.client.get(&self.query("api/ls", path, &[("cursor", cursor.map(str::to_owned))])).await
    }

    /// `GET /api/files/search`: searches for files by name.
    ///
    /// # Errors
    /// `invalid_value`, `unknown_path`, `path_outside_roots`, and those of every request.
    pub async fn search(&self, search: &SearchFiles) -> Result<Answered<FilesFound>> {
        let syntax = match search.syntax {
            PatternSyntax::Auto => "auto",
            PatternSyntax::Glob => "glob",
            PatternSyntax::Regex => "regex",
        };
        let r#type = search.r#type.and_then(|r#type| serde_json::to_value(r#type).ok());
        let more = [
            ("pattern", Some(search.pattern.clone())),
            ("syntax", Some(syntax.to_owned())),
            ("type", r#type.and_then(|name| name.as_str().map(str::to_owned))),
            ("hidden", Some(search.hidden.to_string())),
            ("gitignore", Some(search.gitignore.to_string())),
            ("limit", Some(search.limit.to_string())),
        ];
        self.client.get(&self.query("api/files/search", &search.path, &more)).await
    }

    /// `GET /api/files/grep`: searches for lines in files.
    ///
    /// # Errors
    /// As [`Files::search`].
    pub async fn grep(&self, grep: &GrepFiles) -> Result<Answered<LinesFound>> {
        let more = [
            ("pattern", Some(grep.pattern.clone())),
            ("glob", grep.glob.clone()),
            ("context", Some(grep.context.to_string())),
            ("limit", Some(grep.limit.to_string())),
        ];
        self.client.get(&self.query("api/files/grep", &grep.path, &more)).await
    }

    /// `POST /api/mkdir`: creates a folder and its missing parents.
    ///
    /// # Errors
    /// `already_exists`, `path_outside_roots`, and those of every request.
    pub async fn make_folder(&self, path: &AbsolutePath, mode: Option<u32>) -> Result<Answered<FolderMade>> {
        let mode = mode.map_or(Value::Null, |mode| json!(format!("{mode:04o}")));
        self.client.post("api/mkdir", &self.body(&[("path", path)], [("mode", mode)])).await
    }

    /// `POST /api/files/copy`: copies within this workspace.
    ///
    /// # Errors
    /// `unknown_path`, `already_exists`, `path_outside_roots`, and those of every request.
    pub async fn copy(
        &self,
        from: &AbsolutePath,
        to: &AbsolutePath,
        overwrite: bool,
    ) -> Result<Answered<Relocated>> {
        let body = self.body(&[("from", from), ("to", to)], [("overwrite", json!(overwrite))]);
        self.client.post("api/files/copy", &body).await
    }

    /// `POST /api/files/move`: moves within this workspace.
    ///
    /// # Errors
    /// As [`Files::copy`].
    pub async fn relocate(
        &self,
        from: &AbsolutePath,
        to: &AbsolutePath,
        overwrite: bool,
    ) -> Result<Answered<Relocated>> {
        let body = self.body(&[("from", from), ("to", to)], [("overwrite", json!(overwrite))]);
        self.client.post("api/files/move", &body).await
    }

    /// `DELETE /api/files`: removes a file, a link or a folder. A folder must be empty unless `recursive` is true.
    ///
    /// # Errors
    /// `unknown_path`, `not_empty`, `path_outside_roots`, and those of every request.
    pub async fn remove(&self, path: &AbsolutePath, recursive: bool) -> Result<Answered<FileRemoved>> {
        let path = self.query("api/files", path, &[("recursive", Some(recursive.to_string()))]);
        self.client.delete(&path).await
    }

    /// `POST /api/files/link`: creates a symbolic link. An existing file or link at the path is replaced.
    ///
    /// # Errors
    /// `not_a_file` if a folder is at the path, `path_outside_roots`, and those of every request.
    pub async fn make_link(&self, path: &AbsolutePath, target: &LinkTarget) -> Result<Answered<LinkMade>> {
        let mut body = Map::new();
        body.insert("path".to_owned(), json!(percent_encoded(path.as_path().as_os_str())));
        body.insert("target".to_owned(), json!(percent_encoded(target.as_os_str())));
        body.insert("path_encoding".to_owned(), json!("percent"));
        body.insert("overwrite".to_owned(), json!(true));
        body.extend(self.vm.iter().map(|vm| ("vm".to_owned(), json!(vm))));
        self.client.post("api/files/link", &Value::Object(body)).await
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

    /// A request body with paths and further fields. All paths have the same encoding; null fields are omitted.
    fn body<const N: usize>(&self, paths: &[(&str, &AbsolutePath)], more: [(&str, Value); N]) -> Value {
        let all_utf8 = paths.iter().all(|(_, path)| path.as_path().to_str().is_some());
        let encode = |path: &AbsolutePath| {
            let path = path.as_path().as_os_str();
            if all_utf8 { encode_path(path).0 } else { skep_api::path::percent_encoded(path) }
        };
        let mut body = Map::new();
        body.extend(paths.iter().map(|(name, path)| ((*name).to_owned(), json!(encode(path)))));
        if !all_utf8 {
            body.insert("path_encoding".to_owned(), json!("percent"));
        }
        body.extend(self.vm.iter().map(|vm| ("vm".to_owned(), json!(vm))));
        let given = more.into_iter().filter(|(_, value)| !value.is_null());
        body.extend(given.map(|(name, value)| (name.to_owned(), value)));
        Value::Object(body)
    }
}

impl Error {
    /// Whether this is an error of the server with this code.
    pub fn has_code(&self, wanted: skep_api::ErrorCode) -> bool {
        matches!(self, Self::Refused { code: Some(code), .. } if *code == wanted)
    }
}
