//! Operations whose request or answer is followed by a stream of bytes.

use std::{future::Future, io};

use bytes::Bytes;
use futures_util::stream::BoxStream;
use skep_api::{
    Operation,
    exec_stream::WriteStdin,
    git::{GitExport, GitFetch, GitImport, GitImportFetched, GitJoin, GitPack, GitSend},
    streams::{StreamFile, UploadFile, WatchFolder},
};

use crate::{Error, Place};

/// A stream of bytes. An error ends the stream and means that it is incomplete.
pub type Content = BoxStream<'static, io::Result<Bytes>>;

/// An operation whose request or answer is followed by a stream of bytes.
#[warn(missing_docs)]
pub trait RunStreamed: Operation {
    /// Runs the operation at `place`. `content` follows the request; the returned content follows the answer.
    fn run_streamed(
        self,
        content: Content,
        place: &Place,
    ) -> impl Future<Output = Result<(Self::Answer, Content), Error>> + Send;
}

pub fn no_content() -> Content {
    Box::pin(futures_util::stream::empty())
}

/// Runs the operation called `name` with a JSON request and `content`, and returns its answer as JSON.
///
/// # Errors
/// The name is unknown, the JSON does not match the request type, or the operation fails.
pub async fn run_streamed_by_name(
    name: &str,
    request: &[u8],
    content: Content,
    place: &Place,
) -> Result<(Vec<u8>, Content), Error> {
    match name {
        WriteStdin::NAME => run_json::<WriteStdin>(request, content, place).await,
        StreamFile::NAME => run_json::<StreamFile>(request, content, place).await,
        UploadFile::NAME => run_json::<UploadFile>(request, content, place).await,
        GitPack::NAME => run_json::<GitPack>(request, content, place).await,
        GitSend::NAME => run_json::<GitSend>(request, content, place).await,
        GitFetch::NAME => run_json::<GitFetch>(request, content, place).await,
        GitJoin::NAME => run_json::<GitJoin>(request, content, place).await,
        GitExport::NAME => run_json::<GitExport>(request, content, place).await,
        GitImport::NAME => run_json::<GitImport>(request, content, place).await,
        GitImportFetched::NAME => run_json::<GitImportFetched>(request, content, place).await,
        WatchFolder::NAME => run_json::<WatchFolder>(request, content, place).await,
        _ => Err(Error::UnknownOperation { name: name.to_owned() }),
    }
}

async fn run_json<O: RunStreamed>(
    request: &[u8],
    content: Content,
    place: &Place,
) -> Result<(Vec<u8>, Content), Error> {
    let operation: O =
        serde_json::from_slice(request).map_err(|source| Error::Malformed { operation: O::NAME, source })?;
    let (answer, content) = operation.run_streamed(content, place).await?;
    Ok((serde_json::to_vec(&answer).map_err(Error::NotSerializable)?, content))
}
