//! Operations with bytes behind the request, or behind the answer.

use std::{future::Future, io};

use bytes::Bytes;
use futures_util::stream::BoxStream;
use skep_api::{
    Operation,
    exec_stream::WriteStdin,
    git::{GitExport, GitFetch, GitImport, GitJoin, GitPack, GitSend, GitTake},
    streams::{StreamFile, UploadFile, WatchFolder},
};

use crate::{Error, Place};

/// Bytes that come piece by piece. An error ends them: what came before it is not all.
pub type Content = BoxStream<'static, io::Result<Bytes>>;

/// An operation with bytes behind its request, or behind its answer.
#[warn(missing_docs)]
pub trait RunStreamed: Operation {
    /// Does it at this place.
    fn run_streamed(
        self,
        content: Content,
        place: &Place,
    ) -> impl Future<Output = Result<(Self::Answer, Content), Error>> + Send;
}

/// No bytes.
pub fn no_content() -> Content {
    Box::pin(futures_util::stream::empty())
}

/// Does the operation of this name with this JSON and these bytes at this place; tells its answer as JSON.
///
/// # Errors
/// An unknown name, JSON that does not fit, and whatever the operation itself refuses.
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
        GitTake::NAME => run_json::<GitTake>(request, content, place).await,
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
    Ok((serde_json::to_vec(&answer).map_err(Error::Unspeakable)?, content))
}
