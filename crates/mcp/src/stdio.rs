//! The protocol over standard input and output, for a host that starts the server as its child.

use rmcp::ServiceExt;
use rmcp::service::ServerInitializeError;

use crate::deployment::Deployment;
use crate::server::Server;

/// Why a host could not be served.
#[derive(Debug, thiserror::Error)]
pub enum StdioError {
    /// The host ended the connection before it had begun, or began it wrongly.
    #[error("the host did not begin a connection: {0}")]
    Begin(Box<ServerInitializeError>),
    /// The connection broke.
    #[error("the connection to the host broke: {0}")]
    Broken(#[from] tokio::task::JoinError),
}

/// Serves one host until it hangs up.
pub async fn serve<D: Deployment>(server: Server<D>) -> Result<(), StdioError> {
    match server.serve(rmcp::transport::stdio()).await {
        Ok(running) => {
            running.waiting().await?;
            Ok(())
        }
        // A host that hangs up before it has said anything wanted nothing.
        Err(ServerInitializeError::ConnectionClosed(_)) => Ok(()),
        Err(error) => Err(StdioError::Begin(Box::new(error))),
    }
}
