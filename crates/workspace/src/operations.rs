//! The list of operations, each looked up by name, with a JSON request and a JSON answer.

use std::future::Future;

use skep_api::{
    Call, Operation,
    exec::RunCommand,
    exec_stream::{EndStdin, SignalCommand},
    for_each_workspace_endpoint,
    git::{GitCheckTarget, GitExchange, GitNotePush},
};

use crate::{Error, Place};

/// An operation of a workspace with a JSON request and a JSON answer.
#[warn(missing_docs)]
pub trait Run: Operation {
    /// The most memory that the operation and its answer may take, in bytes.
    fn memory_bytes(&self, _: &Place) -> impl Future<Output = u64> + Send {
        std::future::ready(self.answer_limit().bytes as u64)
    }

    /// Runs the operation at `place`.
    fn run(self, place: &Place) -> impl Future<Output = Result<Self::Answer, Error>> + Send;
}

impl<O: Run> Run for Call<O> {
    async fn memory_bytes(&self, place: &Place) -> u64 {
        self.operation.memory_bytes(place).await
    }

    async fn run(self, place: &Place) -> Result<Self::Answer, Error> {
        self.operation.run(&place.with_context(self.context)).await
    }
}

/// Runs the operation called `name` with a JSON request and returns its answer as JSON. The request of one that has a route is a
/// [`Call`].
///
/// # Errors
/// The name is unknown, the JSON does not match the request type, or the operation fails.
pub async fn run_by_name(name: &str, request: &[u8], place: &Place) -> Result<Vec<u8>, Error> {
    use skep_api::{files, git};

    macro_rules! dispatch {
        ([$($generic:path),* $(,)?] [$($special:path),* $(,)?]) => {
            match name {
                $(<$generic>::NAME => run_json::<Call<$generic>>(request, place).await,)*
                $(<$special>::NAME => run_json::<Call<$special>>(request, place).await,)*
                name => run_internal_by_name(name, request, place).await,
            }
        };
    }
    for_each_workspace_endpoint!(dispatch)
}

/// Runs an operation that callers do not reach by a route of its own.
async fn run_internal_by_name(name: &str, request: &[u8], place: &Place) -> Result<Vec<u8>, Error> {
    match name {
        RunCommand::NAME => run_json::<RunCommand>(request, place).await,
        EndStdin::NAME => run_json::<EndStdin>(request, place).await,
        SignalCommand::NAME => run_json::<SignalCommand>(request, place).await,
        GitExchange::NAME => run_json::<GitExchange>(request, place).await,
        GitCheckTarget::NAME => run_json::<GitCheckTarget>(request, place).await,
        GitNotePush::NAME => run_json::<GitNotePush>(request, place).await,
        _ => Err(Error::UnknownOperation { name: name.to_owned() }),
    }
}

async fn run_json<O: Run>(request: &[u8], place: &Place) -> Result<Vec<u8>, Error> {
    let operation: O =
        serde_json::from_slice(request).map_err(|source| Error::Malformed { operation: O::NAME, source })?;
    let answer = operation.run(place).await?;
    serde_json::to_vec(&answer).map_err(Error::NotSerializable)
}
